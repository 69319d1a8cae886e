"""The presets, on rows of the forms that the data sets have."""

from pathlib import Path

import pytest

from retool_env.errors import ProblemError
from retool_env.problems import PRESETS, ProblemWarning, load_problems
from retool_env.problems.presets import aime_answer, bare_question

from .conftest import write_jsonl, write_parquet

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def dapo(question: str, gold: str, index: str) -> dict[str, object]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": BEFORE + question + AFTER, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def test_dapo_from_the_hub_without_its_repeats_and_its_instructions(hub: Path) -> None:
    rows = [dapo(f"What is {n}+{n}?\n\nGive a number.", str(2 * n), f"uuid-{n}") for n in range(3)]
    write_parquet(hub / PRESETS["dapo-math-17k"].repository / "data/dapo-math-17k.parquet", rows * 100)
    problems = load_problems("dapo-math-17k")
    assert [problem.question for problem in problems] == [f"What is {n}+{n}?\n\nGive a number." for n in range(3)]
    assert [problem.id for problem in problems] == [f"dapo-math-17k-{n}" for n in (1, 2, 3)]
    assert [problem.answer for problem in problems] == ["0", "2", "4"]
    assert problems[0].source == "dapo-math-17k"
    metadata = {"data_source": "math_dapo", "ability": "MATH", "extra_info": {"index": "uuid-0"}}
    assert problems[0].metadata == metadata


def test_dapo_reports_what_it_leaves_out(tmp_path: Path) -> None:
    rows = [dapo("1+1?", "2", "a"), dapo("2+2?", "4", "b"), dapo("1+1?", "3", "c"), dapo("1/0?", "", "d")]
    file = write_parquet(tmp_path / "some.parquet", rows)
    with pytest.warns(ProblemWarning, match=r"2 bad rows .*row 3, .*row 1 asks the same.*row 4, column 'reward_model"):
        problems = load_problems(file, preset="dapo-math-17k")
    assert [problem.question for problem in problems] == ["2+2?"]
    with pytest.raises(ProblemError, match="row 3"):
        load_problems(file, preset="dapo-math-17k", on_bad="raise")
    with pytest.warns(ProblemWarning, match="1 bad rows"):
        assert len(load_problems(file, preset="dapo-math-17k", unique=False)) == 3


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (BEFORE + "1+1?" + AFTER, "1+1?"),
        (BEFORE.replace("$Answer (without quotes)", "\\boxed{$Answer}") + "1+1?\n" + AFTER, "1+1?"),
        (BEFORE + "1+1?" + AFTER[:-1] + ", and you do not need to use a \\boxed command.", "1+1?"),
        ("1+1?" + AFTER, "1+1?"),
        ("  1+1?\n\nThink.", "1+1?\n\nThink."),
        ("Solve the following math problem: 1+1?", "Solve the following math problem: 1+1?"),
    ],
)
def test_a_question_loses_the_instructions_around_it_and_nothing_else(prompt: str, question: str) -> None:
    assert bare_question(prompt) == question


PAPER = {"input": "{}", "output": "{}"}
FORMS_2024 = [
    PAPER,
    {"ID": "2024-II-4", "Problem": "{}", "Solution": "Long.\n$x=1$", "Answer": 0},
    {"id": 60, "problem": "{}", "solution": "Long.", "answer": "{}", "url": "https://example.org/1", "year": "2024"},
    {"id": 60, "problem": "{}", "solution": "\\boxed{{{}}}", "url": "https://example.org/1"},
    dapo("{}", "{}", "i"),
    {"prompt": [{"role": "user", "content": "{}"}], "label": "{}"},
]
FORMS_2025 = [
    PAPER,
    {"question": "{}", "answer": "{}"},
    {"problem": "{}", "answer": "{}", "id": "0"},
    {"problem_idx": 1, "problem": "{}", "answer": 0, "problem_type": ["Algebra"]},
    {"id": 0, "problem": "{}", "answer": "{}", "solution": "Long.", "url": "https://example.org/1", "year": 2025},
]


def filled(form: object, question: str, answer: int) -> object:
    """The form with the question and the answer in it."""
    if isinstance(form, dict):
        result = {key: filled(value, question, answer) for key, value in form.items()}
        for key in form:
            if key.lower() == "answer" and form[key] == 0:
                result[key] = answer
            elif key in ("output", "label", "answer", "solution", "ground_truth") and "{}" in str(form[key]):
                result[key] = form[key].format(f"{answer:03}")
        return result
    if isinstance(form, list):
        return [filled(item, question, answer) for item in form]
    return form.replace("{}", question) if isinstance(form, str) else form


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("preset", "form"),
    [*(("aime-2024", form) for form in FORMS_2024), *(("aime-2025", form) for form in FORMS_2025)],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_every_form_of_the_aime_gives_the_same(
    tmp_path: Path, preset: str, form: dict[str, object], suffix: str
) -> None:
    rows = [filled(form, "1+1?", 2), filled(form, "25?", 25), filled(form, "204?", 204), filled(form, "1+1?", 2)]
    write = write_jsonl if suffix == "jsonl" else write_parquet
    problems = load_problems(write(tmp_path / f"set.{suffix}", rows), preset=preset)  # type: ignore[arg-type]
    assert [(problem.id, problem.question, problem.answer, problem.source) for problem in problems] == [
        (f"{preset}-1", "1+1?", "2", preset),
        (f"{preset}-2", "25?", "25", preset),
        (f"{preset}-3", "204?", "204", preset),
    ]


def test_the_aime_by_name_comes_from_the_hub(hub: Path) -> None:
    row = {"id": "0", "problem": "1+1?", "answer": "2"}
    write_jsonl(hub / PRESETS["aime-2025"].repository / "test.jsonl", [row])
    write_parquet(hub / PRESETS["aime-2024"].repository / "data/train-00000-of-00001.parquet", [row])
    for name in ("aime-2024", "aime-2025"):
        assert [problem.id for problem in load_problems(name)] == [f"{name}-1"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("70", "70"), (" 025 ", "25"), ("000", "0"), ("\\boxed{116}", "116"), ("$116$", "116"), ("336^\\circ", "336"),
     ("$\\boxed{ 336^{\\circ} }$", "336"), ("204.0", "204"), ("204.", "204")],
)  # fmt: skip
def test_answers_of_the_aime_get_one_form(text: str, answer: str) -> None:
    assert aime_answer(text) == answer


@pytest.mark.parametrize("text", ["1000", "-3", "1/2", "204.5", "", "x", "12 34", "\\frac{1}{2}"])
def test_what_is_no_answer_of_the_aime_is_an_error(tmp_path: Path, text: str) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", [{"problem": "?", "answer": text}])
    with pytest.raises(
        ProblemError, match=r"row 1, column 'answer': an answer of the AIME is an integer from 0 to 999"
    ):
        load_problems(file, preset="aime-2024")


def test_a_file_of_the_name_wins_over_the_preset(hub: Path) -> None:
    write_jsonl(hub / "aime-2024", [{"question": "1/2+1/2?", "answer": "1.0"}])
    assert load_problems("aime-2024")[0].answer == "1.0"
