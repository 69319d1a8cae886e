"""The work between two turns: running calls and grading answers, written once for sync and async callers.

The order of things is a generator that asks for one piece of work at a time (``_steps``); ``drive`` answers it by
blocking and ``adrive`` by awaiting.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from retool_env.episode import Episode
from retool_env.grading import Grade, agrade, agrade_answer, grade, grade_answer
from retool_env.interpreter import Interpreter
from retool_env.protocol.base import Action, Answer, EndReason, Feedback, Observation, RunCode
from retool_env.sandbox.api import ExecutionResult
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolResult


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
class _ToGrade:
    """What is to be graded, and how: the text of a turn, in which the answer is yet to be found, or the answer."""

    text: str
    is_turn: bool
    gold: str
    preset: str
    limit_s: float


_Work = ToolCall | _ToGrade
_Steps = Generator[_Work, "ExecutionResult | ToolResult | Grade", None]


def drive(episode: Episode, action: Action, interpreter: Interpreter) -> TurnWork:
    """Does what an action asks for, and tells the episode.

    Args:
        episode: Has just read the action.
        action: What ``episode.read`` returned.
        interpreter: Runs the attempt's code. It is closed when the attempt is over, and by whatever is raised.

    Returns:
        What was done. A sandbox that fails twice on the same code ends the attempt (``SANDBOX_UNAVAILABLE``); so does
        one that fails once where what earlier code defined is lost with it, or that has no place for a session.

    Raises:
        SandboxError: The sandbox cannot be made, or is closed.
    """
    turn = _Turn(episode, action, interpreter)
    try:
        turn.begin()
        while (work := turn.work) is not None:
            answer: ExecutionResult | ToolResult | Grade
            if isinstance(work, _ToGrade):
                judge = grade if work.is_turn else grade_answer
                answer = judge(work.text, work.gold, preset=work.preset, limit_s=work.limit_s)
            elif work.name == CODE_INTERPRETER:
                answer = interpreter.run(work.arguments["code"])
            else:
                answer = episode.registry.call(work)
            turn.tell(answer)
    except BaseException:  # also KeyboardInterrupt and CancelledError
        interpreter.close()
        raise
    if episode.over:
        interpreter.close()
    return turn.done


async def adrive(episode: Episode, action: Action, interpreter: Interpreter) -> TurnWork:
    """Does the same as ``drive`` without blocking the event loop."""
    turn = _Turn(episode, action, interpreter)
    try:
        turn.begin()
        while (work := turn.work) is not None:
            answer: ExecutionResult | ToolResult | Grade
            if isinstance(work, _ToGrade):
                judge = agrade if work.is_turn else agrade_answer
                answer = await judge(work.text, work.gold, preset=work.preset, limit_s=work.limit_s)
            elif work.name == CODE_INTERPRETER:
                answer = await interpreter.arun(work.arguments["code"])
            else:
                answer = await episode.registry.acall(work)
            turn.tell(answer)
    except BaseException:  # also KeyboardInterrupt and CancelledError
        interpreter.close()
        raise
    if episode.over:
        interpreter.close()
    return turn.done


class _Turn:
    """What a turn asks for, one thing after the other.

    Attributes:
        done: What was done so far.
        work: What is to be done next; None at the end.
    """

    __slots__ = ("_steps", "done", "work")

    def __init__(self, episode: Episode, action: Action, interpreter: Interpreter):
        self.done = TurnWork()
        self.work: _Work | None = None
        self._steps = _steps(episode, action, interpreter, self.done)

    def begin(self) -> None:
        """Goes to the first thing."""
        self.work = next(self._steps, None)

    def tell(self, answer: ExecutionResult | ToolResult | Grade) -> None:
        """Takes what came of ``work``, and goes on to the next."""
        try:
            self.work = self._steps.send(answer)
        except StopIteration:
            self.work = None


def _steps(episode: Episode, action: Action, interpreter: Interpreter, done: TurnWork) -> _Steps:
    match action:
        case Feedback():
            done.observation = episode.observe(())
        case Answer():
            if episode.needs_grade:
                config = episode.config
                strict = config.grader == "strict"  # verl looks for a box of its own at the end of the whole text
                text = action.kept if strict else action.text
                grade = yield _ToGrade(text, strict, episode.problem.answer, config.grader, config.grade_limit_s)
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
