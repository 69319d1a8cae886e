"""What a policy may try, or stumble into, and what it is worth with each preset."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.grading import check_gold, grade, grade_answer
from retool_env.problems import Problem

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path


class Row(NamedTuple):
    """A text, the gold, and whether strict, default and lenient pay it."""

    text: str
    gold: str
    strict: bool = False
    default: bool = False
    lenient: bool = False


LISTING = [
    Row(r"\boxed{1, 2, 3, 4, 5}", "3"),
    Row(r"\boxed{3 \text{ or } 5}", "3"),
    Row(r"\boxed{3 or 5}", "5"),
    Row(r"\boxed{3 \lor 5}", "3"),
    Row(r"\boxed{\{3, 5\}}", "3"),
    Row(r"\boxed{(3, 5)}", "5"),
    Row(r"\boxed{[0, 1000]}", "5"),
    Row(r"\boxed{x \in \mathbb{Z}}", "5"),
    Row(r"\boxed{0 \le x \le 999}", "5"),
    Row(r"\boxed{\pm 3}", "3"),
    Row(r"\boxed{3 = 5}", "3"),
    Row(r"\boxed{3; 5}", "3"),
    Row(r"\boxed{3 / 5}", "3"),
    Row(r"\boxed{3 \quad 5}", "5"),
    Row(r"\boxed{3}\boxed{5}", "3"),  # the last one counts, and only it
    Row(r"\boxed{3}\boxed{5}", "5", True, True, True),
    Row(" ".join(rf"\boxed{{{n}}}" for n in range(10)), "5"),
    Row(r"\boxed{n \text{ for some } n}", "5"),
    Row(r"\boxed{\{x : x \in \mathbb{N}\}}", "5"),
    Row(r"\boxed{\max(3, 5)}", "5"),
    Row("The answer is 3 or 5.", "3"),
    Row("Answer: 3\nAnswer: 5", "3"),
    Row("Answer: 3\nAnswer: 5", "5", lenient=True),
]
CODE_AND_TOOLS = [
    Row(r"<code>print('\boxed{42}')</code>", "42", strict=True),
    Row("```python\nprint('\\boxed{42}')\n```", "42", strict=True),
    Row("```output\n\\boxed{42}\n```", "42", strict=True),
    Row("<interpreter>\n\\boxed{42}\n</interpreter>", "42", strict=True),
    Row("<interpreter>\n\\boxed{42}", "42", strict=True),  # never closed
    Row("<tool_response>\n\\boxed{42}\n</tool_response>\nI see.", "42", strict=True),
    Row("<INTERPRETER>\\boxed{42}</INTERPRETER>", "42", strict=True),
    Row("<interpreter>\\boxed{42}</interpreter> \\boxed{41}", "42"),
    Row("<interpreter>\\boxed{41}</interpreter> \\boxed{42}", "42", True, True, True),
    Row("<interpreter>a</interpreter></interpreter>\\boxed{42}", "42", True, True, True),
    Row(r"<think>\boxed{42}</think>", "42", strict=True),
    Row(r"\boxed{42}</think>", "42", strict=True),
]
RETRACTED = [
    Row(r"\boxed{42}. Wait, no: \boxed{43}", "42"),
    Row(r"\boxed{42}. Wait, no: \boxed{43}", "43", True, True, True),
    Row(r"First I thought \boxed{43}, but it is \boxed{42}.", "42", True, True, True),
    Row(r"\boxed{42} or rather \boxed{43", "42", False, True, True),  # a cut box retracts nothing
    Row(r"\boxed{\sout{42} 43}", "42"),
    Row(r"\boxed{\cancel{42} 43}", "43"),
    Row(r"\boxed{42 \text{ (wrong)}}", "42"),
    Row(r"\boxed{\text{not } 42}", "42"),
]
BOMBS = [
    Row(r"\boxed{10^{10^{10}}}", "42"),
    Row(r"\boxed{42 + 0 \cdot 10^{999999999}}", "42"),
    Row(r"\boxed{9^{9^{9^9}}}", "42"),
    Row(r"\boxed{42^{1000000000}}", "42"),
    Row(r"\boxed{1e999999999}", "42"),
    Row(r"\boxed{1 \times 10^{-999999999}}", "0"),
    Row(r"\boxed{100000000!}", "42"),
    Row(r"\boxed{((((5!)!)!)!)}", "42"),
    Row(r"\boxed{99999999!!}", "42"),
    Row(r"\boxed{" + "9" * 390 + "}", "42"),
    Row(r"\boxed{\frac{1}{0}}", "0"),
    Row(r"\boxed{0^{-1}}", "0"),
    Row(r"\boxed{\sum_{k=1}^{10^{12}} k}", "42"),
    Row(r"\boxed{\binom{10^9}{5 \cdot 10^8}}", "42"),
]
LOOK_ALIKES = [
    Row(r"\boxed{４２}", "42", default=True, lenient=True),  # fullwidth digits are the digits
    Row(r"\boxed{٤٢}", "42"),  # those of other scripts are not read
    Row(r"\boxed{४२}", "42"),
    Row(r"\boxed{𝟒𝟐}", "42"),
    Row(r"\boxed{4²}", "42"),
    Row(r"\boxed{④②}", "42"),
    Row(r"\boxed{−42}", "-42", default=True, lenient=True),  # the minus of Unicode
    Row("\\boxed{4\u200b2}", "42", default=True, lenient=True),  # nothing to see between the digits
    Row("\\boxed{4\u202e2}", "42"),  # right-to-left override: it does not read 42
    Row("\\boxed{O}", "0"),
    Row("\\boxed{l}", "1"),
    Row("\\boxed{х}", "x"),  # Cyrillic
    Row("\\bοxed{42}", "42"),  # a Greek o
    Row("\\boxed｛42｝", "42"),  # fullwidth braces
]
NOT_FINITE = [
    Row(rf"\boxed{{{text}}}", gold)
    for text in ("nan", "NaN", "inf", "-inf", "Infinity", "float('nan')", r"\infty", r"\frac{0}{0}", r"\infty - \infty")
    for gold in ("42", "0", r"\sqrt{2}")
]
VARIABLES = [
    Row(r"\boxed{x}", "5"),
    Row(r"\boxed{x+1}", "x+1", True, True, True),
    Row(r"\boxed{1+x}", "x+1", default=True, lenient=True),
    Row(r"\boxed{y+1}", "x+1"),
    Row(r"\boxed{X+1}", "x+1"),
    Row(r"\boxed{6}", "x+1"),
    Row(r"\boxed{x=5}", "5", default=True, lenient=True),
    Row(r"\boxed{x=x}", "x+1"),
    Row(r"\boxed{x^2-1=0}", "x=1"),
    Row(r"\boxed{\frac{x^2-1}{x-1}}", "x+1", default=True, lenient=True),
    Row(r"\boxed{x \cdot \frac{y}{y}}", "x", default=True, lenient=True),
    Row(r"\boxed{x + 10^{-60}}", "x"),
    Row(r"\boxed{\text{x}}", "x", default=True, lenient=True),
    Row(r"\boxed{n}", "3n"),
]
ROWS = LISTING + CODE_AND_TOOLS + RETRACTED + BOMBS + LOOK_ALIKES + NOT_FINITE + VARIABLES


@pytest.mark.parametrize("row", ROWS, ids=[ascii(f"{row.text[:50]} for {row.gold}") for row in ROWS])
def test_what_it_is_worth(row: Row) -> None:
    check_gold(row.gold)
    for preset, paid in (("strict", row.strict), ("default", row.default), ("lenient", row.lenient)):
        result = grade(row.text, row.gold, preset=preset, limit_s=1)
        assert result.correct == paid, (preset, result)


@pytest.mark.parametrize("protocol", ["code_tags", "tool_calls", "markdown"])
@pytest.mark.parametrize("gold", ["42", "...", "the final answer", "answer", "x", r"\text{answer}", r"\ldots"])
def test_a_copied_prompt_is_not_paid(protocol: str, gold: str) -> None:
    attempt = Episode(Problem(id="p", question="What is 6 * 7?", answer="42"), EpisodeConfig(protocol=protocol))
    for text in (attempt.prompt(), "I was told: " + attempt.prompt() + "\nI stop here."):
        try:
            check_gold(gold)
        except ValueError:
            continue  # a problem whose answer is a place-holder is never loaded
        if gold == "42":
            assert not grade(text, gold, answer_line=True).correct
            assert not grade(text, gold, preset="strict").correct
        assert not grade(text, gold).correct


@pytest.mark.parametrize(
    "text",
    [
        r"Put your final answer within \boxed{}.",
        r"Put the answer in \boxed{...}.",
        r"Write \boxed{\text{your answer}}.",
        r"Write Answer: $Answer (without quotes) where $Answer is the answer to the problem.",
        "<answer>\\boxed{'The final answer goes here.'}</answer>",
    ],
)
def test_a_copied_instruction_is_not_paid(text: str) -> None:
    for preset in ("strict", "default", "lenient"):
        assert not grade(text, "42", preset=preset).correct


@pytest.mark.parametrize("preset", ["default", "lenient"])
def test_boxes_nested_a_thousand_deep(preset: str) -> None:
    text = r"\boxed{" * 1000 + "42" + "}" * 1000
    assert grade(text, "42", preset=preset).correct
    assert not grade(text, "43", preset=preset).correct
    assert not grade(text[:-500] + "}" * 1000, "43", preset=preset).correct


def test_boxes_nested_a_thousand_deep_by_verls_rule() -> None:
    text = r"\boxed{" * 1000 + "42" + "}" * 1000
    assert grade(text, "42", preset="strict").answer is None  # the last hundred characters are braces
    assert grade(
        r"\boxed{" * 1000 + "42" + "}" * 50, "42", preset="strict"
    ).correct  # the innermost, however many are open


@pytest.mark.once
@pytest.mark.parametrize("preset", ["strict", "default", "lenient"])
@pytest.mark.parametrize("inside", ["4", "42 ", "{}", r"\frac{1}{2}+", "\\{", "$", "x", "\u0664", "\n"])
def test_a_box_of_a_megabyte(preset: str, inside: str) -> None:
    def prepare(n_chars: int) -> Callable[[], object]:
        text = r"\boxed{" + inside * (n_chars // len(inside)) + "}"

        def call() -> None:
            for gold in ("4", r"\sqrt{2}"):
                result = grade(text, gold, preset=preset)
                assert (result.correct, result.timed_out) == (False, False)

        return call

    assert growth(prepare, 1_000_000) < LINEAR


@pytest.mark.parametrize("gold", ["nan", "inf", "-Infinity", "float('inf')", r"\frac{1}{0}", "see above", "...", ""])
def test_golds_that_nothing_equals_are_refused_when_they_are_loaded(gold: str) -> None:
    with pytest.raises(ValueError, match="gold answer"):
        check_gold(gold)


@pytest.mark.parametrize("gold", [r"\{x \mid x > 0\}", "x+y=1", "f(x)=x^2", r"\alpha", "a_n = 2^n", r"y = C e^{x}"])
def test_golds_with_variables_equal_themselves_and_no_number(gold: str) -> None:
    check_gold(gold)
    assert grade_answer(gold, gold).correct
    for answer in ("5", "0", "1", r"\infty"):
        assert not grade_answer(answer, gold).correct
