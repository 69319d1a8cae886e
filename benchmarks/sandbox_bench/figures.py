"""From measured seconds to the few numbers that are reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

REFERENCE_P1_MS = 9.97
"""What a fresh Python took for P1 on the machine that the targets were stated for."""


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Returns ``n``, ``p50_ms``, ``p95_ms``, ``p99_ms`` and ``mean_ms``."""
    return {
        "n": len(seconds),
        "p50_ms": statistics.median(seconds) * 1e3,
        "p95_ms": percentile(seconds, 0.95) * 1e3,
        "p99_ms": percentile(seconds, 0.99) * 1e3,
        "mean_ms": statistics.fmean(seconds) * 1e3,
    }
