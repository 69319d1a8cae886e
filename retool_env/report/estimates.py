"""The estimators of a report: pass@k, maj@k and bootstrap intervals. Pure functions of numbers.

pass@k is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, section 2.1). maj@k is the vote of
self-consistency (Wang et al. 2022, arXiv 2203.11171), here as its expected value over all subsets of k attempts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_EXACT_VOTES: Final = 256
"""Up to so many attempts at a problem maj@k is exact; beyond, it is the mean over seeded subsets."""

_SUBSETS: Final = 10_000
_MIN_SUBSETS: Final = 500
_MAX_DRAWN: Final = 10_000_000
_CHUNK: Final = 2_000_000


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Estimates how likely one of k attempts is right: 1 - C(n - correct, k) / C(n, k). Unbiased, and exact.

    Args:
        n: Attempts that were made.
        correct: Those that are right.
        k: From 1 to n.

    Raises:
        ValueError: ``k`` is not from 1 to n, or ``correct`` not from 0 to n.
    """
    _check(n, correct, k)
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - correct, k)) / subsets


def majority_at_k(
    correct: int, others: Sequence[int], silent: int, ks: Sequence[int], seed: int = 0
) -> dict[int, float]:
    """Estimates how likely the commonest answer of k attempts is the right one, over all subsets of k attempts.

    Answers that are as common as each other share the vote evenly: with t of them at the top, the right one among them,
    it counts 1/t. Attempts without an answer have no vote; if nobody votes, the vote is wrong.

    Exact (up to rounding of sums of positive terms) for up to ``MAX_EXACT_VOTES`` attempts, else by seeded sampling.

    Args:
        correct: Attempts with the right answer.
        others: How often each wrong answer was given; positive.
        silent: Attempts without an answer.
        ks: Sizes of the vote, each from 1 to the number of attempts.
        seed: Of the sampling.

    Raises:
        ValueError: A size is out of its range, or a count is negative.
    """
    n = correct + sum(others) + silent
    if min((correct, silent, *others)) < 0:
        raise ValueError("counts must not be negative")
    for k in ks:
        _check(n, correct, k)
    if not others or not correct:
        # With the right answer alone, the vote is right as soon as anybody votes for it.
        return {k: pass_at_k(n, correct, k) for k in ks}
    if n > MAX_EXACT_VOTES:
        return {k: _sampled_vote(correct, others, silent, k, seed) for k in ks}
    top = max(ks, default=0)
    totals = np.zeros(top + 1)
    for votes in range(1, min(correct, top) + 1):
        shares = _vote_shares(votes, others, silent, top - votes)
        totals[votes:] += float(math.comb(correct, votes)) * shares
    return {k: float(min(1.0, totals[k] / math.comb(n, k))) for k in ks}


def _vote_shares(votes: int, others: Sequence[int], silent: int, top: int) -> Floats:
    """The sum of 1/t over the ways to choose 0 to ``top`` of the other attempts, no answer more often than ``votes``.

    A polynomial in x, whose power counts the chosen attempts, for each number of answers tied with the right one.
    """
    tied = [count for count in others if count >= votes]
    free = n_free = silent + sum(others) - sum(tied)
    row = np.array([float(math.comb(free, i)) for i in range(min(top, n_free) + 1)])
    ways = np.zeros((len(tied) + 1, top + 1))
    ways[0, : row.size] = row
    for number, count in enumerate(tied):
        below = ways[: number + 1].copy()
        ways[: number + 1] = 0.0
        for i in range(min(votes, top + 1)):
            ways[: number + 1, i:] += math.comb(count, i) * below[:, : top + 1 - i]
        if votes <= top:
            ways[1 : number + 2, votes:] += math.comb(count, votes) * below[:, : top + 1 - votes]
    weights = 1.0 / np.arange(1, len(tied) + 2)
    return np.asarray(weights @ ways)


def _sampled_vote(correct: int, others: Sequence[int], silent: int, k: int, seed: int) -> float:
    """The mean over subsets: 10,000, or 500 and more where there are so many answers that it would take too long."""
    generator = np.random.default_rng([seed, correct, silent, k])
    total = 0.0
    subsets = left = max(_MIN_SUBSETS, min(_SUBSETS, _MAX_DRAWN // len(others)))
    step = max(1, _CHUNK // (len(others) + 2))
    while left:
        size = min(step, left)
        drawn = generator.multivariate_hypergeometric([correct, *others, silent], k, size=size, method="marginals")
        right, rest = drawn[:, 0], drawn[:, 1:-1]
        wins = (right > 0) & (right >= rest.max(axis=1))
        total += float((wins / (1 + (rest == right[:, None]).sum(axis=1))).sum())
        left -= size
    return total / subsets


def bootstrap(
    numerators: Floats, denominators: Floats, *, n_bootstrap: int, seed: int, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Returns percentile intervals of ratios of sums over problems, by drawing the problems again with replacement.

    All ratios are taken over the same draws. A problem is drawn with all its attempts, so that attempts at one problem,
    which are alike, do not pass for independent ones. What varies is which problems there are and what came of their
    attempts, together.

    Args:
        numerators: Shape (problems, ratios).
        denominators: The same shape; 0.0 where a problem has no part in a ratio.
        n_bootstrap: How often.
        seed: Fixes the draws.
        level: How much of the distribution the intervals hold.

    Returns:
        Lower and upper ends, one for each ratio; NaN where there are not two problems with a part in it.
    """
    n_problems, n_ratios = numerators.shape
    low, high = np.full(n_ratios, np.nan), np.full(n_ratios, np.nan)
    wanted = (denominators > 0).sum(axis=0) >= 2
    if n_bootstrap < 1 or not wanted.any():
        return low, high
    generator = np.random.default_rng(seed)
    drawn: list[Floats] = []
    left, step = n_bootstrap, max(1, _CHUNK // n_problems)
    while left:
        size = min(step, left)
        counts = generator.multinomial(n_problems, np.full(n_problems, 1.0 / n_problems), size=size).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn.append((counts @ numerators) / (counts @ denominators))
        left -= size
    ratios = np.concatenate(drawn)[:, wanted]
    # A draw of problems none of which has a part in a ratio says nothing about it.
    tail = 50.0 * (1.0 - level)
    low[wanted], high[wanted] = np.nanpercentile(ratios, [tail, 100.0 - tail], axis=0)
    return low, high


def _check(n: int, correct: int, k: int) -> None:
    if not 0 <= correct <= n:
        raise ValueError(f"correct: must be from 0 to {n}, got {correct}")
    if not 1 <= k <= n:
        raise ValueError(f"k: must be from 1 to {n}, got {k}")
