"""JSONL files with any column names; every fault names file, row and column."""

import json
import os
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.problems import BuiltinProblems, Problem, load_jsonl, load_problems


def write(folder: Path, *rows: object, name: str = "set.jsonl") -> Path:
    file = folder / name
    lines = [row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows]
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


def test_the_aime_schema_loads_as_it_is(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {"input": "Find the sum of $1$ to $20$.", "output": "210"},
        {"input": "How many primes are below $30$?", "output": "10"},
        name="aime_like.jsonl",
    )
    assert load_jsonl(file) == [
        Problem(id="aime_like-1", question="Find the sum of $1$ to $20$.", answer="210", source="aime_like"),
        Problem(id="aime_like-2", question="How many primes are below $30$?", answer="10", source="aime_like"),
    ]


@pytest.mark.parametrize("question", ["question", "Problem", "prompt", "input", "query"])
@pytest.mark.parametrize("answer", ["answer", "Answer", "gold", "expected_answer", "target", "expected", "output",
                                    "ground_truth", "solution"])  # fmt: skip
def test_the_usual_column_names_are_found(tmp_path: Path, question: str, answer: str) -> None:
    [problem] = load_jsonl(write(tmp_path, {"n": 1, question: "1+1?", answer: "2"}))
    assert (problem.question, problem.answer, problem.metadata) == ("1+1?", "2", {"n": 1})


def test_an_answer_is_preferred_to_a_worked_solution(tmp_path: Path) -> None:
    row = {"problem": "1+1?", "solution": "One and one make two.", "answer": "2"}
    [problem] = load_jsonl(write(tmp_path, row))
    assert problem.answer == "2"
    assert problem.metadata == {"solution": "One and one make two."}


def test_columns_can_be_named(tmp_path: Path) -> None:
    row = {"text": "1+1?", "wert": "2", "answer": "3", "key": 17}
    [problem] = load_jsonl(write(tmp_path, row), question="text", answer="wert", id="key")
    assert (problem.id, problem.question, problem.answer, problem.metadata) == ("17", "1+1?", "2", {"answer": "3"})


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        (b"204", "204"),
        (b"-7", "-7"),
        (b"0.1", "0.1"),
        (b"12345678901234567890123", "12345678901234567890123"),
        (b"0.12345678901234567890123", "0.12345678901234567890123"),
        (b"1.50", "1.50"),
        (b"2.5e3", "2500"),
        (b"1e-3", "0.001"),
        (b'" 3/7 "', "3/7"),
    ],
)
def test_numbers_become_exact_text(tmp_path: Path, written: bytes, gold: str) -> None:
    [problem] = load_jsonl(write(tmp_path, b'{"question": "?", "answer": ' + written + b"}"))
    assert problem.answer == gold


GOOD = {"question": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"question": "?"}, r"row 3: column 'answer' is missing \(columns: 'question'\)"),
        ({"answer": "2"}, r"row 3: column 'question' is missing"),
        ([1, 2], r"row 3: a row must be a JSON object.* got list"),
        (b'{"question": "?", "answer": "2"', r"row 3: not valid JSON"),
        (b'{"question": "?", "answer": NaN}', r"row 3: not valid JSON: NaN"),
        (b'{"question": "?", "answer": ' + b"9" * 10_000 + b"}", r"row 3: not valid JSON"),
        (b"[" * 100_000, r"row 3: not valid JSON"),
        (b'{"question": "\xff", "answer": "2"}', r"row 3: not UTF-8 \(byte 15"),
        ({"question": "?", "answer": None}, r"row 3, column 'answer': a gold .* text or a number, got None"),
        ({"question": "?", "answer": True}, r"row 3, column 'answer': a gold .* text or a number, got True"),
        ({"question": "?", "answer": ["2"]}, r"row 3, column 'answer': a gold answer must be"),
        (b'{"question": "?", "answer": 1e999}', r"row 3, column 'answer': the number 1e999 is out of range"),
        (b'{"question": "?", "answer": 1e99999999999999999999}', r"row 3, column 'answer': the number 1e9+ is out of"),
        (
            b'{"question": "?", "answer": 0e-99999999999999999999}',
            r"row 3, column 'answer': the number 0e-9+ is out of",
        ),
        ({"question": "?", "answer": ""}, r"row 3, column 'answer': the gold answer '' cannot be parsed"),
        (rb'{"question": "?", "answer": "x\ud800"}', r"row 3, column 'answer': the gold answer .* cannot be parsed"),
        ({"question": "?", "answer": "\\frac{1}{"}, r"row 3, column 'answer': the gold answer .* cannot be parsed"),
        ({"question": " ", "answer": "2"}, r"row 3, column 'question': a question must be text"),
        ({"question": [{"role": "user"}], "answer": "2"}, r"row 3, column 'question': a question must be text"),
    ],
)
def test_a_bad_row_is_an_error_that_names_file_row_and_column(tmp_path: Path, bad: object, message: str) -> None:
    file = write(tmp_path, GOOD, b"", bad)
    with pytest.raises(ProblemError, match=message) as caught:
        load_jsonl(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path, content)
    with pytest.raises(ProblemError, match=r"set\.jsonl, row 1: the file holds no problem"):
        load_jsonl(file)


