"""What the rollout loop is meant to reach, and whether it did."""

from __future__ import annotations

from typing import Any

_TARGETS = (
    ("rollout", "own CPU time for a turn", "ms", 1.0, ("own_cpu_ms",)),
    ("rollout", "event-loop lag, p99", "ms", 10.0, ("lag_ms", "p99")),
    ("rollout", "faults", "", 0.0, ("faults",)),
    ("growth", "cost of a turn in attempts four times as long", "x", 1.5, ("ratio",)),
)


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Judges everything that the report has a part for."""
    return [_judge(report[entry[0]], *entry) for entry in _TARGETS if entry[0] in report]


def _judge(part: Any, topic: str, name: str, unit: str, limit: float, keys: tuple[str, ...]) -> dict[str, Any]:
    for key in keys:
        part = part.get(key) if isinstance(part, dict) else None
    verdict = "not measured" if part is None else "met" if part <= limit else "not met"
    target = f"<= {limit:g} {unit}".strip()
    return {"topic": topic, "name": name, "unit": unit, "measured": part, "target": target, "verdict": verdict}
