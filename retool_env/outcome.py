"""``Outcome``: how an attempt came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from retool_env.protocol.base import EndReason

FAULTS: Final = frozenset({EndReason.ABORTED, EndReason.SANDBOX_UNAVAILABLE, EndReason.GRADE_TIMEOUT})
"""Ends that are not the policy's fault: they pay 0.0 whatever the reward table, and belong masked out or dropped."""


class Outcome(NamedTuple):
    """How an attempt came out.

    Attributes:
        reward: What the reward table pays; 0.0 after a fault.
        correct: The answer was graded as right.
        answer: The final answer, or None if none was given.
        tool_calls: Calls that ran, of any tool. Malformed calls and failures of the sandbox do not count.
        interpreter_calls: Those of ``code_interpreter``: ``turns`` in the documentation's reward table.
        turns: Turns of text read.
        ended: Why the attempt ended.
        fabricated: The policy invented an observation in at least one turn.
        breakdown: The parts of the reward, by name. Empty after a fault.
    """

    reward: float
    correct: bool
    answer: str | None
    tool_calls: int
    interpreter_calls: int
    turns: int
    ended: EndReason
    fabricated: bool
    breakdown: Mapping[str, float]

    @property
    def fault(self) -> bool:
        """Whether the attempt failed through no fault of the policy, so that it should not be learned from."""
        return self.ended in FAULTS
