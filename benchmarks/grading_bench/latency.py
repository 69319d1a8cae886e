"""How long one grading takes, in the process that asks for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from sandbox_bench.figures import percentile

from .answers import boxed, integers, latex
from .children import WARM_UP, Answer, Child

_KINDS: dict[str, Callable[[int, int], list[Answer]]] = {
    "integer": lambda count, seed: boxed(integers(count, seed)),
    "integer_turn": lambda count, seed: boxed(integers(count, seed), turn=True),
    "latex": lambda count, seed: boxed(latex(count, seed)),
    "latex_turn": lambda count, seed: boxed(latex(count, seed), turn=True),
}


def measure(children: dict[str, Child], rounds: int, block: int) -> dict[str, Any]:
    """Times all graders on the same answers, a block of each kind in turn, so that all see the same machine.

    Args:
        children: The graders.
        rounds: Blocks of each kind. The first one more is not counted.
        block: Answers in a block that are counted.
    """
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in children} for kind in _KINDS}
    right = {kind: dict.fromkeys(children, 0) for kind in _KINDS}
    order = list(children)
    for number in range(rounds + 1):
        for place, (kind, make) in enumerate(_KINDS.items()):
            answers = make(WARM_UP + block, number * len(_KINDS) + place)
            for name in order:
                seconds, verdicts = children[name].time(answers)
                if number:
                    times[kind][name] += seconds
                    right[kind][name] += verdicts
        order = order[1:] + order[:1]
    return {
        kind: {name: _figures(seconds, right[kind][name]) for name, seconds in by_name.items()}
        for kind, by_name in times.items()
    }


def _figures(seconds: list[float], right: int) -> dict[str, float]:
    return {
        "n": len(seconds),
        "p50_us": statistics.median(seconds) * 1e6,
        "p99_us": percentile(seconds, 0.99) * 1e6,
        "right": right,
    }
