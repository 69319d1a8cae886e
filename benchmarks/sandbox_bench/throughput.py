"""How many executions a second the sandbox does with several programs in flight, beside a fresh Python for each."""

from __future__ import annotations

import os
import random
import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from retool_env.sandbox import ExecutionResult, Sandbox

from .processes import settle
from .programs import PROGRAMS, check
from .stage import Stage, slowness

CASES = {
    "sandbox": ("P1", "P2", "P4"),
    "sandbox, no light zygote": ("P1",),
    "sandbox, immortal": ("P1", "P2"),
}
"""Which programs are run in which way."""


def measure(stage: Stage) -> dict[str, Any]:
    """Measures every case at every concurrency, in rounds, so that all of them see the same machine."""
    plan = stage.plan
    sandboxes = {way: sandbox for way in CASES if (sandbox := stage.find(way)) is not None}
    tasks: list[tuple[str, str, int]] = [
        (way, name, concurrency) for way in sandboxes for name in CASES[way] for concurrency in plan.concurrency
    ]
    tasks += [("subprocess", name, 0) for name in CASES["sandbox"]]
    rates: dict[tuple[str, str, int], list[float]] = {task: [] for task in tasks}
    order, alone = random.Random(0), []
    settle()
    for _ in range(plan.rounds):
        order.shuffle(tasks)
        for task in tasks:
            way, name, concurrency = task
            seconds = plan.seconds / plan.rounds
            if way == "subprocess":
                rates[task].append(_subprocess_rate(stage, name, seconds))
                alone.append(stage.fresh_python("P1"))
            else:
                rates[task].append(_rate(sandboxes[way], name, concurrency, seconds))
    per_core: dict[str, dict[str, dict[str, float]]] = {}
    for (way, name, concurrency), values in rates.items():
        programs = per_core.setdefault(way, {})
        programs.setdefault(name, {})[str(concurrency or "cores")] = statistics.fmean(values) / cores()
    return {
        "slowness": slowness(alone),
        "per_core": per_core,
        "unsupported": {way: reason for way, reason in stage.unsupported.items() if way in CASES},
    }


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _rate(sandbox: Sandbox, name: str, concurrency: int, seconds: float) -> float:
    """Returns executions a second with so many programs in flight, each followed by another as soon as it is done.

    The first few are not counted: they find the children ready that were made while nothing ran.
    """
    done: SimpleQueue[Future[ExecutionResult]] = SimpleQueue()
    program, in_flight, count, counted_from = PROGRAMS[name], 0, 0, 0.0
    lead_in = time.perf_counter() + seconds / 5
    while True:
        while in_flight < concurrency:
            sandbox.submit(program, timeout_s=60).add_done_callback(done.put)
            in_flight += 1
        result = done.get().result()
        now = time.perf_counter()
        in_flight -= 1
        check(name, result.stdout)
        if counted_from:
            count += 1
            if now > counted_from + seconds:
                break
        elif now > lead_in:
            counted_from = now
    for _ in range(in_flight):
        done.get()
    return count / (now - counted_from)


def _subprocess_rate(stage: Stage, name: str, seconds: float) -> float:
    """Returns what a fresh Python for each program does, with one process a core."""
    start = time.perf_counter()

    def work(_: int) -> int:
        count = 0
        while time.perf_counter() < start + seconds:
            stage.fresh_python(name)
            count += 1
        return count

    with ThreadPoolExecutor(cores()) as pool:
        count = sum(pool.map(work, range(cores())))
    return count / (time.perf_counter() - start)
