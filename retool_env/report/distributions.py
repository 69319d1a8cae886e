"""How lengths, turns and the like are spread over correct and wrong attempts: what histograms are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from retool_env.report.columns import COLUMNS, Bools, Floats


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a quantity is spread, as counts in bins.

    Attributes:
        edges: Borders of the bins, one more than there are bins.
        correct: Correct attempts in each bin.
        wrong: Wrong attempts in each bin.
    """

    edges: tuple[float, ...]
    correct: tuple[int, ...]
    wrong: tuple[int, ...]


_SPREAD_OUT: Final = (
    "response_tokens", "sampled_tokens", "response_chars", "blocks", "code_lines", "first_position", "turns"
)  # fmt: skip
_BINS: Final = 24


def distributions(table: Floats, correct: Bools) -> dict[str, Distribution]:
    """Returns how lengths, turns and the like are spread; what no attempt has is left out.

    Args:
        table: A ``row`` for each counted attempt.
        correct: Which are correct.
    """
    found = {}
    for name in _SPREAD_OUT:
        values = table[:, COLUMNS.index(name)]
        usable = np.isfinite(values)
        if name == "code_lines":
            usable &= table[:, COLUMNS.index("blocks")] > 0
        if usable.any():
            edges = _edges(name, values[usable])
            counts = [np.histogram(values[usable & group], edges)[0] for group in (correct, ~correct)]
            found[name] = Distribution(tuple(map(float, edges)), tuple(map(int, counts[0])), tuple(map(int, counts[1])))
    return found


def _edges(name: str, values: Floats) -> Floats:
    """Bins of one width: whole numbers, so that none has more of them than its neighbour; long tails share the last."""
    if name == "first_position":
        return np.linspace(0.0, 1.0, 21)
    low, high = float(np.min(values)), float(np.max(values))
    cut = float(np.percentile(values, 99))
    width = max(1.0, math.ceil((cut - low + 1) / _BINS))
    edges = np.arange(low, cut + width + 1, width) - 0.5
    edges[-1] = max(float(edges[-1]), high + 0.5)
    return np.asarray(edges)
