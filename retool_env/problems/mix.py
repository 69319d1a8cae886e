"""``Mix``: problems from several sources in given shares, without an end, each source reshuffled every time round."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Final

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.load import ProblemSource, load_problems
from retool_env.problems.permutation import permuted, shuffle
from retool_env.problems.problem import Problem

_BLOCK: Final = 64
_N_PROBED: Final = 8


class Mix(LazyProblems):
    """A lazy sequence that takes from each source its share, in a random order fixed by a seed, and has no end.

    Each source is gone through once before any of its problems comes again, every time in another order (an epoch of
    that source). After every 64 problems each source has had its share, to within the number of sources. What comes at
    position i depends only on the arguments, not on the platform, the version of Python or what was asked for before,
    and costs the same wherever it is. A source that is a mix itself, or a shard of one, is taken in its own order.

    Safe to share between threads, to copy and to pickle.
    """

    is_shuffled = True

    def __init__(self, sources: Iterable[tuple[ProblemSource, float]], seed: int = 0, size: int | None = None):
        """Makes the mix; the sources are loaded.

        Args:
            sources: Pairs of what ``load_problems`` takes and a weight; only the ratio of the weights matters.
            seed: Chooses the order, and the problems of built-in sources and tasks given as text.
            size: Where the sequence ends; by default not at all, and ``len`` is ``sys.maxsize``.

        Raises:
            ConfigurationError: There is no source, or a weight is not a positive number.
            ProblemError: Two sources have a problem with the same id; or as for ``load_problems``.
            MissingDependencyError: As for ``load_problems``.
        """
        super().__init__(sys.maxsize if size is None else size)
        pairs = list(sources)
        if not pairs:
            raise ConfigurationError("sources: there is none; give pairs of a source and its weight")
        self.seed = seed
        self._weights = _whole([_weight(pair, number) for number, pair in enumerate(pairs)])
        self.sources: tuple[Sequence[Problem], ...] = tuple(load_problems(pair[0], seed) for pair in pairs)
        _refuse_shared_ids(self.sources)

    def __repr__(self) -> str:
        total = sum(self._weights)
        shares = [f"{w / total:.1%} of {len(s)} problems" for s, w in zip(self.sources, self._weights, strict=True)]
        return f"Mix({', '.join(shares)}; seed={self.seed})"

    def _make(self, index: int) -> Problem:
        source, turn = self._turn(index)
        problems = self.sources[source]
        if isinstance(problems, LazyProblems) and problems.is_shuffled:
            return problems[turn % len(problems)]
        epoch, place = divmod(turn, len(problems))
        return problems[permuted(place, len(problems), self.seed, source, epoch)]

    def _turn(self, index: int) -> tuple[int, int]:
        """Returns which source position ``index`` belongs to, and how many positions before it do.

        How many of a block each source has is exact arithmetic; where in the block they stand is random. Without that,
        every second position of an even mix would be the same source: all of one rank's.
        """
        if len(self.sources) == 1:
            return 0, index
        block, place = divmod(index, _BLOCK)
        before, after = self._counts(block * _BLOCK), self._counts((block + 1) * _BLOCK)
        slots = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) for _ in range(new - old)]
        order = shuffle(slots, self.seed, "block", block)
        source = order[place]
        return source, before[source] + order[:place].count(source)

    def _counts(self, n: int) -> list[int]:
        """How many of the first ``n`` positions each source has; never falls as ``n`` grows."""
        counts = []
        rest = sum(self._weights)
        for weight in self._weights:
            counts.append(n * weight // rest)
            n -= counts[-1]
            rest -= weight
        return counts


def shuffled(source: ProblemSource, seed: int = 0, size: int | None = None) -> Mix:
    """Returns the problems of one source in a random order fixed by the seed, again and again, each time in another.

    Args:
        source: What ``load_problems`` takes.
        seed: Chooses the order.
        size: Where the sequence ends; by default not at all.

    Raises:
        ConfigurationError: As for ``load_problems``.
        ProblemError: As for ``load_problems``.
        MissingDependencyError: As for ``load_problems``.
    """
    return Mix([(source, 1)], seed, size)


def _weight(pair: object, number: int) -> Fraction:
    """Returns the weight of a pair, exactly."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise ConfigurationError(f"sources[{number}]: must be a pair of a source and its weight, got {pair!r:.80}")
    try:
        weight = float(pair[1])
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ConfigurationError(f"sources[{number}]: a weight must be a positive number, got {pair[1]!r:.80}")
    return Fraction(weight)


def _whole(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Returns whole numbers in the same ratio."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    return tuple(int(weight * scale) for weight in weights)


def _refuse_shared_ids(sources: Sequence[Sequence[Problem]]) -> None:
    """Checks all of the sources that are lists, and the first problems of the lazy ones, whose ids follow a pattern."""
    if len(sources) == 1:
        return
    ids = [
        {problem.id for problem in (source[:_N_PROBED] if isinstance(source, LazyProblems) else source)}
        for source in sources
    ]
    for (one, first), (two, second) in combinations(enumerate(ids), 2):
        if shared := min(first & second, default=None):
            raise ProblemError(
                f"sources[{one}] and sources[{two}] both have a problem with the id {shared!r:.80}; name a column of "
                "ids, give problems ids of your own, or let generators have different seeds"
            )
