"""What a group of rollouts of one problem came to: the advantages that GRPO learns from."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from retool_env.errors import ConfigurationError
from retool_env.outcome import Outcome
from retool_env.problems.problem import Problem

Std = Literal["sample", "population"]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a group came to, as GRPO (arXiv 2402.03300) looks at it.

    Rollouts that ended through a fault (``outcomes[agent].fault``) are not the policy's doing: they are left out of
    the mean and the standard deviation, and their advantage is 0.0.

    Attributes:
        problem: The problem of all of them.
        outcomes: How each one came out.
        rewards: What each one was paid.
        correct: Whether the answer of each one was right.
        mean: Mean of the rewards.
        std: Their standard deviation; 0.0 where there are fewer than two.
        advantages: ``(reward - mean) / (std + eps)``; exactly 0.0 where all rewards are the same.
    """

    problem: Problem
    outcomes: dict[str, Outcome]
    rewards: dict[str, float]
    correct: dict[str, bool]
    mean: float
    std: float
    advantages: dict[str, float]


def compare_rollouts(
    problem: Problem, outcomes: Mapping[str, Outcome], *, std: Std = "sample", eps: float = 1e-6
) -> GroupResult:
    """Compares the rollouts of one problem with one another.

    Args:
        problem: The problem.
        outcomes: How each rollout came out, by name.
        std: How the standard deviation is taken: of a sample (divided by n - 1), as verl and TRL do with
            ``torch.std``; or of the whole population (divided by n). The paper does not say which.
        eps: Added to the standard deviation: 1e-6 as in verl; TRL adds 1e-4.

    Raises:
        ConfigurationError: ``std`` is neither, or ``eps`` is not above 0.
    """
    if std not in ("sample", "population"):
        raise ConfigurationError(f"std: must be 'sample' or 'population', got {std!r:.100}")
    if not eps > 0:
        raise ConfigurationError(f"eps: must be above 0, got {eps!r}")
    paid = [outcome.reward for outcome in outcomes.values() if not outcome.fault]
    # ``statistics`` computes exactly: the mean of equal rewards is that very reward.
    mean = statistics.mean(paid) if paid else 0.0
    deviation = statistics.stdev if std == "sample" else statistics.pstdev
    spread = deviation(paid) if len(paid) > 1 else 0.0
    return GroupResult(
        problem=problem,
        outcomes=dict(outcomes),
        rewards={agent: outcome.reward for agent, outcome in outcomes.items()},
        correct={agent: outcome.correct for agent, outcome in outcomes.items()},
        mean=mean,
        std=spread,
        advantages={
            agent: 0.0 if outcome.fault else (outcome.reward - mean) / (spread + eps)
            for agent, outcome in outcomes.items()
        },
    )
