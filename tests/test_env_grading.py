"""The grader's options of ``ReToolEnv``: the preset, the limit, what a time-out does, and their record."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from retool_env.env import ReToolEnv
from retool_env.grading import shutdown
from retool_env.problems import Problem

HANGS = "<answer>\\boxed{(1+x)^{5000000}}</answer>"


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    yield
    shutdown()


def attempt(gold: str, turn: str, how: str = "step", **options: Any) -> tuple[float, dict[str, Any], ReToolEnv]:
    """Answers in the first turn; returns reward, info and the closed environment. No code, so no sandbox starts."""
    with ReToolEnv([Problem(id="p", question="?", answer=gold)], **options) as env:
        env.reset()
        assert env.episode.config.grader == options.get("grader", "default")
        _, reward, terminated, truncated, info = asyncio.run(env.astep(turn)) if how == "astep" else env.step(turn)
        assert terminated is not truncated
        return reward, info, env


@pytest.mark.parametrize("how", ["step", "astep"])
@pytest.mark.parametrize(
    ("gold", "answer", "strict", "default", "lenient"),
    [
        ("42", "<answer>\\boxed{42}</answer>", True, True, True),
        ("42", "<answer>\\boxed{042}</answer>", False, True, True),
        ("\\frac{1}{2}", "\\boxed{0.5}", False, True, True),
        ("42", "\\boxed{42} is it." + " I am sure." * 10, False, True, True),  # outside verl's window
        ("\\sqrt{2}", "\\boxed{1.414}", False, False, True),
        ("42", "\\boxed{43}", False, False, False),
    ],
)
def test_the_preset_decides(how: str, gold: str, answer: str, strict: bool, default: bool, lenient: bool) -> None:
    for grader, expected in (("strict", strict), ("default", default), ("lenient", lenient)):
        reward, info, env = attempt(gold, answer, how, grader=grader)
        assert (info["correct"], reward) == (expected, float(expected)), grader
        trajectory = env.trajectory()
        assert trajectory.rules.grader == grader
        assert trajectory.turns[-1].grade is not None


@pytest.mark.parametrize("how", ["step", "astep"])
def test_a_grade_that_times_out_is_wrong_and_told_apart(how: str) -> None:
    reward, info, env = attempt("x", HANGS, how, reward="paper", grade_limit_s=0.1)
    assert (reward, info["correct"], info["fault"], info["ended"]) == (-1.0, False, False, "answered")
    assert info["grade_timed_out"]
    trajectory = env.trajectory()
    assert trajectory.turns[-1].grade is not None
    assert trajectory.turns[-1].grade.timed_out
    assert "0.1 s" in trajectory.turns[-1].grade.reason
    assert (trajectory.rules.grade_limit_s, trajectory.rules.on_grade_timeout) == (0.1, "wrong")


@pytest.mark.parametrize("how", ["step", "astep"])
def test_or_it_is_a_fault(how: str) -> None:
    reward, info, env = attempt("x", HANGS, how, reward="paper", grade_limit_s=0.1, on_grade_timeout="fault")
    assert (reward, info["correct"], info["fault"], info["ended"]) == (0.0, False, True, "grade_timeout")
    assert info["grade_timed_out"]
    assert info["reward_breakdown"] == {}
    trajectory = env.trajectory()
    assert trajectory.outcome is not None
    assert (trajectory.outcome.ended, trajectory.rules.on_grade_timeout) == ("grade_timeout", "fault")
    assert type(trajectory).from_json(trajectory.to_json()) == trajectory


def test_other_grades_did_not_time_out() -> None:
    _, info, _ = attempt("42", "\\boxed{43}", on_grade_timeout="fault")
    assert (info["grade_timed_out"], info["ended"]) == (False, "answered")
