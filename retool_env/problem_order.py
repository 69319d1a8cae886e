"""The order in which an environment goes through its problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retool_env.problems.permutation import permuted

if TYPE_CHECKING:
    import numpy as np


class ProblemOrder:
    """Goes through ``n`` problems in a random order, again and again, each time in another order.

    What comes next depends only on the random generator's state when the round began. No list of all problems is kept,
    so there may be any number of them.
    """

    def __init__(self, n: int, is_shuffled: bool = False):
        """Makes the order.

        Args:
            n: Number of problems; at least 1.
            is_shuffled: They are in a random order already (a ``Mix``), in which they should be gone through: a round
                is that order from a random place on, so that it keeps its shares and epochs.
        """
        self._n = n
        self._is_shuffled = is_shuffled
        self._key = 0
        self._left = 0

    def restart(self) -> None:
        """Forgets the rest of the round, so that the next one begins with the generator as it then is."""
        self._left = 0

    def next(self, rng: np.random.Generator) -> int:
        """Returns the index of the next problem."""
        if self._left == 0:
            self._key = int(rng.integers(1 << 62))
            self._left = self._n
        place = self._n - self._left
        self._left -= 1
        return (self._key + place) % self._n if self._is_shuffled else permuted(place, self._n, self._key)
