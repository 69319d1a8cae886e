"""Many attempts: read from a file one at a time, described in a line each, filtered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from retool_env.errors import TrajectoryError
from retool_env.protocol.base import EndReason
from retool_env.report.blocks import Verdict, verdict
from retool_env.sandbox.api import ExecutionStatus
from retool_env.trajectory import ExecutionRecord, Trajectory


@dataclass(frozen=True, slots=True)
class Attempt:
    """A recorded attempt, with what lists and filters want to know of it.

    Attributes:
        number: Its line in the file, from 1.
        trajectory: The record.
        verdict: How it came out.
        ended: Why it ended; None while it goes on.
        reward: What it was paid; None while it goes on.
        tool_calls: Calls that ran, of any tool.
        timed_out: Code ran into its time limit, or the answer could not be compared within the grader's.
        elapsed_s: Seconds of all its turns, without the policy's own time.
    """

    number: int
    trajectory: Trajectory
    verdict: Verdict
    ended: EndReason | None
    reward: float | None
    tool_calls: int
    timed_out: bool
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that could not be read.

    Attributes:
        number: The line, from 1.
        reason: What is wrong with it.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which attempts are wanted: those that meet every condition that is set.

    Attributes:
        wrong: Not correct, and not through a fault of the sandbox or the engine.
        timed_out: As in ``Attempt``.
        tool_used: A call ran.
        ended: Ended for this reason.
        number: Stands on this line.
        problem: An attempt at the problem with this id.
    """

    wrong: bool = False
    timed_out: bool = False
    tool_used: bool = False
    ended: EndReason | None = None
    number: int | None = None
    problem: str | None = None

    def matches(self, attempt: Attempt) -> bool:
        """Whether the attempt is wanted."""
        return (
            (not self.wrong or attempt.verdict == "wrong")
            and (not self.timed_out or attempt.timed_out)
            and (not self.tool_used or attempt.tool_calls > 0)
            and self.ended in (None, attempt.ended)
            and self.number in (None, attempt.number)
            and self.problem in (None, attempt.trajectory.problem.id)
        )


def read_attempts(stream: BinaryIO, last: int | None = None) -> Iterator[Attempt | Damaged]:
    """Yields what every line holds that is not blank, in order; one line at a time is in memory.

    Args:
        stream: JSON lines, as ``write_jsonl`` writes them.
        last: Lines after this one are not read; all are if it is None.

    Raises:
        OSError: The file cannot be read on.
    """
    for number, line in enumerate(stream, start=1):
        if last is not None and number > last:
            return
        if not line.strip():
            continue
        try:
            trajectory = Trajectory.from_json(line, where=f"line {number}")
        except TrajectoryError as error:
            yield Damaged(number, str(error))
        else:
            yield describe(number, trajectory)


def describe(number: int, trajectory: Trajectory) -> Attempt:
    """Returns an attempt with what is known of it in short."""
    outcome, turns = trajectory.outcome, trajectory.turns
    executions = [result for turn in turns for result in turn.results if isinstance(result, ExecutionRecord)]
    others = sum(len(turn.results) for turn in turns) - len(executions)
    ran = sum(execution.status.ran for execution in executions) + others
    return Attempt(
        number=number,
        trajectory=trajectory,
        verdict=verdict(outcome),
        ended=trajectory.ended,
        reward=None if outcome is None else outcome.reward,
        tool_calls=ran if outcome is None else outcome.tool_calls,
        timed_out=any(execution.status is ExecutionStatus.TIMEOUT for execution in executions)
        or any(turn.grade is not None and turn.grade.timed_out for turn in turns),
        elapsed_s=sum(turn.elapsed_s for turn in turns),
    )
