"""The order in which an environment goes through its problems."""

from __future__ import annotations

from typing import Final

import numpy as np

_MAX_SHUFFLED: Final = 1 << 18


class ProblemOrder:
    """Goes through ``n`` problems in a random order, again and again, each time in another order.

    What comes next depends only on the random generator's state when the round began. Above 2^18 problems (the
    built-in mix) each one is drawn by itself, without keeping a list of all: the same one may then come twice.
    """

    def __init__(self, n: int):
        """Makes the order.

        Args:
            n: Number of problems; at least 1.
        """
        self._n = n
        self._left: list[int] = []

    def restart(self) -> None:
        """Forgets the rest of the round, so that the next one begins with the generator as it then is."""
        self._left = []

    def next(self, rng: np.random.Generator) -> int:
        """Returns the index of the next problem."""
        if self._n > _MAX_SHUFFLED:
            return int(rng.integers(self._n))
        if not self._left:
            self._left = rng.permutation(self._n).tolist()
        return self._left.pop()
