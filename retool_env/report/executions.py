"""How blocks of code ended, over all attempts. What is kept does not grow with what untrusted code makes up."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retool_env.report.facts import BlockFacts
from retool_env.sandbox.metrics import KNOWN_ERRORS, MAX_UNKNOWN_ERRORS, OTHER, SECONDS_BOUNDS, Histogram


@dataclass(frozen=True, slots=True)
class Executions:
    """How blocks ended, of all attempts, faults included.

    Attributes:
        blocks: How many there were.
        statuses: How many ended with each status.
        error_classes: How many raised what, the commonest first; names are the code's own claim. Python's own and 64
            others are kept by name.
        retries: Executions that were repeated because the sandbox failed.
        latency: Seconds of the blocks that ended by themselves, as ``Histogram.as_dict`` returns them.
        queue: Seconds that blocks waited for their turn; the same.
    """

    blocks: int
    statuses: Mapping[str, int]
    error_classes: Mapping[str, int]
    retries: int
    latency: Mapping[str, Any]
    queue: Mapping[str, Any]


class ExecutionTally:
    """Counts blocks."""

    def __init__(self) -> None:
        self.retries = 0
        self._statuses: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._n_unknown = 0
        self._latency = _Buckets()
        self._queue = _Buckets()

    def add(self, block: BlockFacts) -> None:
        """Counts a block."""
        self._statuses[block.status.value] += 1
        if block.error_class:
            self._errors[self._name(block.error_class)] += 1
        if block.status in ("ok", "error"):
            self._latency.add(block.wall_s)
        self._queue.add(block.queue_s)

    def _name(self, error_class: str) -> str:
        if error_class in KNOWN_ERRORS or error_class in self._errors:
            return error_class
        if self._n_unknown >= MAX_UNKNOWN_ERRORS:
            return OTHER
        self._n_unknown += 1
        return error_class

    def result(self) -> Executions:
        """Returns what was counted."""
        return Executions(
            blocks=self._statuses.total(),
            statuses=dict(self._statuses.most_common()),
            error_classes=dict(self._errors.most_common()),
            retries=self.retries,
            latency=self._latency.histogram().as_dict(),
            queue=self._queue.histogram().as_dict(),
        )


class _Buckets:
    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self._sum = self._max = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(SECONDS_BOUNDS, value)] += 1
        self._sum += value
        self._max = max(self._max, value)

    def histogram(self) -> Histogram:
        return Histogram(SECONDS_BOUNDS, tuple(self._counts), self._sum, self._max)
