"""``benchmarks/rollout.py`` with few attempts: it runs, and its JSON is what its documentation says. No figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rollout.py"
SPREAD = {"n", "p50", "p99", "max"}


@pytest.mark.slow
def test_it_measures_a_run_and_says_what_it_found(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--problems", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "rollout.json").read_text(encoding="utf-8"))
    assert report.keys() == {"schema", "machine", "options", "rollout", "growth", "calls", "targets"}
    documented = (SCRIPT.parent / "rollout_bench" / "__init__.py").read_text(encoding="utf-8")
    part = report["rollout"]
    assert [
        key for key in (*report, *report["options"], *part, *report["growth"]) if f"``{key}``" not in documented
    ] == []
    assert (part["attempts"], part["correct"], part["faults"]) == (16, 16, 0)
    for name in ("turn_tokens", "trajectory_tokens", "lag_ms", "idle_lag_ms", "stretch_ms"):
        assert part[name].keys() == SPREAD
    assert 0 < part["store_cpu_ms"] < part["own_cpu_ms"] < part["process_cpu_ms"]
    assert 0 <= part["sandbox_wait_share"] < part["work_share"] < 1
    # A turn late in a long attempt costs what an early one does; work over the whole attempt would make it 4.
    assert report["growth"]["ratio"] < 2.5
    (call,) = report["calls"]
    assert call["cpu_ms"] > 0
    assert {entry["verdict"] for entry in report["targets"]} <= {"met", "not met"}
    assert "CPU time for a turn" in done.stdout
