"""``benchmarks/sandbox.py`` on a real sandbox: it runs, and its JSON is what its documentation says. No figures."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retool_env.sandbox import Sandbox

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sandbox.py"
PROGRAMS = {"P1", "P2", "P3", "P4"}
SUMMARY = {"n", "p50_ms", "p95_ms", "p99_ms", "mean_ms"}
IMMORTAL = "sandbox, immortal"
has_immortal = sys.version_info >= (3, 12)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=280)


def is_measured(part: dict[str, Any], keys: set[str]) -> bool:
    """Whether a part has exactly these keys, or says why it could not be measured."""
    if "unsupported" in part:
        return part.keys() == {"unsupported"} and bool(part["unsupported"])
    return part.keys() == keys


@pytest.mark.slow
def test_a_quick_run_writes_every_documented_key(
    tier: str, start_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    start_sandbox(tier=tier).close()
    missing = tmp_path / "missing" / "python"
    done = run("--quick", "--profile", "--tier", tier, "--peers", f"gem-llm={missing}", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "sandbox.json").read_text(encoding="utf-8"))
    sections = {"latency", "throughput", "sessions", "kill", "overload"}
    assert report.keys() == sections | {"schema", "machine", "options", "peers", "profile", "targets"}
    assert report["schema"] == 1
    facts = {"cpu", "cores", "memory_gb", "kernel", "load_1min", "root", "tier", "python", "packages"}
    assert report["machine"].keys() == facts
    assert report["machine"]["tier"] == tier
    assert report["options"].keys() == {"quick", "sections", "pause_ms"}
    assert all(report[section]["slowness"] > 0 for section in sections)
    assert str(missing) in report["peers"]["gem-llm"]["unsupported"]

    ours = {"sandbox", "sandbox, on demand", "sandbox, no light zygote"} | ({IMMORTAL} if has_immortal else set())
    latency = report["latency"]
    assert latency.keys() == {"slowness", "ways", "fork_floor", "unsupported"}
    assert latency["ways"].keys() == ours | {"subprocess"}
    assert (IMMORTAL in latency["unsupported"]) is not has_immortal
    assert all(programs.keys() == PROGRAMS for programs in latency["ways"].values())
    assert all(figures.keys() == SUMMARY | {"ratio"} for way in latency["ways"].values() for figures in way.values())
    assert {kind: figures.keys() for kind, figures in latency["fork_floor"].items()} == {
        "small": SUMMARY,
        "loaded": SUMMARY,
    }

    throughput = report["throughput"]
    assert throughput.keys() == {"slowness", "per_core", "unsupported"}
    assert throughput["per_core"].keys() == (ours | {"subprocess"}) - {"sandbox, on demand"}
    assert throughput["per_core"]["subprocess"].keys() == {"P1", "P2", "P4"}
    assert throughput["per_core"]["sandbox"]["P2"].keys() == {"2", "32"}

    sessions = report["sessions"]
    assert sessions.keys() == {"slowness", "open", "turn", "turn_at_once", "bare", "fork", "memory_mb", "many"}
    assert all(sessions[key].keys() == SUMMARY for key in ("open", "turn", "turn_at_once", "bare"))
    assert is_measured(sessions["fork"], SUMMARY)
    assert sessions["memory_mb"].keys() == {"plain", "immortal"}
    for memory in sessions["memory_mb"].values():
        assert is_measured(memory, {"idle", "after_sympy"})
    many = {"asked", "open", "answered", "kept", "open_s", "private_mb", "page_tables_mb", "descriptors"}
    assert sessions["many"].keys() == many
    assert sessions["many"]["kept"] == sessions["many"]["asked"]

    kill = report["kill"]
    assert kill.keys() == {"slowness", "runaway", "fork_bomb", "verdict", "owner"}
    assert all(kill[key].keys() == SUMMARY for key in ("runaway", "verdict", "owner"))
    assert is_measured(kill["fork_bomb"], SUMMARY)

    overload = report["overload"]
    assert overload.keys() == {"slowness", "program", "levels", "growth"}
    for level in overload["levels"].values():
        assert level.keys() == {"queue", "not_ok", "overtaken", "total_s"}
        assert level["queue"].keys() == SUMMARY

    profile = report["profile"]
    assert profile.keys() == {"turn", "alone_ms", "idle", "busy"}
    assert profile["turn"].keys() == {"wall_ms", "program_cpu_ms", "host_cpu_ms", "client_cpu_ms"}
    costs = {"wall_ms", "program_cpu_ms", "program_faults", "host_cpu_ms", "client_cpu_ms", "zygote_cpu_ms"}
    for mode in ("idle", "busy"):
        assert profile[mode].keys() == profile["alone_ms"].keys() == PROGRAMS
        assert all(c.keys() == costs | {"children_cpu_ms", "children_faults"} for c in profile[mode].values())

    for target in report["targets"]:
        assert target.keys() == {"topic", "name", "unit", "measured", "scaled", "target", "verdict"}
        assert target["verdict"] == verdict(target)
        assert target["name"] in done.stdout
    assert (tmp_path / "sandbox.png").exists() is (importlib.util.find_spec("matplotlib") is not None)


def verdict(target: dict[str, Any]) -> str:
    """Judges a target by what is written in its own entry."""
    comparison, limit = target["target"].split()[:2]

    def reached(value: float | None) -> bool:
        return value is not None and (value >= float(limit) if comparison == ">=" else value <= float(limit))

    if target["measured"] is None:
        return "not measured"
    if reached(target["measured"]):
        return "met"
    return "met, scaled" if reached(target["scaled"]) else "not met"


@pytest.mark.slow
@pytest.mark.landlock
def test_one_section_alone_is_measured_and_judged(start_sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    start_sandbox(tier="landlock").close()
    done = run("--quick", "--only", "kill", "--tier", "landlock", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "sandbox.json").read_text(encoding="utf-8"))
    assert report.keys() == {"schema", "machine", "options", "peers", "kill", "targets"}
    assert {target["topic"] for target in report["targets"]} == {"kill"}


@pytest.mark.parametrize("arguments", [("--only", "latencies"), ("--peers", "gem=python")])
def test_a_wrong_argument_is_refused_with_the_right_ones(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, "--out", str(tmp_path))
    assert done.returncode == 2
    assert "throughput" in done.stderr or "skyrl-gym" in done.stderr
    assert not list(tmp_path.iterdir())
