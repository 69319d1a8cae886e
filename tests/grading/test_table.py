"""The table of docs/grading.md: each row is a test."""

import re
from pathlib import Path

import pytest

from retool_env.grading import grade_answer

DOCS = Path(__file__).parents[2] / "docs" / "grading.md"
ROW = re.compile(r"\| `(.+?)` \| `(.+?)` \| (yes|no) \|")
ROWS = [match.groups() for match in ROW.finditer(DOCS.read_text(encoding="utf-8"))]
# Rows whose two sides play different parts, as docs/grading.md says under the table.
ONE_WAY = {
    ("3", "x = 1 + 2 = 3"),
    ("116", "m+n=116"),
    ("116", "m + n = 25 + 91 = 116"),
    ("70", r"\lvert a-b\rvert = 70"),
    ("10", "a^2+b^2=10"),
    ("10", "f(2)+f(3)=10"),
    ("10", r"\text{Area}=10"),
    ("0", "x+y=0"),
    ("3", r"\max(2, 3)"),
    ("6", r"5 + \boxed{6}"),  # of a gold the box is taken
    ("6", r"\frac{1}{\boxed{6}}"),
    ("x=5", "3x+2=17"),
    ("x=5", "x-5=0"),
    ("x=2, y=3", "2x=4, 3y=9"),
    ("x=5", "x = 2+3 = 5"),
}


def test_the_table_is_read_whole() -> None:
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS) > 90


@pytest.mark.parametrize(("gold", "answer", "equal"), ROWS)
def test_row(gold: str, answer: str, equal: str) -> None:
    grade = grade_answer(answer, gold)
    assert grade.correct == (equal == "yes"), grade
    assert not grade.timed_out


@pytest.mark.parametrize(
    ("gold", "answer", "equal"), [row for row in ROWS if row[:2] not in ONE_WAY and row[1] != "nan"]
)
def test_row_is_symmetric(gold: str, answer: str, equal: str) -> None:
    grade = grade_answer(gold, answer)
    assert grade.correct == (equal == "yes"), grade
