"""What ReTool's own analysis looks at (arXiv 2504.11536): how the policy uses code, and what comes of it.

The paper draws these over training steps: response length, share of responses with code, lines of code, correct
answers with code, pass rate of the last block for correct and wrong answers, and where in the response the first block
is. Here they are figures of one run, over all its counted attempts, the correct ones and the wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retool_env.report.columns import COLUMNS, Bools, Floats


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread over attempts; None where there is no value.

    Attributes:
        n: How many values there are.
        mean: Their mean.
        p10: Their 10th percentile.
        p50: Their median.
        p90: Their 90th percentile.
        max: The largest.
    """

    n: int
    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How attempts went. Ratios are from 0 to 1; None where nothing is there to be counted.

    Attributes:
        attempts: How many attempts there are.
        code_ratio: Share of attempts with a block of code.
        with_code: How many these are; among correct attempts it is the paper's count of correct answers with code.
        blocks: Blocks of an attempt.
        code_lines: Lines of code of an attempt that has any, blank lines left out.
        pass_rate: Share of all blocks that passed, of those that ran.
        last_pass_rate: Share of attempts whose last block passed, of those in which one ran.
        first_turn: Turn of the first block, from 1.
        first_position: Share of the response before the first block, in characters.
        turns: Turns of an attempt.
        policy_chars: Characters the policy wrote.
        response_chars: The same with what it was shown.
        sampled_tokens: Tokens the policy sampled.
        response_tokens: The same with what it was shown.
        failed_ratio: Share of attempts in which a block failed.
        repaired_ratio: Share of these in which a later block passed: self-correction, where the attempts are correct.
        repaired: How many these are.
        timeout_ratio: Share of attempts in which a block ran out of time.
        memory_ratio: Share of attempts in which a block ran out of memory.
        feedback_ratio: Share of attempts with a turn that was answered with feedback, such as a malformed call.
        fabricated_ratio: Share of attempts that invent an observation.
        idle_ratio: Share of blocks that can have told the policy nothing new.
        reward: Reward of an attempt.
    """

    attempts: int
    code_ratio: float | None
    with_code: int
    blocks: Spread
    code_lines: Spread
    pass_rate: float | None
    last_pass_rate: float | None
    first_turn: Spread
    first_position: Spread
    turns: Spread
    policy_chars: Spread
    response_chars: Spread
    sampled_tokens: Spread
    response_tokens: Spread
    failed_ratio: float | None
    repaired_ratio: float | None
    repaired: int
    timeout_ratio: float | None
    memory_ratio: float | None
    feedback_ratio: float | None
    fabricated_ratio: float | None
    idle_ratio: float | None
    reward: Spread


def behaviour(table: Floats, wanted: Bools) -> Behaviour:
    """Returns how some attempts went.

    Args:
        table: A ``row`` for each counted attempt, shape (attempts, columns).
        wanted: Which of them.
    """
    column = dict(zip(COLUMNS, table[wanted].T, strict=True))
    n = int(wanted.sum())
    has_code = column["blocks"] > 0

    def ratio(part: float, whole: float) -> float | None:
        return float(part) / float(whole) if whole > 0 else None

    def share(name: str) -> float | None:
        return ratio((column[name] > 0).sum(), n)

    last = column["last_passed"]
    return Behaviour(
        attempts=n,
        code_ratio=share("blocks"),
        with_code=int(has_code.sum()),
        blocks=spread(column["blocks"]),
        code_lines=spread(column["code_lines"][has_code]),
        pass_rate=ratio(column["passed"].sum(), column["ran"].sum()),
        last_pass_rate=ratio(np.nansum(last), np.isfinite(last).sum()),
        first_turn=spread(column["first_turn"]),
        first_position=spread(column["first_position"]),
        turns=spread(column["turns"]),
        policy_chars=spread(column["policy_chars"]),
        response_chars=spread(column["response_chars"]),
        sampled_tokens=spread(column["sampled_tokens"]),
        response_tokens=spread(column["response_tokens"]),
        failed_ratio=share("failed"),
        repaired_ratio=ratio(column["repaired"].sum(), column["failed"].sum()),
        repaired=int(column["repaired"].sum()),
        timeout_ratio=share("timeouts"),
        memory_ratio=share("memory"),
        feedback_ratio=share("feedback"),
        fabricated_ratio=share("fabricated"),
        idle_ratio=ratio(column["idle"].sum(), column["ran"].sum()),
        reward=spread(column["reward"]),
    )


def spread(values: Floats) -> Spread:
    """Returns how values are spread; those that are not finite are left out."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Spread(0, None, None, None, None, None)
    p10, p50, p90 = np.percentile(finite, [10, 50, 90])
    return Spread(finite.size, float(finite.mean()), float(p10), float(p50), float(p90), float(np.max(finite)))
