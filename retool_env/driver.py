"""The work between two turns: running calls and grading answers, written once for sync and async callers.

The order of things is a generator that asks for one piece of work at a time (``_steps``); ``drive`` answers it by
blocking and ``adrive`` by awaiting.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retool_env.episode import Episode
from retool_env.interpreter import Interpreter
from retool_env.protocol.base import Action, Answer, EndReason, Feedback, Observation, RunCode
from retool_env.sandbox.api import ExecutionResult
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolResult

if TYPE_CHECKING:
    from retool_env.grading import Grade


@dataclass(slots=True)
class TurnWork:
    """What a driver did for one turn.

    Attributes:
        results: What the calls gave, in order. Fewer than the calls if the sandbox failed on the way; its failure is
            then the last one.
        grade: The grade of the answer, if there was one to grade.
        observation: What the policy sees next; None if the attempt is over.
        retries: Executions that were tried again because the sandbox failed.
        restarted: Which of the results (from 0) ended the interpreter that the attempt's code shares.
    """

    results: list[ExecutionResult | ToolResult] = field(default_factory=list)
    grade: Grade | None = None
    observation: Observation | None = None
    retries: int = 0
    restarted: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _GradeAnswer:
    answer: Answer
    gold: str
    preset: str
    limit_s: float


_Work = ToolCall | _GradeAnswer
_Steps = Generator[_Work, "ExecutionResult | ToolResult | Grade", None]


def drive(episode: Episode, action: Action, interpreter: Interpreter) -> TurnWork:
    """Does what an action asks for, and tells the episode.

    Args:
        episode: Has just read the action.
        action: What ``episode.read`` returned.
        interpreter: Runs the attempt's code. It is closed when the attempt is over, and by whatever is raised.

    Returns:
        What was done. A sandbox that fails twice on the same code ends the attempt (``SANDBOX_UNAVAILABLE``); so does
        one that fails once where what earlier code defined is lost with it.

    Raises:
        SandboxError: The sandbox cannot be made, is closed, or has as many sessions as it may have.
    """
    from retool_env.grading import grade, grade_answer

    done = TurnWork()
    with _closed_at_the_end(episode, interpreter):
        steps = _steps(episode, action, interpreter, done)
        work = next(steps, None)
        while work is not None:
            answer: ExecutionResult | ToolResult | Grade
            if isinstance(work, _GradeAnswer):
                # verl looks for a box of its own at the end of the whole text.
                strict = work.preset == "strict"
                judge, text = (grade, work.answer.kept) if strict else (grade_answer, work.answer.text)
                answer = judge(text, work.gold, preset=work.preset, limit_s=work.limit_s)
            elif work.name == CODE_INTERPRETER:
                answer = interpreter.run(work.arguments["code"])
            else:
                answer = episode.registry.call(work)
            work = _send(steps, answer)
    return done


async def adrive(episode: Episode, action: Action, interpreter: Interpreter) -> TurnWork:
    """Does the same as ``drive`` without blocking the event loop."""
    from retool_env.grading import agrade, agrade_answer

    done = TurnWork()
    with _closed_at_the_end(episode, interpreter):
        steps = _steps(episode, action, interpreter, done)
        work = next(steps, None)
        while work is not None:
            answer: ExecutionResult | ToolResult | Grade
            if isinstance(work, _GradeAnswer):
                strict = work.preset == "strict"
                judge, text = (agrade, work.answer.kept) if strict else (agrade_answer, work.answer.text)
                answer = await judge(text, work.gold, preset=work.preset, limit_s=work.limit_s)
            elif work.name == CODE_INTERPRETER:
                answer = await interpreter.arun(work.arguments["code"])
            else:
                answer = await episode.registry.acall(work)
            work = _send(steps, answer)
    return done


@contextmanager
def _closed_at_the_end(episode: Episode, interpreter: Interpreter) -> Iterator[None]:
    """Closes the interpreter when the attempt is over, or cannot go on because something was raised."""
    try:
        yield
    except BaseException:
        interpreter.close()
        raise
    if episode.over:
        interpreter.close()


def _send(steps: _Steps, answer: ExecutionResult | ToolResult | Grade) -> _Work | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _steps(episode: Episode, action: Action, interpreter: Interpreter, done: TurnWork) -> _Steps:
    match action:
        case Feedback():
            done.observation = episode.observe(())
        case Answer():
            if episode.needs_grade:
                config = episode.config
                grade = yield _GradeAnswer(action, episode.problem.answer, config.grader, config.grade_limit_s)
                assert not isinstance(grade, ExecutionResult | ToolResult)
                done.grade = grade
            episode.finish(done.grade)
        case RunCode(calls=calls):
            for number, call in enumerate(calls):
                result = yield call
                if _unavailable(result) and interpreter.can_retry:
                    done.retries += 1
                    result = yield call
                assert isinstance(result, ExecutionResult | ToolResult)
                done.results.append(result)
                if _unavailable(result):
                    episode.fail(EndReason.SANDBOX_UNAVAILABLE)
                    return
                if call.name == CODE_INTERPRETER and interpreter.restarted:
                    done.restarted.append(number)
            done.observation = episode.observe(done.results, restarted=done.restarted)


def _unavailable(result: object) -> bool:
    return isinstance(result, ExecutionResult) and not result.status.ran
