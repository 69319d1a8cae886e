"""How long one execution takes on an idle machine, beside a fresh Python, a bare fork, and others' tools."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from retool_env.sandbox import Sandbox

from .figures import summary
from .processes import settle
from .programs import PROGRAMS, check
from .stage import WAYS, Stage, slowness

Way = Callable[[str], float]
"""Runs a program by its name, and returns the seconds that it took."""


def measure(stage: Stage, peers: Mapping[str, Way]) -> dict[str, Any]:
    """Times every program in every way, in an order that is shuffled anew for each repetition."""
    plan = stage.plan
    ways: dict[str, Way] = {}
    for way in WAYS:
        sandbox = stage.find(way)
        if sandbox is not None:
            ways[way] = partial(_in_sandbox, sandbox)
    slow: dict[str, Way] = {"subprocess": stage.fresh_python, **peers}
    taken: dict[tuple[str, str], list[float]] = {(way, name): [] for way in ways | slow for name in PROGRAMS}
    order = random.Random(0)
    settle()
    with ExitStack() as stack:
        floors = {kind: stack.enter_context(_forker(kind)) for kind in ("small", "loaded")}
        forks: dict[str, list[float]] = {kind: [] for kind in floors}
        for repetition in range(plan.repetitions):
            tasks = [(way, name) for way in ways for name in PROGRAMS]
            if repetition % plan.slow_every == 0:
                tasks += [(way, name) for way in slow for name in PROGRAMS]
            order.shuffle(tasks)
            for way, name in tasks:
                stage.pause()
                taken[way, name].append((ways | slow)[way](name))
            for kind, fork in floors.items():
                stage.pause()
                forks[kind].append(fork())
    baseline = {name: statistics.median(taken["subprocess", name]) for name in PROGRAMS}
    return {
        "slowness": slowness(taken["subprocess", "P1"]),
        "ways": {
            way: {
                name: summary(taken[way, name]) | {"ratio": baseline[name] / statistics.median(taken[way, name])}
                for name in PROGRAMS
            }
            for way in slow | ways
        },
        "fork_floor": {kind: summary(seconds) for kind, seconds in forks.items()},
        "unsupported": {way: reason for way, reason in stage.unsupported.items() if way in WAYS},
    }


def _in_sandbox(sandbox: Sandbox, name: str) -> float:
    start = time.perf_counter()
    result = sandbox.run(PROGRAMS[name])
    elapsed = time.perf_counter() - start
    check(name, result.stdout)
    return elapsed


@contextmanager
def _forker(kind: str) -> Iterator[Callable[[], float]]:
    """Starts a process that forks, and yields a function that has it do so once and returns the seconds."""
    script = str(Path(__file__).with_name("fork_floor.py"))
    flags, arguments = (["-I"], ["loaded"]) if kind == "loaded" else (["-I", "-S"], [])
    command = [sys.executable, *flags, script, *arguments]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # or numpy would start more threads
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None

        def fork() -> float:
            asks.write("\n")
            return float(answers.readline())

        fork()  # it has started and imported what it will
        yield fork
        asks.close()
