"""Attempts to look at: made by real episodes, with outputs that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retool_env.config import EpisodeConfig
from retool_env.driver import TurnWork
from retool_env.episode import Episode
from retool_env.problems import Problem
from retool_env.protocol import EndReason, Feedback, RunCode
from retool_env.recorder import Recorder
from retool_env.sandbox import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolResult
from retool_env.trajectory import Trajectory

Record = Callable[..., Trajectory]


@pytest.fixture(scope="session")
def record() -> Record:
    """Returns a function that records an attempt; see ``_record``."""
    return _record


def _record(
    *turns: str,
    id: str = "p",
    question: str = "What is 6 * 7?",
    stdout: str = "42\n",
    status: str = "ok",
    over: bool = True,
    end: EndReason | None = None,
    result: dict[str, Any] | None = None,
    **options: Any,
) -> Trajectory:
    """An attempt whose executions gave ``stdout`` and ``status``; it is aborted if it is to be over and is not."""
    episode = Episode(Problem(id=id, question=question, answer="42"), EpisodeConfig(**options))
    recorder = Recorder(episode)
    for text in turns:
        done = TurnWork()
        action = episode.read(text)
        if isinstance(action, RunCode):
            fields = {"stdout": stdout, "wall_s": 0.25, "cpu_s": 0.125} | (result or {})
            done.results = [
                ExecutionResult(ExecutionStatus(status), **fields)
                if call.name == "code_interpreter"
                else ToolResult(stdout)
                for call in action.calls
            ]
            done.observation = episode.observe(done.results)
        elif isinstance(action, Feedback):
            done.observation = episode.observe()
        elif not episode.over:
            from retool_env.grading import grade_answer

            done.grade = grade_answer(action.text, "42")
            episode.finish(done.grade)
        recorder.add_turn(text, "stop", None, action, done, 0.5)
        if episode.over:
            break
    if over and not episode.over:
        episode.fail(end or EndReason.ABORTED)
    return recorder.trajectory("landlock")
