"""``shard``: one rank's part of a sequence of problems, for distributed use."""

from __future__ import annotations

from collections.abc import Sequence

from retool_env.errors import ConfigurationError
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.load import ProblemSource, load_problems
from retool_env.problems.problem import Problem


class Shard(LazyProblems):
    """Every ``world_size``-th problem of a sequence, from number ``rank`` on. Made by ``shard``."""

    def __init__(self, problems: Sequence[Problem], rank: int, world_size: int):
        self.problems = problems
        self.rank = rank
        self.world_size = world_size
        self.is_shuffled = isinstance(problems, LazyProblems) and problems.is_shuffled
        super().__init__((len(problems) - rank + world_size - 1) // world_size)

    def __repr__(self) -> str:
        return f"Shard({self.rank} of {self.world_size}: {self.size} problems)"

    def _make(self, index: int) -> Problem:
        return self.problems[self.rank + index * self.world_size]


def shard(source: ProblemSource, rank: int, world_size: int) -> Shard:
    """Returns the part of a sequence of problems that belongs to one rank.

    The parts of all ranks have no position in common, together they are the whole, and their sizes differ by at most
    one. Nothing is copied: a part of a ``Mix`` without an end has none either. All ranks must give the same source,
    with the same seed.

    Args:
        source: What ``load_problems`` takes.
        rank: Which part, from 0.
        world_size: How many parts.

    Raises:
        ConfigurationError: ``rank`` is not below ``world_size``, or there are fewer problems than ranks; or as for
            ``load_problems``.
        ProblemError: As for ``load_problems``.
        MissingDependencyError: As for ``load_problems``.
    """
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank: must be at least 0 and less than world_size={world_size}, got {rank}")
    problems = load_problems(source)
    if len(problems) < world_size:
        raise ConfigurationError(f"world_size: {world_size} ranks cannot share {len(problems)} problems")
    return Shard(problems, rank, world_size)
