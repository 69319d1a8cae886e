"""The public functions: types, golds, properties."""

import textwrap

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retool_env.grading import Grade, agrade, agrade_answer, check_gold, grade, grade_answer

INTEGERS = st.integers(-(10**30), 10**30)


@st.composite
def golds(draw: st.DrawFn) -> str:
    number = st.one_of(
        INTEGERS.map(str),
        st.decimals(-1000, 1000, places=3).map(str),
        st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        st.integers(2, 50).map(lambda n: rf"\sqrt{{{n}}}"),
        st.sampled_from([r"\pi", "x", "e", r"2x+1", r"\text{even}", "50\\%", "3\\text{ cm}", "60^\\circ", r"\infty"]),
    )
    parts = draw(st.lists(number, min_size=1, max_size=4))
    shapes = ["{}", "({})", r"\{{{}\}}", "[{}]", "{}"] if len(parts) != 2 else ["{}", "[{})", "({})"]
    return draw(st.sampled_from(shapes)).format(", ".join(parts))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(golds())
@example(r"[60^\circ]")
def test_a_gold_equals_itself(gold: str) -> None:
    check_gold(gold)
    assert grade_answer(gold, gold).correct
    assert grade(rf"So it is \boxed{{{gold}}}.", gold).correct


@settings(max_examples=200, deadline=None)
@given(INTEGERS, INTEGERS)
def test_integers_are_equal_only_to_themselves(gold: int, answer: int) -> None:
    assert grade_answer(str(answer), str(gold)).correct == (gold == answer)
    assert grade_answer(f"{answer:,}", str(gold)).correct == (gold == answer)
    assert not grade_answer(f"{gold}.{'0' * 20}1", str(gold)).correct


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters() | st.sampled_from("0123456789\\{}()[]$^_,.;=+-%<> xyiepor"), max_size=60))
def test_no_answer_raises(text: str) -> None:
    # A numeric gold needs the worker for some of these: a short limit keeps the test short.
    assert isinstance(grade(text, "42", limit_s=0.5), Grade)
    assert isinstance(grade_answer(text, "42", limit_s=0.5), Grade)


@pytest.mark.parametrize(
    "text", ["\ud800", r"\boxed{\ud800}", "\x00", "", " ", r"\boxed{}", "{" * 300, "(" * 399, "$" * 399]
)
def test_odd_answers_are_wrong(text: str) -> None:
    assert not grade_answer(text, "42").correct
    assert not grade_answer(text, r"\sqrt{2}").correct


@pytest.mark.parametrize(
    "gold", ["", "  ", "$$", r"\boxed{}", "nan", "-inf", r"\frac{1}{", "}{", "x +* y", "1" * 5000, r"\frac{1}{0}"]
)
def test_check_gold_refuses(gold: str) -> None:
    with pytest.raises(ValueError, match="gold answer"):
        check_gold(gold)


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        *(
            (gold, "missing value")
            for gold in ("???", "---", "N/A", "n/a", "NA", "None", "null", r"\text{None}", "<NA>")
        ),
        *((gold, "missing value") for gold in ("see image", "See figure 3", "unknown", "TBD")),
        *((gold, "take what follows") for gold in ("#### 72", "so it sold 72\n#### 72")),
        ("first\nsecond", "several lines"),
        (r"\boxed{5+\boxed{6}}", "a box beside"),
        (r"5 + \fbox{6}", "a box beside"),
    ],
)
def test_check_gold_refuses_what_no_answer_can_match(gold: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_gold(gold)


@pytest.mark.parametrize(
    "gold",
    [
        *(
            "42",
            "-1/2",
            r"\boxed{42}",
            "$42$",
            r"\sqrt{2}",
            "12:00",
            r"\text{no such triangle}",
            r"1, 2, \ldots, n",
            "x=1",
        ),
        *(
            "Tuesday",
            "east",
            r"\text{(B)}",
            "42\n",
            "So\n\\boxed{5}",
            r"\infty",
            r"\{\}",
            "∅",
            "M",
            r"\text{undefined}",
        ),
        *(
            r"\sin 60^\circ",
            r"\tan 45^\circ",
            r"\binom52",
            "\\begin{pmatrix}1\n\\\\2\\end{pmatrix}",
            "2516_8",
            r"\log_2 3",
        ),
        *(
            r"\text{none of these}",
            r"5\sqrt{2}\text{ cm}",
            r"x \in \mathbb{R}",
            r"\text{Area} = 12",
            r"\overrightarrow{AB}",
        ),
    ],
)
def test_check_gold_accepts(gold: str) -> None:
    check_gold(gold)


@pytest.mark.parametrize("bad", [None, 42, 4.2, b"42", ["42"]])
async def test_only_strings(bad: object) -> None:
    for arguments in ((bad, "42"), ("42", bad)):
        for function in (grade, grade_answer):
            with pytest.raises(TypeError, match="must be a str"):
                function(*arguments)
        for coroutine in (agrade, agrade_answer):
            with pytest.raises(TypeError, match="must be a str"):
                await coroutine(*arguments)
    with pytest.raises(TypeError, match="must be a str"):
        check_gold(bad)


def test_a_grade_says_how_it_was_found() -> None:
    assert grade(r"\boxed{42}", "42").method == "numeric"
    assert grade(r"\boxed{2\sqrt{2}}", r"\sqrt{8}").method == "symbolic"
    assert grade(r"\boxed{1,2}", r"(1,2,3)").method == "structure"
    assert grade(r"\boxed{Even}", r"\text{even}").method == "text"
    missing = grade("I do not know", "42")
    assert (missing.method, missing.answer, missing.correct, missing.timed_out) == ("none", None, False, False)
    assert grade(r"\boxed{42}", "42").elapsed_s >= 0


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('false')",
        "open('/nonexistent','w')or 3*\\pi",
        "(lambda:7)()",
        "exec('7')",
        "eval('42')",
    ],
)
def test_text_is_never_evaluated(text: str) -> None:
    assert not grade_answer(text, "42").correct
    assert not grade_answer(text, r"42\pi").correct


def test_importing_and_numeric_grading_load_nothing_heavy(subprocess_python) -> None:
    output = subprocess_python(
        textwrap.dedent("""
        import sys
        from retool_env.grading import grade
        assert grade(r"\\boxed{42}", "42").correct
        print([name for name in ("sympy", "math_verify", "pydantic", "torch") if name in sys.modules])
        """)
    )
    assert output.strip() == "[]"
