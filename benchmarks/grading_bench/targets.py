"""What the grader is meant to reach, and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .graders import MATH_VERIFY, OURS

Report = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        topic: Key of the report's part that it is about.
        name: What is meant to reach it.
        unit: "us", "x" or "".
        limit: The most, or the least, that will do.
        value: Takes the figure from the report's part; a KeyError or TypeError means that it was not measured.
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
        entry: dict[str, Any] = {"topic": self.topic, "name": self.name, "unit": self.unit, "measured": None}
        entry["target"] = f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}".strip()
        try:
            measured = self.value(report[self.topic])
        except (KeyError, TypeError):
            return entry | {"verdict": "not measured"}
        reached = measured >= self.limit if self.least else measured <= self.limit
        return entry | {"measured": measured, "verdict": "met" if reached else "not met"}


def judge(report: Report) -> list[dict[str, Any]]:
    """Judges everything that the report has a part for."""
    return [target.judge(report) for target in _TARGETS if target.topic in report]


def _behind_math_verify(kind: str) -> Callable[[Report], float]:
    return lambda part: float(part[kind][OURS]["p50_us"] - part[kind][MATH_VERIFY]["p50_us"])


_TARGETS = (
    Target("latency", "integer, p50", "us", 15, lambda part: float(part["integer"][OURS]["p50_us"])),
    Target("latency", "LaTeX, p50 beyond math-verify's", "us", 100, _behind_math_verify("latex")),
    Target("corpus", "false positives", "", 0, lambda part: len(part[OURS]["false_positives"])),
    Target("corpus", "false negatives, policy-free", "", 4, lambda part: part[OURS]["policy_free"]["false_negatives"]),
    Target("pairs", "math-verify's own pairs that are right", "", 93, lambda part: part[OURS]["right"], least=True),
    Target("many", "serial: time, of what the kills explain", "x", 1, lambda part: _share(part["serial"])),
    *(
        target
        for key in ("serial", "threads")
        for target in (
            Target("many", f"{key}: correct answers not scored 1", "", 0, lambda part, key=key: part[key]["missed"]),
            Target("many", f"{key}: others scored 1", "", 0, lambda part, key=key: part[key]["paid"]),
            Target("many", f"{key}: processes left behind", "", 0, lambda part, key=key: part[key]["left_behind"]),
            Target("many", f"{key}: alive afterwards", "", 1, lambda part, key=key: part[key]["alive"], least=True),
        )
    ),
)


def _share(run: Report) -> float:
    return float(run["total_s"] / run["explained_s"])
