"""Measures the sandbox beside what everybody else does: a fresh Python for each program.

    python benchmarks/sandbox.py [--tier nsjail] [--repetitions 105] [--seconds 3] [--peers] [--out runs/bench]

In one run, interleaved so that all see the same machine: the latency of four programs on an idle sandbox, beside
``subprocess.run([python, "-c", program])`` and a bare fork; throughput at several concurrencies; how long runaway code
lives on after its deadline. Ratios to the subprocess are what to compare between machines. Prints a table, writes
``sandbox.json`` and, where matplotlib is installed, ``sandbox.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from rich.console import Console
from rich.table import Table

from retool_env.sandbox import ExecutionResult, Sandbox

PROGRAMS = {
    "P1": "print(1+1)",
    "P2": "import sympy as sp; x=sp.symbols('x'); print(sp.expand((x+1)**5))",
    "P3": "import sympy as sp; x=sp.symbols('x'); print(sp.solve(x**2-5*x+6,x))",
    "P4": "import numpy as np; print(np.linalg.eigvals(np.arange(9).reshape(3,3)))",
}
EXPECTED = {"P1": "2\n", "P2": "x**5 + 5*x**4", "P3": "[2, 3]\n", "P4": "["}


def by_subprocess(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def by_fork(program: str) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def peers() -> dict[str, Callable[[str], object]]:
    """Returns what is installed of the others, as functions of a program."""
    found: dict[str, Callable[[str], object]] = {}
    try:
        from gem.tools.python_code_tool import PythonCodeTool

        tool = PythonCodeTool()
        found["gem-llm"] = lambda program: tool.execute_action(f"<python>{program}</python>")
    except ImportError:
        pass
    try:
        from skyrl_gym.tools.python import PythonCodeExecutorToolGroup

        group = PythonCodeExecutorToolGroup()
        found["skyrl-gym"] = group.python
    except ImportError:
        pass
    try:
        from verifiers.utils.tools import python

        found["verifiers"] = python
    except ImportError:
        pass
    return found


def latencies(
    ways: dict[str, Callable[[str], object]], repetitions: int, pause_s: float
) -> dict[str, dict[str, list[float]]]:
    """Times each way on each program, interleaved; seconds."""
    taken: dict[str, dict[str, list[float]]] = {way: {name: [] for name in PROGRAMS} for way in ways}
    for repetition in range(repetitions):
        for way, function in ways.items():
            # What takes a third of a second needs no hundred repetitions.
            slow = way not in ("sandbox", "fork")
            if slow and repetition % 5:
                continue
            for name, program in PROGRAMS.items():
                time.sleep(pause_s)
                start = time.perf_counter()
                function(program)
                taken[way][name].append(time.perf_counter() - start)
    return taken


def throughput(sandbox: Sandbox, program: str, concurrency: int, seconds: float) -> float:
    """Returns executions a second and core with that many programs in flight."""
    pending: set[Future[ExecutionResult]] = {sandbox.submit(program) for _ in range(concurrency)}
    done_count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            assert future.result().status == "ok", future.result()
        done_count += len(done)
        pending |= {sandbox.submit(program) for _ in done}
    elapsed = time.perf_counter() - start
    wait(pending)
    return done_count / elapsed / len(os.sched_getaffinity(0))


def baseline_throughput(program: str, seconds: float) -> float:
    """Returns what a fresh Python for each program does, with one process a core."""
    cores = len(os.sched_getaffinity(0))
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL) for _ in range(cores)]
    done_count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for i, process in enumerate(running):
            if process.poll() is not None:
                done_count += 1
                running[i] = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    elapsed = time.perf_counter() - start
    for process in running:
        process.wait()
    return done_count / elapsed / cores


def overshoot(sandbox: Sandbox, n: int = 20) -> list[float]:
    """Returns by how many seconds the verdict on an endless program comes after its deadline."""
    limit = 0.05
    return [sandbox.run("while True: pass", timeout_s=limit).wall_s - limit for _ in range(n)]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", default="auto")
    parser.add_argument("--repetitions", type=int, default=105)
    parser.add_argument("--pause-ms", type=float, default=12.0, help="idle time before each measured call")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each throughput measurement")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 2, 8, 32, 128])
    parser.add_argument("--peers", action="store_true", help="also gem-llm, skyrl-gym and verifiers, where installed")
    parser.add_argument("--out", type=Path, help="folder for sandbox.json and sandbox.png")
    options = parser.parse_args()
    console = Console()
    with Sandbox(tier=options.tier, echo=False) as sandbox:
        for name, program in PROGRAMS.items():
            result = sandbox.run(program)
            assert result.stdout.startswith(EXPECTED[name]), result
        ways: dict[str, Callable[[str], object]] = {
            "sandbox": sandbox.run,
            "subprocess": by_subprocess,
            "fork": by_fork,
        }
        if options.peers:
            ways |= peers()
        taken = latencies(ways, options.repetitions, options.pause_ms / 1000)
        table = Table(title=f"latency, ms (tier {sandbox.tier}; ratio to subprocess in brackets)")
        for column in ("way", *PROGRAMS):
            table.add_column(column, justify="right")
        report: dict[str, object] = {"tier": sandbox.tier, "python": platform.python_version(), "latency_ms": {}}
        for way, by_program in taken.items():
            cells, figures = [], {}
            for name, values in by_program.items():
                p50, p99 = statistics.median(values) * 1e3, percentile(values, 0.99) * 1e3
                ratio = statistics.median(taken["subprocess"][name]) * 1e3 / p50
                cells.append(f"{p50:.2f} / {p99:.2f} [{ratio:.0f}x]")
                figures[name] = {"p50": p50, "p99": p99, "ratio": ratio}
            table.add_row(way, *cells)
            report["latency_ms"][way] = figures  # type: ignore[index]
        console.print(table)
        rates: dict[str, dict[str, float]] = {}
        table = Table(title="executions / s / core")
        for column in ("program", "subprocess", *map(str, options.concurrency)):
            table.add_column(column, justify="right")
        for name in ("P1", "P2"):
            rates[name] = {"subprocess": baseline_throughput(PROGRAMS[name], options.seconds)}
            for concurrency in options.concurrency:
                rates[name][str(concurrency)] = throughput(sandbox, PROGRAMS[name], concurrency, options.seconds)
            table.add_row(name, *(f"{rate:.1f}" for rate in rates[name].values()))
        console.print(table)
        late = overshoot(sandbox)
        p50, p95 = (percentile(late, share) * 1e3 for share in (0.5, 0.95))
        console.print(f"verdict after the deadline, ms: p50 {p50:.2f}, p95 {p95:.2f}")
        report |= {"throughput_per_core": rates, "verdict_after_deadline_ms": [value * 1e3 for value in late]}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "sandbox.json").write_text(json.dumps(report, indent=1) + "\n")
        plot(report, options.out / "sandbox.png")
        console.print(f"written to {options.out}")


def plot(report: dict, path: Path) -> None:
    """Draws the latencies, where matplotlib is installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(figsize=(8, 4))
    ways = report["latency_ms"]
    for i, (way, figures) in enumerate(ways.items()):
        places = [place + i / (len(ways) + 1) for place in range(len(PROGRAMS))]
        axes.bar(places, [figures[name]["p50"] for name in PROGRAMS], 1 / (len(ways) + 1), label=way)
    axes.set_xticks([place + 0.4 for place in range(len(PROGRAMS))], PROGRAMS)
    axes.set_yscale("log")
    axes.set_ylabel("p50, ms")
    axes.set_title(f"one isolated execution, tier {report['tier']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
