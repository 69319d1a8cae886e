"""Which text is the answer."""

from collections.abc import Callable

import pytest

from retool_env.grading import extract_answer, grade, grade_answer, last_boxed

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed {\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{42}}", r"\boxed{42}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\\boxed{3}", "3"),
        (r"\boxed", None),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{1}</think> I do not know", None),  # the think tag was opened in the prompt
        (r"<think>\boxed{1}", None),
        ("<code>\nprint('\\boxed{1}')\n</code>", None),
        ("```python\nprint('\\boxed{1}')\n```", None),
        ("```output\n\\boxed{1}\n```\nso \\boxed{2}", "2"),
        ("<interpreter>\\boxed{1}", None),
        ('<tool_call>{"code": "\\boxed{1}"}</tool_call>', None),
        (r"<answer>\boxed{7}</answer>", "7"),
        ("<answer>1</answer> no: <answer> 7 </answer>", "7"),
        (r"<answer>\boxed{7</answer>", None),
        ("Answer: 42", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 1\nAnswer: 42", "42"),
        ("**Answer:** 42", "42"),
        ("Answer: `$13$`", "$13$"),
        ("Answer: 42<|im_end|>", "42"),
        ("Answer: 1\nSo \\boxed{2}", "2"),
        ("The answer is 42", None),
    ],
)
def test_answer_line_is_an_option(text: str, answer: str | None) -> None:
    assert extract_answer(text, answer_line=True) == answer


def test_the_prompts_own_format_is_not_an_answer() -> None:
    assert not grade(r"I was told to write \boxed{...} at the end.", "42").correct


def test_boxes_nested_a_thousand_deep() -> None:
    text = r"\boxed{" * 1000 + "42" + "}" * 1000
    assert grade(text, "42").correct
    assert not grade(text, "43").correct
    assert grade(text[:-1], "42").answer is not None  # the outermost box is open; the one inside it counts


def test_a_huge_box_is_wrong() -> None:
    assert not grade(r"\boxed{" + "4" * 1_000_000 + "}", "4").correct
    assert not grade(r"\boxed{" + "42 " * 300_000 + "}", "42").correct


@pytest.mark.once
@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{",
        "{",
        "}",
        "<think>",
        "</think>",
        "<code>",
        "```python\n",
        "<answer>",
        "Answer: ",
        "Answer:\n",
        "\\",
        "* ",
    ],
)
def test_time_is_linear(unit: str) -> None:
    def prepare(n_chars: int) -> Callable[[], object]:
        text = unit * (n_chars // len(unit))
        return lambda: (extract_answer(text, answer_line=True), grade_answer(text, "42"))

    assert growth(prepare, 1_000_000) < LINEAR
