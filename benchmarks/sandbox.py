"""Measures the sandbox beside what everybody else does: a fresh Python for each program.

    python benchmarks/sandbox.py                           everything, about five minutes
    python benchmarks/sandbox.py --quick                   the same with few repetitions: does it run?
    python benchmarks/sandbox.py --only latency sessions   some of it
    python benchmarks/sandbox.py --peers                   also other projects' tools (scripts/bench_peers.sh first)

In one run, interleaved so that all see the same machine: the latency of four programs on an idle sandbox, beside
``subprocess.run([python, "-c", program])`` and a bare fork; throughput at several concurrencies; sessions, their memory
and forks; how long killed code lives; thousands of programs queued at once. Each figure stands beside its target.
Ratios to the subprocess are what to compare between machines; times and rates are also shown as they would be on the
machine that the targets were stated for. Where one is missed, a profile says where the time goes.

Prints tables and writes ``sandbox.json`` and, where matplotlib is installed (``pip install 'retool-env[bench]'``),
``sandbox.png``. ``sandbox_bench/__init__.py`` documents the JSON. Meant for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from sandbox_bench import cost, kill, latency, machine, overload, picture, sessions, tables, targets, throughput
from sandbox_bench.peers import Peers, find_interpreters
from sandbox_bench.stage import QUICK, Plan, Stage

SECTIONS = ("latency", "throughput", "sessions", "kill", "overload")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=SECTIONS,
        metavar="SECTION",
        help="some of: " + ", ".join(SECTIONS),
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it runs, not for figures")
    parser.add_argument("--profile", action="store_true", help="show where the time goes even if all targets are met")
    parser.add_argument("--tier", default="auto", help="nsjail, landlock, or the better one that runs (auto)")
    parser.add_argument(
        "--pause-ms", type=float, help="idle time before a call (default: 1.2 starts of a fresh Python)"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="PLACE",
        help="other projects' tools: folders with environments gem-llm, skyrl-gym and verifiers (default .venv-peers), "
        "or NAME=PYTHON; each is run and timed in its own interpreter",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder for the files (default runs/bench)"
    )
    options = parser.parse_args()
    places = [".venv-peers"] if options.peers == [] else options.peers or []
    console = Console() if sys.stdout.isatty() else Console(width=120)
    _raise_limit_on_open_files()
    pause_s = None if options.pause_ms is None else options.pause_ms / 1000
    try:
        find_interpreters(places)
    except ValueError as error:
        parser.error(str(error))
    with Peers(places) as peers, Stage(QUICK if options.quick else Plan(), options.tier, pause_s) as stage:
        report = _measure(stage, peers, tuple(options.only), options.profile, console)
        report["options"] = {"quick": options.quick, "sections": list(options.only), "pause_ms": stage.pause_s * 1e3}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sandbox.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not picture.draw(report, options.out / "sandbox.png"):
        console.print("no picture: matplotlib is not installed (pip install 'retool-env[bench]')", markup=False)
    console.print(f"written to {options.out}")


def _measure(stage: Stage, peers: Peers, sections: tuple[str, ...], profile: bool, console: Console) -> dict[str, Any]:
    report: dict[str, Any] = {"schema": 1, "machine": machine.facts(stage.tier), "peers": peers.report}
    measures = {
        "latency": lambda: latency.measure(stage, peers.ways),
        "throughput": lambda: throughput.measure(stage),
        "sessions": lambda: sessions.measure(stage),
        "kill": lambda: kill.measure(stage),
        "overload": lambda: overload.measure(stage),
    }
    tables.show_machine(report, console)
    for section in sections:
        with console.status(f"measuring {section}"):
            report[section] = measures[section]()
        report["targets"] = targets.judge(report)
        tables.show(section, report, console)
    missed = {entry["topic"] for entry in report["targets"] if entry["verdict"] == "not met"}
    if profile or missed & {"latency", "throughput", "sessions", "overload"}:
        with console.status("measuring where the time goes"):
            report["profile"] = cost.measure(stage)
        tables.show("profile", report, console)
    return report


def _raise_limit_on_open_files() -> None:
    """A live session takes four descriptors; 500 of them are more than the usual soft limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))


if __name__ == "__main__":
    main()
