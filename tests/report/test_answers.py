"""Which wrong answers count as the same one in a vote, and what comparing them may cost."""

from __future__ import annotations

from collections import Counter

import pytest

from retool_env.report.answers import Comparisons, answer_key, class_sizes


def sizes(*answers: str, comparisons: Comparisons | None = None) -> list[int]:
    return class_sizes(Counter(map(answer_key, answers)), comparisons or Comparisons())


@pytest.mark.parametrize(
    "same",
    [
        ("42", " 42 ", "$42$", r"\boxed{42}", "42.", "42.0", "084/2"),
        (r"\frac{1}{2}", "1/2", "0.5", "0.50", r"\dfrac12"),
        ("1/3", "0.333333"),
        ("50%", r"50\%", "1/2"),
        ("60°", "60"),
        ("(1, 2)", "( 1,2 )"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("x+1", "1+x"),
    ],
)
def test_equal_answers_are_one_class(same: tuple[str, ...]) -> None:
    assert sizes(*same) == [len(same)]
    assert sizes(*reversed(same)) == [len(same)]


def test_different_answers_are_not() -> None:
    assert sizes("1", "2", "1/2", "x", "y", "no solution", "1", "x") == [2, 2, 1, 1, 1, 1]


def test_the_order_of_the_attempts_does_not_matter() -> None:
    answers = ["1/2", "0.5", "3", "3", "2", r"2\sqrt{2}", r"\sqrt{8}", "50%"]
    assert sizes(*answers) == sizes(*answers[::-1]) == sizes(*sorted(answers))
    # 1/3 is either decimal, and they are not each other.
    assert sizes("1/3", "0.333333", "0.3333333") == sizes("0.333333", "0.3333333", "1/3") == [2, 1]


def test_integers_are_told_apart_without_a_comparison() -> None:
    comparisons = Comparisons()
    assert sizes(*map(str, range(5000)), comparisons=comparisons) == [1] * 5000
    assert comparisons.made == 0


def test_comparisons_at_one_problem_are_bounded() -> None:
    comparisons = Comparisons()
    found = sizes(*(f"word{i}x" for i in range(300)), comparisons=comparisons)
    assert sum(found) == 300
    assert comparisons.made == 200
    assert comparisons.skipped > 200


def test_comparisons_of_a_run_are_bounded() -> None:
    comparisons = Comparisons(left=5)
    assert sizes("1/2", "0.5", comparisons=comparisons) == [2]
    assert sum(sizes(*"abcdefgh", comparisons=comparisons)) == 8
    assert comparisons.made == 5
    assert comparisons.skipped > 0


def test_expressions_that_hang_use_the_time_up() -> None:
    comparisons = Comparisons(left_s=0.5)
    bombs = [rf"\left(1+x\right)^{{{n}000000}} + \sin y" for n in range(2, 9)]
    assert sizes(*bombs, comparisons=comparisons) == [1] * 7
    assert comparisons.left_s <= 0
    assert 1 <= comparisons.made < 21
    assert comparisons.skipped > 0
    assert sizes("1/2", "0.5", comparisons=comparisons) == [1, 1]


@pytest.mark.parametrize("answer", [r"\infty", r"-\infty", "nan", "{", "\\", "\x00", "\ud800", "9" * 5000, "x" * 10**6])
def test_anything_can_be_an_answer(answer: str) -> None:
    assert sizes(answer, answer, "17") == [2, 1]
    assert len(answer_key(answer)) <= 120


def test_a_long_answer_is_the_same_as_itself_only() -> None:
    comparisons = Comparisons()
    assert sizes("x" * 500, "x" * 500, "x" * 501, "1/2", "0.5", comparisons=comparisons) == [2, 2, 1]
    assert comparisons.made == 1
