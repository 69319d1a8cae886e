"""``LazyProblems``: a sequence whose problems are made, or looked up, when they are asked for."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from retool_env.errors import ConfigurationError
from retool_env.problems.problem import Problem


class LazyProblems(Sequence[Problem]):
    """Problem number ``i`` is made when it is asked for, always the same. Safe to share between threads.

    Attributes:
        size: The length; ``sys.maxsize`` for a sequence without an end.
        is_shuffled: The sequence is in a random order of its own, in which it should be gone through.
    """

    is_shuffled: bool = False

    def __init__(self, size: int):
        """Sets the length.

        Raises:
            ConfigurationError: It is below 1, or more than ``sys.maxsize``.
        """
        if not 1 <= size <= sys.maxsize:
            raise ConfigurationError(f"size: must be at least 1, got {size}")
        self.size = size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self.size))]
        position = index + self.size if index < 0 else index
        if not 0 <= position < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        return self._make(position)

    @abstractmethod
    def _make(self, index: int) -> Problem:
        """Returns problem number ``index``, which is at least 0 and less than ``size``."""
