"""How the time of a call grows with its input, measured so that it matters little what else the machine does.

The CPU time of the calling thread counts, the garbage collector is off, a short call is repeated, and the least of
several rounds is taken, with the two lengths in turn: another process, a collection or a first import can only make a
measurement longer.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator

LINEAR = 1.5
"""Below this a time grows as n or as n log n; the square has 2."""

_MEASURED_S = 0.01
_ROUNDS = 10


def growth(prepare: Callable[[int], Callable[[], object]], n: int, times: int = 8) -> float:
    """Measures e in "the time of a call grows as n to the power of e".

    Args:
        prepare: Makes the call to be measured for an input of a given length.
        n: The greater length.
        times: How many times the smaller length it is.

    Returns:
        The least that was found. Rounds end when it is below ``LINEAR``.
    """
    calls = [prepare(n // times), prepare(n)]
    calls[0]()
    best = [math.inf, math.inf]
    with _garbage_kept():
        for _ in range(_ROUNDS):
            best = [min(least, cpu_s(call)) for least, call in zip(best, calls, strict=True)]
            if _exponent(best, times) < LINEAR:
                break
    return _exponent(best, times)


def compare(one: Callable[[], object], other: Callable[[], object]) -> float:
    """Returns how many times as long as the other call one takes."""
    with _garbage_kept():
        rounds = [(cpu_s(one), cpu_s(other)) for _ in range(_ROUNDS // 2)]
    best_one, best_other = map(min, zip(*rounds, strict=True))
    return best_one / best_other


def cpu_s(call: Callable[[], object]) -> float:
    """Measures a call in seconds; one of less than some milliseconds is repeated and the mean taken."""
    start = time.thread_time()
    for n in itertools.count(1):
        call()
        spent = time.thread_time() - start
        if spent >= _MEASURED_S:
            return spent / n
    raise AssertionError("unreachable")


def _exponent(best: list[float], times: int) -> float:
    return math.log(best[1] / best[0], times)


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
