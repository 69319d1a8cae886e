"""The table that figures are taken from: a row of numbers for each counted attempt."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from retool_env.report.facts import AttemptFacts
from retool_env.sandbox.api import ExecutionStatus

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SECONDS: Final = ("generate_s", "elapsed_s", "run_s", "cpu_s", "queue_s", "grade_s")
"""The columns of times."""

COLUMNS: Final = (
    "problem", "correct", "reward", "bonus", "turns", "feedback", "blocks", "ran", "passed", "last_passed", "failed",
    "repaired", "timeouts", "memory", "idle", "silent", "repeated", "constant", "code_lines", "first_turn",
    "first_position", "policy_chars", "response_chars", "sampled_tokens", "response_tokens", "fabricated", *SECONDS,
)  # fmt: skip
"""What is kept of a counted attempt, a number each; NaN where there is none."""


def row(problem: int, facts: AttemptFacts) -> tuple[float, ...]:
    """Returns an attempt's numbers, in the order of ``COLUMNS``.

    Args:
        problem: Number of the problem.
        facts: A counted attempt.
    """
    blocks, tokens = facts.blocks, facts.tokens
    ran = [block for block in blocks if block.status.ran]
    return (
        problem,
        facts.verdict == "correct",
        facts.reward,
        facts.bonus,
        facts.n_turns,
        facts.n_feedback,
        len(blocks),
        len(ran),
        facts.n_passed,
        ran[-1].passed if ran else math.nan,
        facts.failed,
        facts.repaired,
        sum(block.status is ExecutionStatus.TIMEOUT for block in ran),
        sum(block.status is ExecutionStatus.MEMORY for block in ran),
        sum(block.idle for block in ran),
        sum(block.silent for block in ran),
        sum(block.repeated for block in ran),
        sum(block.constant for block in ran),
        sum(block.lines for block in blocks),
        math.nan if facts.first_turn is None else facts.first_turn,
        math.nan if facts.first_position is None else facts.first_position,
        facts.policy_chars,
        facts.response_chars,
        math.nan if tokens is None else tokens.sampled,
        math.nan if tokens is None else tokens.response,
        facts.fabricated,
        facts.generate_s,
        facts.elapsed_s,
        sum(block.wall_s for block in blocks),
        sum(block.cpu_s for block in blocks),
        sum(block.queue_s for block in blocks),
        facts.grade_s,
    )
