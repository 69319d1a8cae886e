"""What holds for every gold, every pair and every text."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from retool_env.grading import PRESETS, agrade, check_gold, grade, grade_answer

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

integers = st.integers(-(10**12), 10**12).map(str)
small = st.integers(2, 60).map(str)
fractions = st.tuples(st.integers(-99, 99), st.integers(1, 99)).flatmap(
    lambda pair: st.sampled_from(
        [rf"\frac{{{pair[0]}}}{{{pair[1]}}}", rf"\dfrac{{{pair[0]}}}{{{pair[1]}}}", f"{pair[0]}/{pair[1]}"]
    )
)
decimals = st.decimals(-1000, 1000, places=3).map(str)
numbers = integers | fractions | decimals | st.integers(1000, 10**9).map(lambda n: f"{n:,}")
constants = st.sampled_from(
    [r"\pi", "e", "i", r"2\pi", r"\infty", r"-\infty", r"\log_2 3", r"\sin 60^\circ", "0.\\overline{3}"]
)
roots = st.tuples(small, small).flatmap(
    lambda pair: st.sampled_from(
        [
            rf"\sqrt{{{pair[0]}}}",
            rf"{pair[1]}\sqrt{{{pair[0]}}}",
            rf"\sqrt[3]{{{pair[0]}}}",
            rf"\frac{{\sqrt{{{pair[0]}}}}}{{{pair[1]}}}",
        ]
    )
)
variables = st.sampled_from(
    ["x", "y", "n", r"\theta", "a_1", "2x+1", "x^2-3x", r"\frac{1}{x}", "x^{2}y", "3t", r"\sqrt{1/n}"]
)
units = st.sampled_from(
    [r"\text{ cm}", r"\text{ apples}", r"\text{ cm}^2", "\\%", r"^\circ", " cm", r"\text{ dollars}"]
)
measured = st.tuples(integers | decimals, units).map("".join) | integers.map(lambda n: rf"\$ {n}")
words = st.sampled_from(
    [r"\text{even}", "Tuesday", r"\text{(B)}", "no solution", r"\text{all of the above}", "C", "AB"]
)
leaves = numbers | constants | roots | variables
expressions = st.recursive(
    leaves,
    lambda inner: st.tuples(inner, inner).flatmap(
        lambda pair: st.sampled_from(
            ["{}+{}", "{}-({})", r"{}\cdot({})", r"\frac{{{}}}{{{}}}", "({})^{{2}}+{}", r"\left({}\right)({})"]
        ).map(lambda form: form.format(*pair))
    ),
    max_leaves=4,
)  # fmt: skip
parts = st.lists(leaves, min_size=1, max_size=4).map(", ".join)
pairs = st.tuples(leaves, leaves)
structures = st.one_of(
    parts,
    parts.map("({})".format),
    parts.map(r"\{{{}\}}".format),
    parts.map(r"\left\{{{}\right\}}".format),
    pairs.flatmap(
        lambda pair: st.sampled_from(["[{}, {})", "({}, {}]", "[{}, {}]"]).map(lambda form: form.format(*pair))
    ),
    pairs.map(lambda pair: rf"(-\infty, {pair[0]}) \cup ({pair[1]}, \infty)"),
    pairs.map(lambda pair: rf"{pair[0]} \text{{ or }} {pair[1]}"),
    pairs.map(lambda pair: rf"{pair[0]} \pm {pair[1]}"),
    pairs.map(lambda pair: rf"\begin{{pmatrix}} {pair[0]} \\ {pair[1]} \end{{pmatrix}}"),
)
statements = st.one_of(
    expressions.map("y = {}".format),
    expressions.map("f(x) = {}".format),
    pairs.map(lambda pair: f"x = {pair[0]}, y = {pair[1]}"),
    pairs.map(lambda pair: f"{pair[0]} < x \\leq {pair[1]}"),
    leaves.map(r"x \geq {}".format),
    expressions.map("{} = 0".format),
)
nested = st.one_of(
    pairs.map(lambda pair: f"\\{{({pair[0]}, 1), (2, {pair[1]})\\}}"),
    pairs.map(lambda pair: f"(({pair[0]}, 2), [3, {pair[1]}])"),
    pairs.map(lambda pair: f"({pair[0]}, {pair[1]}), (1, 2)"),
)
golds = expressions | measured | words | structures | statements | nested
jumble = st.text(st.sampled_from("0123456789\\{}()[]$^_,.;=+-<>%! xyeipsqrt frac"), min_size=1, max_size=30)


def accepts(gold: str) -> bool:
    try:
        check_gold(gold)
    except ValueError:
        return False
    return True


@SLOW
@given(golds | jumble, st.sampled_from(["default", "lenient"]))
def test_an_accepted_gold_equals_itself(gold: str, preset: str) -> None:
    assume(accepts(gold))
    for result in (
        grade_answer(gold, gold, preset=preset),
        grade(rf"So it is \boxed{{{gold}}}.", gold, preset=preset),
        grade(rf"So it is \boxed{{{gold}}}.", f"${gold}$" if "$" not in gold else gold, preset=preset),
    ):
        assert result.correct, result


@SLOW
@given(leaves | measured | words | structures | nested)
def test_the_golds_that_are_generated_are_accepted(gold: str) -> None:
    check_gold(gold)


KINDS = (numbers, measured, roots | numbers, expressions, words, structures, nested)


@SLOW
@given(st.one_of([st.tuples(kind, kind) for kind in KINDS]), st.sampled_from(["default", "lenient"]))
@example(("\\{3\\}", "3"), "lenient")
@example(("42 apples", "42"), "lenient")
@example(("\\sqrt{2}", "1.414"), "lenient")
def test_equality_is_symmetric(pair: tuple[str, str], preset: str) -> None:
    one, other = pair
    assume(accepts(one) and accepts(other))
    there, back = grade_answer(one, other, preset=preset), grade_answer(other, one, preset=preset)
    assert there.correct == back.correct, (there, back)


@SLOW
@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4), st.integers(2, 50))
def test_the_same_value_in_another_form_is_equal_both_ways(top: int, bottom: int, factor: int) -> None:
    one, other = rf"\frac{{{top}}}{{{bottom}}}", f"{top * factor}/{bottom * factor}"
    assert grade_answer(one, other).correct
    assert grade_answer(other, one).correct
    assert not grade_answer(rf"\frac{{{top + 1}}}{{{bottom}}}", other).correct


ANY_TEXT = st.text(
    st.characters() | st.sampled_from("0123456789\\{}()[]$^_,.;=+-%<> xyiepor"), max_size=60
) | st.lists(
    st.sampled_from(
        [r"\boxed{", "}", "{", "42", "The answer is ", "Answer: ", "$", r"\[", r"\]", ". ", "\n", "so ", "3 or 5",
         "<code>", "</code>", "<think>", "</think>", "<answer>", "</answer>", "```python\n", "```",
         r"\frac", "\x00", "\ud800", "!"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(ANY_TEXT, st.sampled_from(PRESETS), st.sampled_from(["42", "x+1", r"\{1,2\}", r"\text{even}"]))
@example("\ud800", "lenient", "42")
@example("The answer is " * 100, "lenient", "42")
def test_no_text_raises(text: str, preset: str, gold: str) -> None:
    for result in (
        grade(text, gold, preset=preset, limit_s=0.5),
        grade_answer(text, gold, preset=preset, limit_s=0.5),
        asyncio.run(agrade(text, gold, preset=preset, limit_s=0.5)),
    ):
        assert result.elapsed_s >= 0


@pytest.mark.once
@pytest.mark.parametrize("preset", ["strict", "lenient"])
@pytest.mark.parametrize(
    "unit",
    [
        *(r"\boxed{", "{", "}", "<think>", "<code>", "<answer>", "```python\n", "\\", "* ", "$", "$ 5 $ ", "5 ", "5. "),
        *("The answer is ", "The answer is 5. ", "Answer: ", "Answer:\n", "answer ", "so ", "wait ", r"\[", "is: "),
    ],
)  # fmt: skip
def test_time_is_linear(unit: str, preset: str) -> None:
    def prepare(n_chars: int) -> Callable[[], object]:
        text = unit * (n_chars // len(unit))
        return lambda: grade(text, "42", preset=preset)

    assert growth(prepare, 400_000) < LINEAR
