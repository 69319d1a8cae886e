"""Runs attempts through the runner, and measures what of the time is ours."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retool_env.config import EpisodeConfig
from retool_env.rollout.attempt import AttemptConfig, AttemptResult
from retool_env.rollout.balancer import Balancer
from retool_env.rollout.progress import RunFigures
from retool_env.rollout.runner import run, settled_heap
from retool_env.rollout.store import RunFolder
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget
from retool_env.trajectory import Trajectory

from .script import DelayingEngine, Lengths, Problems

__all__ = ["QUICK", "Plan", "allow_open_files", "growth", "replace", "rollout"]

_TICK_S = 0.02


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        concurrency: Attempts at the same time.
        problems: Problems.
        n: Attempts at each.
        scale: A turn takes this part of the time that a server would take.
        token_s: Seconds that a server takes for a token.
        growth_attempts: Attempts for the growth, all at one problem.
    """

    concurrency: int = 512
    problems: int = 64
    n: int = 16
    scale: float = 0.5
    token_s: float = 0.025
    growth_attempts: int = 24

    @property
    def attempts(self) -> int:
        """Attempts in all."""
        return self.problems * self.n


QUICK = Plan(concurrency=24, problems=6, n=8, scale=0.02, growth_attempts=4)


class _Folder(RunFolder):
    """A run's folder that is timed, and notes how long the attempts are."""

    def __init__(self, path: Path, problems: Problems):
        super().__init__(path, problems, {})
        self.cpu_s = 0.0
        self.lengths = []

    def add(self, record: Trajectory, result: AttemptResult | None) -> None:
        began = time.thread_time()
        super().add(record, result)
        self.cpu_s += time.thread_time() - began
        if result is not None:
            self.lengths.append(len(result.tokens))


class _Ticks:
    """A clock in the event loop: how late it comes to each tick, and what the loop's thread did meanwhile."""

    def __init__(self) -> None:
        self.cost_s = 0.0
        self.idle: dict[str, float] = {}
        self.lags: list[float] = []
        self.stretches: list[float] = []

    async def calibrate(self) -> None:
        """Finds out what a tick costs, and how late it comes, in a loop that does nothing else."""
        task = asyncio.create_task(self.go())
        began = time.thread_time()
        await asyncio.sleep(100 * _TICK_S)
        self.cost_s = (time.thread_time() - began) / max(1, len(self.lags))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.idle = _spread(self.lags, 1e3)
        self.lags, self.stretches = [], []

    async def go(self) -> None:
        while True:
            due, cpu = time.perf_counter() + _TICK_S, time.thread_time()
            await asyncio.sleep(_TICK_S)
            self.lags.append(max(0.0, time.perf_counter() - due))
            self.stretches.append(time.thread_time() - cpu)


def rollout(codec: TokenCodec, sandbox: Sandbox, plan: Plan, seed: int, protocol: str) -> dict[str, Any]:
    """Measures a run."""
    engine = DelayingEngine(
        codec, lengths=Lengths(), calls=(1, 2, 2, 3, 3, 4, 6), token_s=plan.token_s * plan.scale, seed=seed
    )
    return asyncio.run(_measured(codec, sandbox, engine, plan.problems, plan.n, plan.concurrency, seed, protocol))


def growth(codec: TokenCodec, sandbox: Sandbox, plan: Plan, seed: int, protocol: str) -> dict[str, Any]:
    """Measures what a turn costs in short attempts and in long ones."""
    costs = {}
    for name, calls in (("short", 7), ("long", 31)):
        engine = DelayingEngine(codec, lengths=Lengths(sigma=0.0), calls=(calls,), token_s=0.0, seed=seed)
        measured = asyncio.run(_measured(codec, sandbox, engine, 1, plan.growth_attempts, 4, seed, protocol))
        costs[name] = {"turns": calls + 1, "own_cpu_ms": measured["own_cpu_ms"] - measured["store_cpu_ms"]}
    return {**costs, "ratio": costs["long"]["own_cpu_ms"] / costs["short"]["own_cpu_ms"]}


async def _measured(
    codec: TokenCodec,
    sandbox: Sandbox,
    engine: DelayingEngine,
    n_problems: int,
    n: int,
    concurrency: int,
    seed: int,
    protocol: str,
) -> dict[str, Any]:
    config = AttemptConfig(
        episode=EpisodeConfig(protocol=protocol, max_turns=64, max_tool_calls=64),
        budget=TokenBudget(response=32_768, context=65_536),
    )
    problems = Problems(n_problems)
    figures = RunFigures()
    ticks = _Ticks()
    await ticks.calibrate()
    await engine.calibrate()
    before = sandbox.metrics()
    with tempfile.TemporaryDirectory() as place, _Folder(Path(place) / "run", problems) as folder, settled_heap():
        ticking = asyncio.create_task(ticks.go())
        cpu_s, process_s = time.thread_time(), time.process_time()
        await run(
            problems, Balancer([engine]), codec, sandbox, folder, config,
            n=n, concurrency=concurrency, seed=seed, figures=figures,
        )  # fmt: skip
        cpu_s, process_s = time.thread_time() - cpu_s, time.process_time() - process_s
        ticks_s = len(ticks.lags) * ticks.cost_s
        elapsed_s = figures.elapsed_s
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    after = sandbox.metrics()
    spent_s = figures.generate_s + figures.work_s
    return {
        "attempts": figures.done,
        "correct": figures.correct,
        "faults": figures.faults,
        "turns": figures.turns,
        "tokens": figures.tokens,
        "elapsed_s": elapsed_s,
        "turn_tokens": _spread(engine.lengths),
        "trajectory_tokens": _spread(folder.lengths),
        "own_cpu_ms": 1e3 * (cpu_s - ticks_s - engine.cost_s) / figures.turns,
        "process_cpu_ms": 1e3 * (process_s - ticks_s - engine.cost_s) / figures.turns,
        "engine_wait_cpu_ms": 1e3 * engine.wait_cost_s,
        "store_cpu_ms": 1e3 * folder.cpu_s / figures.turns,
        "lag_ms": _spread(ticks.lags, 1e3),
        "idle_lag_ms": ticks.idle,
        "stretch_ms": _spread(ticks.stretches, 1e3),
        "sandbox_wait_share": (after.queue_s.sum - before.queue_s.sum) / spent_s,
        "work_share": figures.work_s / spent_s,
        "sandbox_run_ms": 1e3 * after.wall_s.p50(),
    }


def allow_open_files() -> None:
    """Makes room for the sandbox's children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))


def _spread(values: list[Any], unit: float = 1.0) -> dict[str, float]:
    if not values:
        return {"n": 0}
    array = np.array(values) * unit
    p50, p99 = np.percentile(array, [50, 99])
    return {"n": len(values), "p50": float(p50), "p99": float(p99), "max": float(array.max())}
