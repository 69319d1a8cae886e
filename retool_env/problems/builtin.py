"""The built-in problems: a mix of reasoning-gym tasks that is hard to do in one's head and easy with a program.

Every family has answers that are one number, fixed by the text of the question alone, and that cannot be read off it
(simplifying a fraction is out: the unsimplified one is an equal number and would be graded as correct). Left out, too,
is calendar arithmetic: most of its questions are easy in one's head, and nothing bounds their size from below.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from retool_env.errors import ConfigurationError
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.permutation import digest
from retool_env.problems.problem import Problem
from retool_env.problems.reasoning import no_reasoning_gym

_DEFAULT_SIZE: Final = 1_000_000


class _Family(NamedTuple):
    """A task's difficulty, and a sentence that settles the form of the answer where the task leaves room."""

    config: dict[str, Any]
    form: str


FAMILIES: Final[dict[str, _Family]] = {
    "products": _Family({"min_terms": 2, "max_terms": 3, "min_digits": 6, "max_digits": 10}, ""),
    "decimal_chain_sum": _Family(
        {"min_terms": 5, "max_terms": 9, "min_digits": 6, "max_digits": 9, "max_decimal_places": 5},
        "Give the exact decimal number.",
    ),
    "count_primes": _Family({"min_n": 1_000, "max_n": 60_000}, "Answer with an integer."),
    "lcm": _Family(
        {"min_numbers": 3, "max_numbers": 4, "min_value": 200, "max_value": 5_000}, "Answer with an integer."
    ),
    "base_conversion": _Family(
        {"min_base": 2, "max_base": 10, "min_value": 10**6, "max_value": 10**10},
        "Answer with the digits in the target base, without a prefix or a suffix.",
    ),
    "simple_equations": _Family(
        {"min_terms": 3, "max_terms": 6, "min_value": 100, "max_value": 99_999},
        "Answer with the value alone.",
    ),
    "dice": _Family({"num_dice": 6, "max_dice_size": 20}, ""),
    "count_bits": _Family({"min_n": 2**40, "max_n": 2**90}, "Answer with an integer."),
    "largest_island": _Family(
        {
            "min_rows": 10,
            "max_rows": 14,
            "min_cols": 10,
            "max_cols": 14,
            "min_num_islands": 5,
            "max_num_islands": 9,
            "min_island_size": 4,
            "max_island_size": 24,
        },
        "Answer with an integer.",
    ),
}
"""The families of the mix, by reasoning-gym's own names."""


class BuiltinProblems(LazyProblems):
    """A long, lazy sequence of built-in problems: number ``i`` is made when it is asked for, always the same.

    The families take turns in a shuffled order, so that any stretch of the sequence is an even mix. Which problem
    number ``i`` is depends only on ``seed``, ``families`` and the version of reasoning-gym. Safe to share between
    threads, to copy and to pickle. The first access imports reasoning-gym, which takes a second or more.
    """

    def __init__(self, seed: int = 0, size: int = _DEFAULT_SIZE, families: Iterable[str] | None = None):
        """Makes the sequence; no problem is generated yet.

        Args:
            seed: Chooses the sequence.
            size: Its length.
            families: Names out of ``FAMILIES``; all of them by default.

        Raises:
            ConfigurationError: ``size`` is below 1, or a family is unknown.
            MissingDependencyError: reasoning-gym is not installed.
        """
        super().__init__(size)
        names = tuple(FAMILIES) if families is None else tuple(families)
        unknown = [name for name in names if name not in FAMILIES]
        if unknown or not names:
            raise ConfigurationError(f"families: {unknown or names!r} not among {', '.join(FAMILIES)}")
        if importlib.util.find_spec("reasoning_gym") is None:
            raise no_reasoning_gym("the built-in problems")
        self.seed = seed
        self.families = names
        self._prefix = "builtin" if names == tuple(FAMILIES) else f"builtin-{digest(*names):016x}"[:16]
        self._generators: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BuiltinProblems):
            return NotImplemented
        return (self.seed, self.size, self.families) == (other.seed, other.size, other.families)

    def __hash__(self) -> int:
        return hash((self.seed, self.size, self.families))

    def __repr__(self) -> str:
        return f"BuiltinProblems(seed={self.seed}, size={self.size}, families={self.families!r})"

    def __getstate__(self) -> dict[str, Any]:
        # The generators are rebuilt where they are needed; they would make the pickle large.
        return {**self.__dict__, "_generators": {}}

    def _make(self, index: int) -> Problem:
        round_number, place = divmod(index, len(self.families))
        order = list(self.families)
        random.Random(digest(self.seed, "order", round_number)).shuffle(order)
        name = order[place]
        # reasoning-gym draws a task from random.Random(seed + index): a wide hash instead of small neighbouring
        # numbers keeps two seeds from giving the same problems, shifted.
        entry = self._generator(name)[digest(self.seed, name, index)]
        question = entry["question"].strip()
        form = FAMILIES[name].form
        return Problem(
            id=f"{self._prefix}-{self.seed}-{index}",
            question=f"{question}\n{form}" if form else question,
            answer=entry["answer"].strip(),
            source=f"reasoning-gym/{name}",
            metadata={"family": name},
        )

    def _generator(self, name: str) -> Any:
        generator = self._generators.get(name)
        if generator is None:
            try:
                import reasoning_gym  # type: ignore[import-untyped]
            except ImportError as error:
                raise no_reasoning_gym("the built-in problems") from error
            generator = reasoning_gym.create_dataset(name, seed=0, **FAMILIES[name].config)
            self._generators[name] = generator
        return generator


def builtin_problems(n: int, seed: int = 0, families: Iterable[str] | None = None) -> list[Problem]:
    """Returns the first ``n`` built-in problems of a seed, as a list.

    Args:
        n: How many.
        seed: Chooses the sequence; the same seed gives the same problems in every process.
        families: Names out of ``FAMILIES``; all of them by default.

    Raises:
        ConfigurationError: ``n`` is below 1, or a family is unknown.
        MissingDependencyError: reasoning-gym is not installed.
    """
    return list(BuiltinProblems(seed, n, families))
