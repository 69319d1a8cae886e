"""docs/report.md keeps its promises."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retool_env.report import answers, estimates, run_report
from retool_env.trajectory import Trajectory, write_jsonl

pytestmark = pytest.mark.once  # a document says the same on every Python

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["report", "view"])
def test_the_options_exist(command: str) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "retool_env.cli", command, "--help"],
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    lines = re.findall(rf"retool {command}\b[^#|\n`]*", DOCUMENT)
    assert lines
    options = {option for line in lines for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)}
    assert {option for option in options if not re.search(rf"(?<!\S){option}\b", help_text)} == set()


def test_the_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:scripts|retool_env)/[\w./]+)`", DOCUMENT):
        assert (ROOT / name).exists()
    for name in re.findall(r"\]\(([^)]+)\)", DOCUMENT):
        assert (ROOT / "docs" / name).exists()
    for name in (run_report.METRICS, run_report.PAGE, run_report.ATTEMPTS):
        assert f"| `{name}` |" in DOCUMENT


def test_the_limits_are_those_of_the_code() -> None:
    words = " ".join(DOCUMENT.split())
    assert f"Up to {estimates.MAX_EXACT_VOTES} attempts" in words
    assert f"more than {run_report._MAX_LISTED}" in words
    limits = answers.Comparisons()
    assert f"at most {answers._PER_PROBLEM} comparisons at a problem and {limits.left:,} in a run" in words
    assert f"a minute in all ({limits.left_s:.0f} s)" in words


def test_the_program_runs(tmp_path: Path, record: Callable[..., Trajectory]) -> None:
    (tmp_path / "run").mkdir()
    write_jsonl(tmp_path / "run" / "trajectories.jsonl", [record("<answer>\\boxed{42}</answer>"), record("?")])
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 0.5\n"
    assert (tmp_path / "run" / "report.html").exists()
