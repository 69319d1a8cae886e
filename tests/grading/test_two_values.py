"""An answer that holds two different values, joined in any way, is never one of them."""

import pytest

from retool_env.grading import grade_answer

VALUES = ["3", "-2", r"\frac{1}{2}", r"\sqrt{2}", r"2\pi", r"\log_2 5", r"5\text{ cm}", r"\$7"]
PAIRS = [(VALUES[index], VALUES[index - 3]) for index in range(len(VALUES))]
JOINED = [
    "{a} {b}",
    r"{a}\quad {b}",
    r"{a}\qquad x={b}",
    "{a}\n{b}",
    "{a}={b}",
    "m={a}={b}",
    "m+n={a}={b}",
    "{a}=m={b}",
    r"\sin({a})={b}",
    r"x-x+({a})={b}",
    r"\text{{not }} {a}={b}",
    "{a};{b}",
    "{a}, {b}",
    r"{a}\text{{ or }}{b}",
    r"{a}\text{{ not }}{b}",
    r"{a}\text{{ {b} }}",
    r"{a}\boxed{{{b}}}",
    r"\boxed{{{a}}}{b}",
    r"\boxed{{{a}+\boxed{{{b}}}}}",
    r"{a}\fbox{{{b}}}",
    r"{a}\infty {b}",
    r"{b}+{a}/\infty",
    r"\max({a}, {b})",
    r"\min({a}, {b})",
    r"{a}\phantom{{{b}}}",
    r"\cancel{{{a}}}{b}",
    r"\textcolor{{red}}{{{a}}}{b}",
    r"\color{{{a}}}{b}",
    r"{a}\hfill {b}",
    r"\{{{a}\}}{b}",
    "{a}_{{{b}}}",
    r"{a}\to {b}",
    r"{a}\approx {b}",
    "{a} $ {b} $",
    "$ {a} $ {b}",
    '"{a}"{b}',
    "{a}%{b}",
    "{a}. {b}",
    r"\text{{{a}}}{b}",
]


@pytest.mark.parametrize("joined", JOINED)
def test_two_values_are_neither(joined: str) -> None:
    for one, other in PAIRS:
        answer = joined.format(a=one, b=other)
        for gold in (one, other):
            grade = grade_answer(answer, gold)
            assert not grade.correct, (answer, gold, grade)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("p+q=204", "204"),
        ("x_1+x_2=10", "10"),
        ("AB^2=10", "10"),
        (r"\frac{m}{n}=10", "10"),
        (r"\text{Area}=\frac12 bh = 10", "10"),
        ("S=x=10", "10"),
        (r"\gcd(12,18)=6", "6"),
        (r"\max(5,6)=6", "6"),
        (r"\sum_{k=1}^{3} k = 6", "6"),
        ("lcm(2,3)=6", "6"),
        (r"x=5\quad y=3", "x=5, y=3"),
        (r"$12$ \text{apples}", "12"),
        (r"{20 \over 2}", "10"),
        (r"\mathbf{\pi r^2}", r"\pi r^2"),
        (r"x^2=y\text{ cm}", "x^2=y"),
        (r"\sum^{4}_{k=1} k", "10"),
    ],
)
def test_working_in_front_of_a_value_is_not_a_second_one(answer: str, gold: str) -> None:
    assert grade_answer(answer, gold).correct


@pytest.mark.parametrize("answer", [r"\zeta", "2x", "x+y", "x^2", "12"])
def test_a_named_gold_is_not_its_name(answer: str) -> None:
    assert not grade_answer(answer, "x=5").correct


WORDS = (
    "million thousands lakh crore dozen thirds fourths tenths hundredths trillionths twentieths half halves quarters"
    " squared cubed factorial tenfold doubled twice times percentile sextuple nineteen below negative minus not wrong"
    " maybe even undefined infinity"
).split()
PHRASES = [
    "below zero",
    "and a half",
    "to the power two",
    "in base seven",
    "is wrong",
    "basis points",
    "or so",
    "x",
    "i",
]


@pytest.mark.parametrize("words", [*WORDS, *PHRASES, "M", "B"])
def test_words_that_change_a_value_are_not_units(words: str) -> None:
    assert not grade_answer(rf"42 \text{{ {words} }}", "42").correct
    assert not grade_answer(rf"\sqrt{{2}} \text{{ {words} }}", r"\sqrt{2}").correct


@pytest.mark.parametrize(
    "noun",
    [
        *("apples", "pizza", "months", "people", "paths", "ways", "cubes", "square tiles", "cubic feet", "inches tall"),
        *("cups of flour", "miles per hour", "km/h", "N", "degrees Celsius", "years old", "sq. units", "元"),
    ],
)
def test_nouns_are_units(noun: str) -> None:
    assert grade_answer(rf"42 \text{{ {noun}}}", "42").correct
    assert grade_answer("42", rf"42\text{{ {noun}}}").correct
