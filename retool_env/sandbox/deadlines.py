"""Deadlines: which running program is to be looked at next, and when."""

from __future__ import annotations

import heapq
import itertools

from retool_env.sandbox.execution import Job

_LEFT_BEHIND = 64
"""Entries of jobs that are done which may stay, beside as many again as there are running ones."""


class Deadlines:
    """Jobs by their deadline. A job that is done leaves at some later time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, job: Job) -> None:
        """Has a job looked at when its deadline has come."""
        heapq.heappush(self._heap, (job.deadline, next(self._order), job))

    def first(self) -> float | None:
        """Returns the next deadline, on the monotonic clock; None if there is none."""
        while self._heap and self._heap[0][2].future.done():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> Job | None:
        """Takes a job whose deadline has come; None if there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def tidy(self, running: int) -> None:
        """Drops the jobs that are done, once they are far more than the running ones."""
        if len(self._heap) > 2 * running + _LEFT_BEHIND:
            self._heap = [entry for entry in self._heap if not entry[2].future.done()]
            heapq.heapify(self._heap)
