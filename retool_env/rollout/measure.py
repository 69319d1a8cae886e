"""``measure``: the figures of an attempt that trainers log, the same keys for every attempt."""

from __future__ import annotations

from typing import Final

from retool_env.protocol.base import EndReason
from retool_env.rollout.attempt import AttemptResult
from retool_env.sandbox.api import ExecutionStatus
from retool_env.trajectory import ExecutionRecord

METRICS: Final = (
    "acc", "answered", "turns", "tool_calls", "errors", "timeouts", "other_failures", "feedback", "fabricated",
    "cut_by_length", "shortened", "resumes", "fault",
)  # fmt: skip
"""The keys; all values are finite numbers."""


def measure(result: AttemptResult | None) -> dict[str, float]:
    """Returns the figures of an attempt, ``METRICS``; None stands for one that was lost without a trace."""
    values = dict.fromkeys(METRICS, 0.0)
    if result is None:
        return {**values, "fault": 1.0}
    outcome, turns = result.outcome, result.record.turns
    status = [run.status for turn in turns for run in turn.results if isinstance(run, ExecutionRecord)]
    failed = (ExecutionStatus.MEMORY, ExecutionStatus.OUTPUT_LIMIT, ExecutionStatus.KILLED)
    values |= {
        "acc": outcome.correct,
        "answered": outcome.answer is not None,
        "turns": outcome.turns,
        "tool_calls": outcome.tool_calls,
        "errors": status.count(ExecutionStatus.ERROR),
        "timeouts": status.count(ExecutionStatus.TIMEOUT),
        "other_failures": sum(map(status.count, failed)),
        "feedback": sum(turn.action == "feedback" for turn in turns),
        "fabricated": outcome.fabricated,
        "cut_by_length": outcome.ended is EndReason.MAX_LENGTH,
        "shortened": result.n_shortened,
        "resumes": result.resumes,
        "fault": outcome.fault,
    }
    return {key: float(value) for key, value in values.items()}
