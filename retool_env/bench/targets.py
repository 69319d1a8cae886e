"""What the environment is meant to reach, and whether it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

OWN_US: Final = 100.0
"""Our own time for a turn of 10 kB, p50, in microseconds."""

RATIO: Final = 3.0
"""t(2n) / t(n) stays below it where time is linear in the length; it would be 4 where it is quadratic."""


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Judges everything that the report has a part for."""
    return [*_own(report.get("own", {})), *_length(report.get("length", {}))]


def _own(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for protocol, shapes in part.items():
        for shape in ("prose", "program", "answer"):  # the action of the fourth is short
            measured = shapes[shape]["own_p50_us"]
            name = f"{protocol}, {shape}: own time at 10 kB"
            yield _entry("own", name, "us", measured, f"<= {OWN_US:g} us", measured <= OWN_US)


def _length(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for protocol, shapes in part.items():
        for shape, figures in shapes.items():
            measured = max(figures["ratios"])
            name = f"{protocol}, {shape}: largest t(2n)/t(n)"
            yield _entry("length", name, "", measured, f"< {RATIO:g}", measured < RATIO)


def _entry(topic: str, name: str, unit: str, measured: float, target: str, reached: bool) -> dict[str, Any]:
    verdict = "met" if reached else "not met"
    return {"topic": topic, "name": name, "unit": unit, "measured": measured, "target": target, "verdict": verdict}
