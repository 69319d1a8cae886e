"""Many answers of which some hang, some exhaust the memory and some are malformed: all the others get their due."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandbox_bench.processes import descendants

from retool_env.grading import grade, shutdown

from .answers import boxed, integers, latex
from .children import Answer

_HANGING = (
    r"(1+x)^{5000000}",
    r"9^{9^{9^9}}",
    r"\sin(\sin(\exp(\exp(\exp(3)))+3))",
    r"\sum_{k=1}^{10^{9}} \frac{\sin(k^3)}{k^{k}}+x^{2}",
)
_HUNGRY = r"\lfloor 2^{2^{34}} \rfloor"  # an integer of 2 GiB; the worker may have 1
_MALFORMED = (r"\frac{1}{", "}{", r"\begin{pmatrix}", "x +* y", "\\", r"\sqrt[", "1..2", r"\left(", "^_^", "\x00\ud800")
_BOMB_GOLD = "x"
_SYMBOLIC = (r"\boxed{2\sqrt{2}}", r"\sqrt{8}")


def measure(count: int, bombs: int, limit_s: float, seed: int = 0) -> dict[str, Any]:
    """Grades them, first one after the other, then in threads; before that, without those that must be killed.

    Args:
        count: Answers in all.
        bombs: Those that hang; as many exhaust the memory, and three times as many are malformed.
        limit_s: Seconds that one comparison may take.
        seed: Fixes the answers and their order.
    """
    hanging = [(_HANGING[n % len(_HANGING)], _BOMB_GOLD, False) for n in range(bombs)]
    hungry = [(_HUNGRY, _BOMB_GOLD, False)] * bombs
    malformed = [(_MALFORMED[n % len(_MALFORMED)], r"\sqrt{8}", False) for n in range(3 * bombs)]
    rest = count - 5 * bombs
    plain = [*integers(2 * rest // 3, seed), *latex(rest - 2 * rest // 3, seed), *malformed]
    rng = random.Random(seed)
    rng.shuffle(plain)
    every = [*plain, *hanging, *hungry]
    rng.shuffle(every)
    part: dict[str, Any] = {
        "n": count,
        "hanging": bombs,
        "hungry": bombs,
        "malformed": 3 * bombs,
        "limit_s": limit_s,
        "restart_s": _restart_s(limit_s),
    }
    start = time.perf_counter()
    _grade_all(boxed(plain), 1, limit_s)
    part["plain_s"] = time.perf_counter() - start
    for key, workers in (("serial", 1), ("threads", len(os.sched_getaffinity(0)))):
        part[key] = _run(boxed(every), workers, part)
    return part


def _run(answers: Sequence[Answer], workers: int, part: dict[str, Any]) -> dict[str, Any]:
    shutdown()
    others = _living()
    grade(*_SYMBOLIC)  # starting the workers is not counted
    start = time.perf_counter()
    verdicts = _grade_all(answers, workers, part["limit_s"])
    total_s = time.perf_counter() - start
    kills = sum(timed_out for _, timed_out in verdicts)
    judged = [(right, correct) for (_, _, right), (correct, _) in zip(answers, verdicts, strict=True)]
    alive = grade(*_SYMBOLIC).correct
    shutdown()
    return {
        "workers": workers,
        "total_s": total_s,
        "kills": kills,
        "missed": sum(right and not correct for right, correct in judged),
        "paid": sum(correct and not right for right, correct in judged),
        "explained_s": part["plain_s"] + kills * (part["limit_s"] + part["restart_s"]) / workers,
        "alive": alive,
        "left_behind": len(_living() - others),
    }


def _grade_all(answers: Sequence[Answer], workers: int, limit_s: float) -> list[tuple[bool, bool]]:
    """Returns for each answer whether it was scored 1 and whether it timed out."""

    def judge(answer: Answer) -> tuple[bool, bool]:
        given = grade(answer[0], answer[1], limit_s=limit_s)
        return given.correct, given.timed_out

    if workers == 1:
        return [judge(answer) for answer in answers]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judge, answers))


def _living() -> set[int]:
    return {process.pid for process in descendants() if process.state not in "ZX"}


def _restart_s(limit_s: float, kills: int = 5) -> float:
    """What a kill costs beside the limit: an expression's time right after it, less its time in a warm worker."""
    warm, after = [], []
    for _ in range(kills):
        grade(*_SYMBOLIC)
        warm.append(_seconds())
        grade(f"\\boxed{{{_HANGING[0]}}}", _BOMB_GOLD, limit_s=limit_s)
        after.append(_seconds())
    return max(0.0, statistics.median(after) - statistics.median(warm))


def _seconds() -> float:
    start = time.perf_counter()
    grade(*_SYMBOLIC)
    return time.perf_counter() - start