def test_unknown_and_ambiguous_columns_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"row 1: no answer column \(columns: 'question', 'wert'; .*answer=\.\.\."):
        load_jsonl(write(tmp_path, {"question": "?", "wert": "2"}))
    with pytest.raises(
        ProblemError,
        match=r"row 1: columns \['answer', 'gold'\] could all be the answer; .*problems\(source, answer='answer'\)",
    ):
        load_jsonl(write(tmp_path, {"question": "?", "answer": "2", "gold": "2"}))
    with pytest.raises(ProblemError, match=r"row 1: column 'frage' is missing"):
        load_jsonl(write(tmp_path, GOOD), question="frage")


def test_an_id_that_appears_twice_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path, {**GOOD, "key": "a"}, {**GOOD, "key": "a"})
    with pytest.raises(ProblemError, match=r"row 2, column 'key': the id 'a' was already used in row 1"):
        load_jsonl(file, id="key")


def test_a_number_that_nobody_asks_for_may_be_anything(tmp_path: Path) -> None:
    [problem] = load_jsonl(write(tmp_path, b'{"question": "?", "answer": 0.10, "x": 1e99999999999999999999}'))
    assert (problem.answer, problem.metadata) == ("0.10", {"x": float("inf")})


def test_lone_surrogates_become_replacement_characters_wherever_they_stand(tmp_path: Path) -> None:
    row = rb'{"q\ud800": "\udc00?", "a": "2", "i": "\ud800", "\ud801": [{"\udbff": "\ud83d\ude00\udead"}], "f": 0.5}'
    [problem] = load_jsonl(write(tmp_path, row), question="q\ufffd", answer="a", id="i")
    assert problem == Problem(
        id="\ufffd",
        question="\ufffd?",
        answer="2",
        source="set",
        metadata={"\ufffd": [{"\ufffd": "\U0001f600\ufffd"}], "f": 0.5},
    )
    [problem] = load_jsonl(write(tmp_path, rb'{"q": "?", "a\ud800": 0.50}'), question="q", answer="a\ufffd")
    assert problem.answer == "0.50"


def test_a_file_name_that_is_not_utf8_is_harmless(tmp_path: Path) -> None:
    try:
        file = write(tmp_path, GOOD, name="s\udcff.jsonl")
    except OSError:
        pytest.skip("this file system only has names that are UTF-8")
    assert load_jsonl(file)[0].id == "s\ufffd-1"


def test_limit_stops_before_later_faults(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD, GOOD, b"not json")
    assert len(load_jsonl(file, limit=2)) == 2
    with pytest.raises(ConfigurationError, match="limit: must be at least 1"):
        load_jsonl(file, limit=0)


def test_a_byte_order_mark_and_crlf_are_harmless(tmp_path: Path) -> None:
    file = tmp_path / "windows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert load_jsonl(file)[0].question == "1+1?"


def test_load_problems_takes_what_the_option_takes(tmp_path: Path) -> None:
    assert load_problems() == load_problems("builtin") == BuiltinProblems(0)
    assert load_problems("builtin", seed=3) == BuiltinProblems(3)
    builtin = BuiltinProblems(5, size=3)
    assert load_problems(builtin) is builtin
    file = write(tmp_path, GOOD)
    assert load_problems(file) == load_problems(str(file)) == load_jsonl(file)
    problem = Problem(id="p", question="1+1?", answer="2")
    assert load_problems([problem, {"question": "2+2?", "answer": "4"}]) == [
        problem,
        Problem(id="problem-1", question="2+2?", answer="4"),
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (17, r"problems: takes .* got int"),
        (b"builtin", r"problems: takes .* got bytes"),
        ([], r"problems: the sequence is empty"),
        ([17], r"problems\[0\]: must be a Problem or a mapping, got int"),
        ([{"question": "?"}], r"problems\[0\]: field 'answer'"),
        ([{"question": "?", "answer": 4}], r"problems\[0\]: field 'answer'"),
        ([{"question": " \n", "answer": "4"}], r"problems\[0\]: field 'question': a question must not be blank"),
        ([{"question": "?", "answer": "4", "gold": 1}], r"problems\[0\]: field 'gold'"),
        ("no/such/file.jsonl", r"problems: no such file: no/such/file\.jsonl"),
    ],
)
def test_load_problems_refuses_anything_else(spec: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_problems(spec)  # type: ignore[arg-type]


def test_load_problems_refuses_an_id_that_appears_twice() -> None:
    for problems in (
        [GOOD, Problem(id="x", question="?", answer="1"), {**GOOD, "id": "x"}],
        [GOOD, {**GOOD, "id": "problem-2"}, GOOD],
    ):
        with pytest.raises(
            ProblemError, match=r"problems\[2\], field 'id': the id '.*' was already used by problems\[1\]"
        ):
            load_problems(problems)


def test_load_problems_checks_golds_in_memory_too() -> None:
    with pytest.raises(ProblemError, match=r"problems\[1\], field 'answer': the gold answer"):
        load_problems([GOOD, {"question": "?", "answer": "\\frac{1}{"}])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "the source is an empty text"),
        ('{"question": "' + "q" * 5000, r"no such file: \{\"question\".*: File name too long"),
        ("../problems", "no such file: ../problems"),
        ("hf:", 'no id of the hub, which looks like "owner/name"'),
        ("hf:../problems", "no id of the hub"),
        ("hf:owner/na me", "no id of the hub"),
        ("hf:owner/na\udc80me", "no id of the hub"),
    ],
)
def test_text_that_names_nothing_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_problems(spec)
    assert len(str(caught.value)) < 500


def test_what_is_there_and_no_file_is_not_called_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ConfigurationError, match=r"problems: not a file: .*pipe\.jsonl"):
        load_problems(tmp_path / "pipe.jsonl")
