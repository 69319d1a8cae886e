"""What the sandbox is meant to reach, and whether it did.

The targets were stated for a machine on which a fresh Python takes 9.97 ms for P1. A ratio to the fresh Python of the
same run holds on any machine. A time or a rate is compared as it was measured, and if that does not do, once more in
the time of that machine: then it is "met, scaled".
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]
BOTH_CORES_BUSY = ("2", "8", "32")
"""Concurrencies between which the throughput should not differ."""


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        topic: Key of the report's part that it is about.
        name: What is meant to reach it.
        unit: "ms", "1/s" (executions a second and core), "x", "%", "MB" or "".
        limit: The least (rates, ratios, shares, numbers) or the most (everything else) that will do.
        value: Takes the figure from the report; a KeyError or TypeError means that it was not measured.
        least: Whether ``limit`` is the least.
    """

    topic: str
    name: str
    unit: str
    limit: float
    value: Callable[[Report], float]
    least: bool = False

    def judge(self, report: Report) -> dict[str, Any]:
        """Returns the figure and the verdict."""
        entry = {"topic": self.topic, "name": self.name, "unit": self.unit, "measured": None, "scaled": None}
        entry["target"] = f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}".strip()
        try:
            measured = self.value(report)
        except (KeyError, TypeError):
            return entry | {"verdict": "not measured"}
        scaled = None
        if self.unit in ("ms", "1/s"):
            slowness = report[self.topic]["slowness"]
            scaled = measured / slowness if self.unit == "ms" else measured * slowness
        if self._reached(measured):
            verdict = "met"
        elif scaled is not None and self._reached(scaled):
            verdict = "met, scaled"
        else:
            verdict = "not met"
        return entry | {"measured": measured, "scaled": scaled, "verdict": verdict}

    def _reached(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit


def judge(report: Report) -> list[dict[str, Any]]:
    """Judges everything that the report has a part for."""
    return [target.judge(report) for target in _targets(report["machine"]["tier"]) if target.topic in report]


def _latency(way: str, name: str, key: str) -> Callable[[Report], float]:
    return _in("latency", "ways", way, name, key)


def _rate(way: str, name: str) -> Callable[[Report], float]:
    def value(report: Report) -> float:
        rates = report["throughput"]["per_core"][way][name]
        return float(statistics.median(rates[level] for level in BOTH_CORES_BUSY if level in rates))

    return value


def _rate_ratio(way: str, name: str) -> Callable[[Report], float]:
    return lambda report: _rate(way, name)(report) / report["throughput"]["per_core"]["subprocess"][name]["cores"]


def _held(way: str, name: str) -> Callable[[Report], float]:
    def value(report: Report) -> float:
        rates = report["throughput"]["per_core"][way][name]
        return float(rates["32"] / rates["2"] * 100)

    return value


def _in(topic: str, *keys: str) -> Callable[[Report], float]:
    def value(report: Report) -> float:
        found = report[topic]
        for key in keys:
            found = found[key]
        return float(found)

    return value


def _many(report: Report) -> float:
    many = report["sessions"]["many"]
    if many["asked"] < 500:
        raise KeyError("fewer were asked for")
    return float(many["kept"])


def _targets(tier: str) -> list[Target]:
    ours, demand, heavy, immortal = "sandbox", "sandbox, on demand", "sandbox, no light zygote", "sandbox, immortal"
    light = 600 if tier == "landlock" else 530
    return [
        Target("latency", "P1, p50", "ms", 0.33, _latency(ours, "P1", "p50_ms")),
        Target("latency", "P1, ratio to a fresh Python", "x", 30, _latency(ours, "P1", "ratio"), least=True),
        Target("latency", "P2, p50", "ms", 2.0, _latency(ours, "P2", "p50_ms")),
        Target("latency", "P2, ratio to a fresh Python", "x", 140, _latency(ours, "P2", "ratio"), least=True),
        Target("latency", "P2 on demand, p50", "ms", 6.5, _latency(demand, "P2", "p50_ms")),
        Target("latency", "P3, ratio to a fresh Python", "x", 70, _latency(ours, "P3", "ratio"), least=True),
        Target("latency", "P4, ratio to a fresh Python", "x", 75, _latency(ours, "P4", "ratio"), least=True),
        Target("throughput", "P1 in the light zygote", "1/s", light, _rate(ours, "P1"), least=True),
        Target("throughput", "P1 in the zygote with sympy", "1/s", 300, _rate(heavy, "P1"), least=True),
        Target("throughput", "P1 there, immortal", "1/s", 320, _rate(immortal, "P1"), least=True),
        Target("throughput", "P2", "1/s", 125, _rate(ours, "P2"), least=True),
        Target("throughput", "P2, ratio to fresh Pythons", "x", 36, _rate_ratio(ours, "P2"), least=True),
        Target("throughput", "P2, immortal", "1/s", 160, _rate(immortal, "P2"), least=True),
        *(
            Target("throughput", f"{name}, 32 in flight against 2", "%", 90, _held(ours, name), least=True)
            for name in ("P1", "P2", "P4")
        ),
        Target("sessions", "next turn, back to back, p50", "ms", 0.15, _in("sessions", "turn_at_once", "p50_ms")),
        Target("sessions", "next turn, after a pause, p50", "ms", 0.15, _in("sessions", "turn", "p50_ms")),
        Target("sessions", "memory, idle", "MB", 1.3, _in("sessions", "memory_mb", "plain", "idle", "median")),
        Target(
            "sessions", "memory after P2", "MB", 4.5, _in("sessions", "memory_mb", "plain", "after_sympy", "median")
        ),
        Target("sessions", "idle, immortal", "MB", 0.9, _in("sessions", "memory_mb", "immortal", "idle", "median")),
        Target(
            "sessions",
            "after P2, immortal",
            "MB",
            2.6,
            _in("sessions", "memory_mb", "immortal", "after_sympy", "median"),
        ),
        Target("sessions", "live at once, with their state", "", 500, _many, least=True),
        Target("sessions", "fork, p50", "ms", 1.5, _in("sessions", "fork", "p50_ms")),
        Target("kill", "runaway code, p95", "ms", 5, _in("kill", "runaway", "p95_ms")),
        Target("kill", "fork bomb, p95", "ms", 40, _in("kill", "fork_bomb", "p95_ms")),
        Target("kill", "owner killed, slowest", "ms", 100, _in("kill", "owner", "p99_ms")),
        Target("overload", "programs that were not ok", "", 0, _not_ok),
        Target("overload", "p99 for twice the queue", "x", 2.4, _in("overload", "growth")),
    ]


def _not_ok(report: Report) -> float:
    return float(sum(level["not_ok"] for level in report["overload"]["levels"].values()))
