"""Where the time of an execution goes: the program, its process, the zygote, the host's thread, the caller."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from retool_env.sandbox import ExecutionResult, Sandbox

from .processes import cpu_s, descendants, settle
from .programs import PROGRAMS, SIMILAR, check
from .stage import Stage
from .throughput import cores

_COUNTED = """import resource
_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{program}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - _before)"""

_ALONE = """
import contextlib, gc, io, json, sys, time
programs, similar = json.loads(sys.stdin.read())
exec(similar, {})
gc.collect()
gc.freeze()
taken = {}
for name, program in programs.items():
    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        exec(compile(program, "main.py", "exec"), {})
        taken[name] = (time.perf_counter() - start) * 1e3
print(json.dumps(taken))
"""


def measure(stage: Stage) -> dict[str, Any]:
    """Runs each program a number of times, one after the other and then several at once, and reads the clocks."""
    sandbox, runs = stage.need("sandbox"), stage.plan.profiled
    return {
        "turn": _turn(stage, sandbox, runs),
        "alone_ms": _alone(min(5, runs)),
        "idle": {
            name: _profile(sandbox, name, runs, lambda name: _idle(stage, sandbox, name, runs)) for name in PROGRAMS
        },
        "busy": {
            name: _profile(sandbox, name, 4 * runs, lambda name: _busy(sandbox, name, 4 * runs)) for name in PROGRAMS
        },
    }


def _turn(stage: Stage, sandbox: Sandbox, turns: int) -> dict[str, float]:
    """Profiles the next turn of a live session; its process is not waited for, so nothing is known of its faults."""
    with sandbox.session() as session:
        session.run("seen = 1")
        before = _Clocks.read()
        start = time.thread_time()
        results, taken = [], []
        for _ in range(turns):
            stage.pause()
            begin = time.perf_counter()
            results.append(session.run("seen"))
            taken.append(time.perf_counter() - begin)
        client = time.thread_time() - start
        after = _Clocks.read()
    return {
        "wall_ms": statistics.median(taken) * 1e3,
        "program_cpu_ms": statistics.median(result.cpu_s for result in results) * 1e3,
        "host_cpu_ms": (after.host - before.host) * 1e3 / turns,
        "client_cpu_ms": client * 1e3 / turns,
    }


@dataclass(frozen=True)
class _Clocks:
    """CPU seconds used up so far, by who used them, and page faults of ended children."""

    host: float
    zygotes: float
    children: float
    faults: int

    @classmethod
    def read(cls) -> _Clocks:
        """Reads them once nothing runs any more; zygotes are the processes that have children."""
        settle()
        processes = descendants()
        parents = {process.parent for process in processes}
        zygotes = [process for process in processes if process.pid in parents]
        hosts = [thread.ident for thread in threading.enumerate() if thread.name == "retool-sandbox"]
        return cls(
            host=sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in hosts if ident),
            zygotes=sum(cpu_s(process.pid) for process in zygotes),
            children=sum(process.children_cpu_s for process in zygotes),
            faults=sum(process.faults for process in zygotes),
        )


def _profile(
    sandbox: Sandbox, name: str, runs: int, work: Callable[[str], tuple[list[ExecutionResult], float]]
) -> dict[str, float]:
    """Returns what the clocks say of each of ``runs`` executions; ``work`` returns their results and wall ms."""
    faults = [int(sandbox.run(_COUNTED.format(program=PROGRAMS[name])).stdout.split()[-1]) for _ in range(3)]
    before = _Clocks.read()
    start = time.thread_time()
    results, wall_ms = work(name)
    client = time.thread_time() - start
    after = _Clocks.read()
    return {
        "wall_ms": wall_ms,
        "program_cpu_ms": statistics.median(result.cpu_s for result in results) * 1e3,
        "program_faults": statistics.median(faults),
        "host_cpu_ms": (after.host - before.host) * 1e3 / runs,
        "client_cpu_ms": client * 1e3 / runs,
        "zygote_cpu_ms": (after.zygotes - before.zygotes) * 1e3 / runs,
        "children_cpu_ms": (after.children - before.children) * 1e3 / runs,
        "children_faults": (after.faults - before.faults) / runs,
    }


def _idle(stage: Stage, sandbox: Sandbox, name: str, runs: int) -> tuple[list[ExecutionResult], float]:
    """Runs one after the other with pauses; the wall time is the p50 of a call."""
    results, taken = [], []
    for _ in range(runs):
        stage.pause()
        start = time.perf_counter()
        results.append(sandbox.run(PROGRAMS[name]))
        taken.append(time.perf_counter() - start)
        check(name, results[-1].stdout)
    return results, statistics.median(taken) * 1e3


def _busy(sandbox: Sandbox, name: str, runs: int) -> tuple[list[ExecutionResult], float]:
    """Runs with four in flight for each core; the wall time is that of all cores together, for one execution."""
    done: SimpleQueue[Future[ExecutionResult]] = SimpleQueue()
    results: list[ExecutionResult] = []
    submitted = 0
    start = time.perf_counter()
    while len(results) < runs:
        while submitted < runs and submitted - len(results) < 4 * cores():
            sandbox.submit(PROGRAMS[name], timeout_s=60).add_done_callback(done.put)
            submitted += 1
        results.append(done.get().result())
        check(name, results[-1].stdout)
    return results, (time.perf_counter() - start) * cores() / runs * 1e3


def _alone(processes: int) -> dict[str, float]:
    """Returns the median time of each computation in Pythons that have done similar ones before."""
    taken = []
    for _ in range(processes):
        done = subprocess.run(
            [sys.executable, "-c", _ALONE],
            input=json.dumps([PROGRAMS, SIMILAR]),
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        taken.append(json.loads(done.stdout))
    return {name: statistics.median(times[name] for times in taken) for name in PROGRAMS}
