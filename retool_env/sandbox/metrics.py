"""What a sandbox counts: ``Metrics`` takes note of every call, ``SandboxMetrics`` is what it knows at one moment.

Everything but the gauges is counted from the sandbox's start and only ever grows: the difference of two snapshots is
what happened between them. The memory it takes grows neither with the number of calls nor with what untrusted code
makes up.
"""

from __future__ import annotations

import builtins
import math
import os
import signal
import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.finalizer import Living

SECONDS_BOUNDS: Final = tuple(
    float(f"{mantissa}e{exponent}") for exponent in range(-5, 3) for mantissa in (1, 1.5, 2.2, 3.3, 4.7, 6.8)
)
"""Upper bounds of the buckets of times, in seconds: six a decade, from 10 microseconds to 680 seconds."""

CHARS_BOUNDS: Final = tuple(float(1 << power) for power in range(4, 25))
"""Upper bounds of the buckets of code lengths, in characters: powers of two, from 16 to 2^24."""

OTHER: Final = "other"
"""Where error classes are counted that are not kept by name."""

MAX_UNKNOWN_ERRORS: Final = 64
"""Error classes kept by name beside the known ones: their names are the code's to choose."""

_MAX_NAME_CHARS: Final = 64

KNOWN_ERRORS: Final = frozenset(
    {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)}
    | {number.name for number in signal.Signals}
    | {"SessionLost", "Cancelled"}
)
"""Error classes that are always kept by name: Python's own exceptions, the signals, and the sandbox's own words."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How one quantity was distributed: counts in fixed buckets.

    Attributes:
        bounds: Upper bounds of the buckets, ascending. A value equal to a bound is in that bound's bucket.
        counts: How many values fell into each bucket; one more than bounds, for what is above the last.
        sum: Sum of the values.
        max: The largest value; 0.0 if there is none.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    max: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def mean(self) -> float:
        """Returns the mean, which is exact; NaN if there is no value."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """Estimates the value that this share of the values do not exceed; NaN if there is no value.

        The estimate lies in the right bucket, on a straight line between its bounds, and never above ``max``: it is off
        by at most the ratio of the bucket's bounds (1.5 for times from 10 microseconds to 680 seconds).

        Args:
            share: From 0 to 1.

        Raises:
            ValueError: The share is not from 0 to 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share: must be from 0 to 1, got {share!r}")
        rank = share * self.count
        below = 0
        for number, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = self.bounds[number - 1] if number else 0.0
                high = min(self.bounds[number], self.max) if number < len(self.bounds) else self.max
                return low + (high - low) * max(0.0, rank - below) / count
            below += count
        return math.nan

    def p50(self) -> float:
        """Estimates the median; see ``quantile``."""
        return self.quantile(0.5)

    def p99(self) -> float:
        """Estimates the 99th percentile; see ``quantile``."""
        return self.quantile(0.99)

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON.

        ``count``, ``sum``, ``max``; ``mean``, ``p50`` and ``p99``, None if there is no value; ``bounds`` and ``counts``
        as in the class.
        """
        shown: dict[str, Any] = {"count": self.count, "sum": self.sum, "max": self.max}
        for name, value in (("mean", self.mean()), ("p50", self.p50()), ("p99", self.p99())):
            shown[name] = None if math.isnan(value) else value
        return {**shown, "bounds": list(self.bounds), "counts": list(self.counts)}


@dataclass(frozen=True, slots=True)
class SandboxMetrics:
    """What a sandbox has done since its start, and what it is doing now.

    Attributes:
        status: Calls by ``ExecutionStatus`` (every one of them is there), sessions' calls among them.
        errors: Calls by error class, of those that have one. Apart from ``KNOWN_ERRORS``, the names are the code's to
            choose: the first ``MAX_UNKNOWN_ERRORS`` are kept, if they are ASCII identifiers of at most 64 characters,
            and all others are counted as ``"other"``.
        wall_s: Latency: seconds from the start of the code to its verdict. This and the other histograms are of calls
            whose code was started: not those that were unavailable or whose session was lost before.
        queue_s: Seconds from submission to the start of the code.
        cpu_s: Seconds of CPU time.
        code_chars: Characters of the program.
        running: Programs that run now.
        queued: Programs that wait now.
        sessions: Sessions that are open now.
        idle_children: Children that stand ready for a program now.
        zygote_restarts: How many times a zygote had to be replaced.
    """

    status: Mapping[ExecutionStatus, int]
    errors: Mapping[str, int]
    wall_s: Histogram
    queue_s: Histogram
    cpu_s: Histogram
    code_chars: Histogram
    running: int = 0
    queued: int = 0
    sessions: int = 0
    idle_children: int = 0
    zygote_restarts: int = 0

    @property
    def calls(self) -> int:
        """How many calls have ended."""
        return sum(self.status.values())

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON. The keys are stable: new ones may come, none goes or changes its meaning.

        | key | value |
        |---|---|
        | ``calls`` | calls that have ended |
        | ``status`` | calls by status: ``ok``, ``error``, ``timeout``, ... , every one of them |
        | ``errors`` | calls by error class, the most frequent first |
        | ``wall_s``, ``queue_s``, ``cpu_s``, ``code_chars`` | as ``Histogram.as_dict`` has it |
        | ``running``, ``queued``, ``sessions``, ``idle_children``, ``zygote_restarts`` | as in the class |
        """
        return {
            "calls": self.calls,
            "status": {status.value: count for status, count in self.status.items()},
            "errors": dict(sorted(self.errors.items(), key=lambda item: (-item[1], item[0]))),
            **{name: getattr(self, name).as_dict() for name in ("wall_s", "queue_s", "cpu_s", "code_chars")},
            **{
                name: getattr(self, name)
                for name in ("running", "queued", "sessions", "idle_children", "zygote_restarts")
            },
        }


