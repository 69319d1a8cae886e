"""What becomes of bad rows and of repeated ones."""

from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.problems import BadRow, Problem, ProblemWarning, load_problems

from .conftest import write_jsonl


def qa(question: str, answer: object, **more: object) -> dict[str, object]:
    return {"question": question, "answer": answer, **more}


MIXED = [
    qa("1+1?", "2"),
    qa("1/0?", None),
    qa("2+2?", "4"),
    qa("", "5"),
    qa("x?", "\\frac{1}{"),
    {"question": "3+3?"},
    qa("3+3?", "6"),
]


def test_bad_rows_are_skipped_with_one_warning_that_names_the_first(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", MIXED)
    file.write_text(file.read_text() + "not json\n[1]\n")
    with pytest.warns(ProblemWarning) as caught:
        problems = load_problems(file, on_bad="skip")
    assert [problem.id for problem in problems] == ["set-1", "set-3", "set-7"]
    [warning] = caught
    assert str(warning.message).startswith(f"6 bad rows were left out: {file}, row 2, column 'answer': a gold answer")
    assert "; " + f"{file}, row 4, column 'question'" in str(warning.message)
    assert "row 6" not in str(warning.message)
    assert warning.filename == __file__


def test_bad_rows_can_be_handed_over(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", MIXED)
    bad: list[BadRow] = []
    assert len(load_problems(file, on_bad=bad.append)) == 3
    assert [(row.origin, row.number, row.column) for row in bad] == [
        (str(file), 2, "answer"),
        (str(file), 4, "question"),
        (str(file), 5, "answer"),
        (str(file), 6, None),
    ]
    assert "cannot be parsed" in bad[2].reason
    assert bad[3].reason == "column 'answer' is missing (columns: 'question')"


def test_by_default_the_first_bad_row_raises(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", MIXED)
    for options in ({}, {"on_bad": "raise"}):
        with pytest.raises(ProblemError, match=r"set\.jsonl, row 2, column 'answer'"):
            load_problems(file, **options)  # type: ignore[arg-type]


def test_a_set_of_bad_rows_only_is_an_error_even_if_they_are_skipped(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", [qa("?", None), qa("?", "")])
    with pytest.raises(ProblemError, match=r"none of the rows is good; the first: .*row 1, column 'answer'"):
        load_problems(file, on_bad="skip")


def test_columns_that_nobody_finds_are_an_error_even_if_bad_rows_are_skipped(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", [{"a": 1}])
    with pytest.raises(ProblemError, match="no question column"):
        load_problems(file, on_bad="skip")


def test_an_unknown_policy_is_an_error(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", MIXED)
    with pytest.raises(ConfigurationError, match=r"on_bad: must be .* got 'ignore'"):
        load_problems(file, on_bad="ignore")  # type: ignore[arg-type]


def test_repeats_are_kept_unless_they_are_not_wanted(tmp_path: Path) -> None:
    rows = [qa("1+1?", 2), qa("2+2?", "4"), qa("1+1?", "2"), qa("2+2?", "4.0"), qa("3+3?", "6")]
    file = write_jsonl(tmp_path / "set.jsonl", rows)
    assert len(load_problems(file)) == 5
    assert [(problem.id, problem.answer) for problem in load_problems(file, unique=True)] == [
        ("set-1", "2"),
        ("set-2", "4"),
        ("set-5", "6"),
    ]


def test_a_question_with_two_answers_is_reported_and_kept_with_neither(tmp_path: Path) -> None:
    rows = [qa("1+1?", "2"), qa("2+2?", "4"), qa("1+1?", "3"), qa("1+1?", "3"), qa("1+1?", "2"), qa("3+3?", "6")]
    file = write_jsonl(tmp_path / "set.jsonl", rows)
    bad: list[BadRow] = []
    assert [problem.question for problem in load_problems(file, unique=True, on_bad=bad.append)] == ["2+2?", "3+3?"]
    reason = "row 1 asks the same, and its answer is '2', not '3'"
    assert bad == [BadRow(str(file), 3, "answer", reason)]
    with pytest.raises(ProblemError, match="row 3, column 'answer': row 1 asks the same"):
        load_problems(file, unique=True)


def test_a_limit_counts_what_is_kept(tmp_path: Path) -> None:
    rows = [qa("1+1?", "2"), qa("1+1?", "2"), qa("", "3"), qa("2+2?", "4"), qa("3+3?", "6")]
    file = write_jsonl(tmp_path / "set.jsonl", rows)
    with pytest.warns(ProblemWarning):
        problems = load_problems(file, unique=True, on_bad="skip", limit=2)
    assert [problem.question for problem in problems] == ["1+1?", "2+2?"]


def test_a_column_inside_another_is_named_with_a_dot(tmp_path: Path) -> None:
    row = {"task": {"text": "1+1?", "key": "k"}, "result": {"gold": 0.10}, "note": "n"}
    file = write_jsonl(tmp_path / "set.jsonl", [row])
    [problem] = load_problems(file, question="task.text", answer="result.gold", id="task.key")
    assert problem == Problem(id="k", question="1+1?", answer="0.1", source="set", metadata={"note": "n"})
    with pytest.raises(ProblemError, match=r"column 'task\.id' is missing \(columns: 'task', 'result', 'note'\)"):
        load_problems(file, question="task.text", answer="result.gold", id="task.id")


def test_a_prompt_of_chat_messages_gives_what_the_user_says(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}
    file = write_jsonl(tmp_path / "set.jsonl", [{"prompt": [system, user], "label": "2"}])
    assert load_problems(file)[0].question == "1+1?"
    for messages in ([], [system], [user, user], [user, {"role": "assistant", "content": "2"}], ["1+1?"], [{}]):
        write_jsonl(file, [{"prompt": messages, "label": "2"}])
        with pytest.raises(ProblemError, match="column 'prompt': a question must be text or chat messages with one"):
            load_problems(file)


def test_verls_rows_are_understood(tmp_path: Path) -> None:
    row = {
        "data_source": "gsm",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 7},
    }
    [problem] = load_problems(write_jsonl(tmp_path / "set.jsonl", [row]), id="extra_info.index")
    metadata = {"data_source": "gsm", "ability": "math"}
    assert problem == Problem(id="7", question="1+1?", answer="2", source="set", metadata=metadata)
