"""The lenient preset: its table in docs/grading.md, each row a test, and what it never does."""

import json
import re
from pathlib import Path

import pytest

from retool_env.grading import agrade, check_gold, grade, grade_answer

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (yes|no) \| `(.+?)` \| `(.+?)` \|", re.M)
ROWS = [match.groups() for match in ROW.finditer(DOCS)]
CASES = [json.loads(line) for line in (ROOT / "tests/cases/grading.jsonl").read_text(encoding="utf-8").splitlines()]
# No box, but a marked final answer: whoever reported it wants it to count, and a grader of boxes says no.
POLICY = {"g082"}


def test_the_table_is_read_whole() -> None:
    assert len(ROWS) == len(re.findall(r"^\| (?:yes|no) \|", DOCS, re.M)) > 35


@pytest.mark.parametrize(("expected", "text", "gold"), ROWS)
async def test_row(expected: str, text: str, gold: str) -> None:
    check_gold(gold)
    assert not grade(text, gold).correct
    result = grade(text, gold, preset="lenient")
    assert result.correct == (expected == "yes"), result
    assert not result.timed_out
    again = await agrade(text, gold, preset="lenient")
    assert (again.correct, again.answer, again.method) == (result.correct, result.answer, result.method)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_corpus_has_no_false_positive_but_by_policy(case: dict) -> None:
    result = grade(case["prediction"], case["gold"], preset="lenient", limit_s=2)
    assert result.correct == (case["expected"] or case["id"] in POLICY), result


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} The answer is 2.", "1"),  # a box goes before everything
        ("<answer>7</answer> The answer is 8.", "7"),
        ("<answer>The answer is 7.</answer>", "7"),
        ("<answer>7, 8</answer>", "7, 8"),
        ("<answer>12:00</answer>", "12:00"),
        ("The answer is\n\n$$42$$", "42"),
        ("The answer is:\n42", "42"),
        ("**Answer:** `$13$`", "13"),
        ("Answer: 42<|im_end|>", "42"),
        ("It costs $12.50.", "$12.50"),
        ("She pays $5 and gets $6 back", "$6"),
        ("x is 5.\nI hope this helps!", "5"),
        ("It is 3.14", "3.14"),
        ("It is x^5", "x^5"),
        ("I got 10-5", "I got 10-5"),
        ("There are 1,234 ways.", "1,234"),
        ("The temperature is -3 degrees.", "-3 degrees"),
        ("I do not know.", None),
        ("It was 5. I was wrong.", None),
        ("", None),
        ("5 " * 5000, ("5 " * 1000).strip()),  # only the end is looked at, and it names no single number
    ],
)
def test_what_is_taken(text: str, answer: str | None) -> None:
    assert grade(text, "42", preset="lenient").answer == answer


JOINED = [
    "{} or {}",
    "{} and {}",
    "{}, {}",
    "either {} or {}",
    "not {} but {}",
    "{} if n is even, {} if n is odd",
    "${}$ or ${}$",
]


@pytest.mark.parametrize("joined", JOINED)
@pytest.mark.parametrize(
    "frame", ["The answer is {}.", "Answer: {}", "So we get {}", "{}", r"\[ x = {} \]", "<answer>{}</answer>"]
)
def test_of_two_values_none_is_picked(frame: str, joined: str) -> None:
    text = frame.format(joined.format(3, 5))
    for gold in ("3", "5"):
        assert not grade(text, gold, preset="lenient").correct, text


def test_default_verdicts_that_are_right_stay_right() -> None:
    for case in CASES:
        usual = grade(case["prediction"], case["gold"], limit_s=2)
        if usual.correct:
            assert grade(case["prediction"], case["gold"], preset="lenient", limit_s=2).correct, case["id"]


def test_a_hang_is_a_timeout_here_too() -> None:
    result = grade_answer("(1+x)^{5000000}", "x", preset="lenient", limit_s=0.2)
    assert (result.correct, result.timed_out) == (False, True)


@pytest.mark.parametrize(
    ("preset", "answer_line"),
    [("strict", True), ("lenient", False)],
)
def test_an_option_that_the_preset_contradicts_is_an_error(preset: str, answer_line: bool) -> None:
    with pytest.raises(ValueError, match="answer_line"):
        grade("Answer: 42", "42", preset=preset, answer_line=answer_line)
    assert grade("Answer: 42", "42", answer_line=True).correct
    assert not grade("Answer: 42", "42", preset="strict", answer_line=False).correct


@pytest.mark.parametrize("preset", ["", "Default", "verl", None])
async def test_an_unknown_preset_is_an_error(preset: object) -> None:
    for function in (grade, grade_answer):
        with pytest.raises(ValueError, match="strict, default, lenient"):
            function("42", "42", preset=preset)
    with pytest.raises(ValueError, match="strict, default, lenient"):
        await agrade("42", "42", preset=preset)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
def test_a_limit_that_cannot_work_is_an_error(limit_s: float) -> None:
    with pytest.raises(ValueError, match="limit_s"):
        grade_answer("42", "42", limit_s=limit_s)