@dataclass(slots=True)
class _Series:
    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0
    max: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        if value > self.max:
            self.max = value

    def histogram(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts), self.sum, self.max)


_living: Living[Metrics] = Living()


class Metrics:
    """Counts the calls of one sandbox. Any thread may use it. In a forked process it begins at nothing again."""

    def __init__(self) -> None:
        """Begins at nothing."""
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler may run a program of its own while this is held
        self._status = dict.fromkeys(ExecutionStatus, 0)
        self._errors: dict[str, int] = {}
        self._n_unknown = 0
        self._wall, self._queue, self._cpu = (_Series(SECONDS_BOUNDS) for _ in range(3))
        self._chars = _Series(CHARS_BOUNDS)

    def record(self, result: ExecutionResult) -> None:
        """Takes note of a call that has ended. Takes a few microseconds."""
        status, error = result.status, result.error_class
        with self._lock:
            self._status[status] += 1
            if error:
                self._count_error(error)
            if status is ExecutionStatus.UNAVAILABLE or (status is ExecutionStatus.KILLED and error == "SessionLost"):
                return
            if error == "MemoryError" and not result.wall_s:  # refused for its length
                return
            self._wall.add(result.wall_s)
            self._queue.add(result.queue_s)
            self._cpu.add(result.cpu_s)
            self._chars.add(result.code_chars)

    def snapshot(
        self, *, running: int = 0, queued: int = 0, sessions: int = 0, idle_children: int = 0, zygote_restarts: int = 0
    ) -> SandboxMetrics:
        """Returns what is known now; it does not change any more.

        Args:
            running: Programs that run now.
            queued: Programs that wait now.
            sessions: Sessions that are open now.
            idle_children: Children that stand ready now.
            zygote_restarts: How many times a zygote had to be replaced.
        """
        with self._lock:
            return SandboxMetrics(
                status=dict(self._status),
                errors=dict(self._errors),
                wall_s=self._wall.histogram(),
                queue_s=self._queue.histogram(),
                cpu_s=self._cpu.histogram(),
                code_chars=self._chars.histogram(),
                running=running,
                queued=queued,
                sessions=sessions,
                idle_children=idle_children,
                zygote_restarts=zygote_restarts,
            )

    def _count_error(self, name: str) -> None:
        errors = self._errors
        if name not in errors:
            if name not in KNOWN_ERRORS:
                plain = len(name) <= _MAX_NAME_CHARS and name.isascii() and name.isidentifier()
                if name != OTHER and plain and self._n_unknown < MAX_UNKNOWN_ERRORS:
                    self._n_unknown += 1
                else:
                    name = OTHER
            errors.setdefault(name, 0)
        errors[name] += 1


def _begin_after_fork() -> None:
    """In a forked process: whoever held a lock there is not here to give it back."""
    for metrics in _living.all():
        metrics._begin()


os.register_at_fork(after_in_child=_begin_after_fork)
