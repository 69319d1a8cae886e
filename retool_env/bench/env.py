"""What ``retool bench env`` does: it measures the environment, shows tables, and writes JSON and a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retool_env.bench import machine, memory, own, picture, rates, tables, targets
from retool_env.env_options import sandbox_config
from retool_env.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

TOPICS: Final = ("own", "length", "rates", "memory")
_WIDTH: Final = 120
_PROGRAMS_A_CORE: Final = 4


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line asked for.

    Attributes:
        topics: Some of ``TOPICS``.
        quick: Few repetitions: to see that it runs, not for figures.
        num_envs: Environments of the vector, and agents of the group.
        tier: Of the sandbox.
        out: Folder for the files.
    """

    topics: tuple[str, ...]
    quick: bool
    num_envs: int
    tier: str
    out: Path


@dataclass(frozen=True, slots=True)
class _Plan:
    """How much is measured: rounds of each topic, seconds of a rate, and what is left out of a quick run."""

    own_rounds: int = 200
    length_rounds: int = 15
    lengths: tuple[int, ...] = own.LENGTHS
    rate_rounds: int = 3
    rate_s: float = 0.5
    pettingzoo: bool = True
    memory_envs: int = 64


_QUICK: Final = _Plan(3, 2, (1_000, 2_000, 4_000), 1, 0.05, False, 4)


def run(options: BenchOptions, console: Console, errors: Console) -> int:
    """Measures what was asked for.

    Args:
        options: What to measure.
        console: For the tables.
        errors: For progress and messages.

    Returns:
        0, whether the targets were met or not.

    Raises:
        ConfigurationError: An option has a value that cannot work.
        SandboxError: The sandbox does not run here.
        OSError: The files cannot be written.
    """
    unknown = [topic for topic in options.topics if topic not in TOPICS]
    if unknown:
        raise ConfigurationError(f"--only: must be one of {', '.join(TOPICS)}, got {', '.join(unknown)}")
    # A folder that cannot be made is better known before the minute of work than after it.
    options.out.mkdir(parents=True, exist_ok=True)
    if not console.is_terminal:
        console.width = _WIDTH
    report = _measure(options, _QUICK if options.quick else _Plan(), console, errors)
    (options.out / "env.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not picture.draw(report, options.out / "env.png"):
        errors.print("no picture: matplotlib is not installed (the extra `bench`)", markup=False)
    console.print(f"written to {options.out}", markup=False)
    return 0


def _measure(options: BenchOptions, plan: _Plan, console: Console, errors: Console) -> dict[str, Any]:
    topics = [topic for topic in TOPICS if topic in options.topics]
    config = sandbox_config({"tier": options.tier, "max_concurrency": _room(options.num_envs)})
    with own.TimedSandbox(config) as sandbox:
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "own": lambda: own.measure_own(sandbox, plan.own_rounds),
            "length": lambda: own.measure_length(sandbox, plan.lengths, plan.length_rounds),
            "rates": lambda: rates.measure(sandbox, options.num_envs, plan.rate_s, plan.rate_rounds, plan.pettingzoo),
            "memory": lambda: memory.measure(sandbox, plan.memory_envs),
        }
        report: dict[str, Any] = {
            "schema": 1,
            "machine": machine.facts(sandbox.tier),
            "options": {"quick": options.quick, "topics": topics, "num_envs": options.num_envs},
        }
        tables.show_machine(report, console)
        for topic in topics:
            with errors.status(f"measuring {topic}"):
                report[topic] = measures[topic]()
            report["targets"] = targets.judge(report)
            tables.show(topic, report, console)
    return report


def _room(num_envs: int) -> int:
    """Returns how many programs may run at the same time: those of all environments, or as many as usual."""
    return max(num_envs, _PROGRAMS_A_CORE * len(os.sched_getaffinity(0)))
