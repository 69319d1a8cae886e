"""``benchmarks/grading.py`` on the real grader: it runs, and its JSON is what its documentation says. No figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "grading.py"
CASES = Path(__file__).parents[1] / "cases" / "grading.jsonl"
OURS = {"retool_env", "retool_env, strict", "retool_env, lenient"}
DAPO = {"math_dapo", "math_dapo, strict"}
TIMED = {"retool_env", "math-verify", "last box, same text"}
COUNTS = {"n", "right", "false_positives", "false_negatives", "policy_free", "timed_out", "raised", "hung", "died"}
# Stands for verl's grader, which comes with torch: it always says that an answer is right, or raises.
MATH_DAPO = """
def compute_score(text, gold, strict_box_verify=False):
    if strict_box_verify and "raise" not in text:
        raise ValueError
    return {"acc": True}
"""
# Stands for math-verify's tests: of these, only the first three are labelled pairs without options.
PAIRS = """
@pytest.mark.parametrize("gold,pred,expected", [
    ("$\\\\frac{1}{2}$", "$0.5$", 1),
    ("$x^2$", "So it is $\\\\boxed{x^3}$", 0),
])
def test_a(): raise RuntimeError("nothing is run")
@pytest.mark.parametrize("gold, pred, result", [(r"$1$" + "0", "1", 1), ("%s", "2", 0)])
def test_b(): ...
@pytest.mark.parametrize("gold, pred, expected, strict", [("1", "1", 1, False)])
def test_c(): ...
""" % ("1" * 101)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def read(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "grading.json").read_text(encoding="utf-8"))
    return report


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "verl" / "utils" / "reward_score"
    folder.mkdir(parents=True)
    (folder / "math_dapo.py").write_text(MATH_DAPO)
    (tmp_path / "site" / "verl" / "__init__.py").write_text("raise ImportError('it is not to be imported')")
    return tmp_path / "site"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    (tmp_path / "test_all.py").write_text(PAIRS)
    path = tmp_path / "math_verify.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "test_all.py", "math_verify-0/tests/test_all.py")
    return path


@pytest.mark.slow
def test_a_quick_run_writes_every_documented_key(verl: Path, pairs: Path, tmp_path: Path) -> None:
    done = run("--quick", "--verl", verl, "--pairs", pairs, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    report = read(tmp_path)
    sections = {"latency", "corpus", "pairs", "many"}
    assert report.keys() == sections | {"schema", "machine", "graders", "options", "targets"}
    facts = {"cpu", "cores", "memory_gb", "kernel", "load_1min", "root", "python", "packages"}
    assert report["machine"].keys() == facts
    assert report["options"].keys() == {"quick", "sections", "limit_s", "many_limit_s"}
    everyone = OURS | DAPO | TIMED
    assert report["graders"].keys() == everyone
    assert all(about.keys() == {"what"} for about in report["graders"].values())

    assert report["latency"].keys() == {"integer", "integer_turn", "latex", "latex_turn"}
    for by_name in report["latency"].values():
        assert by_name.keys() == TIMED | {"math_dapo"}
        assert all(figures.keys() == {"n", "p50_us", "p99_us", "right"} for figures in by_name.values())
        assert by_name["retool_env"]["right"] == by_name["retool_env"]["n"]  # these answers leave no doubt

    corpus = report["corpus"]
    assert corpus.keys() == everyone
    assert all(counts.keys() == COUNTS for counts in corpus.values())
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    right = [case["id"] for case in cases if case["expected"]]
    assert corpus["math_dapo"]["false_negatives"] == []  # the stand-in says yes to all
    assert len(corpus["math_dapo"]["false_positives"]) == len(cases) - len(right)
    assert corpus["math_dapo, strict"]["raised"] == len(cases)
    assert corpus["math_dapo, strict"]["false_negatives"] == right
    assert corpus["retool_env"]["false_positives"] == []
    assert corpus["math-verify"]["hung"] > 0  # and it went on with the next case
    assert corpus["math-verify"]["right"] > len(cases) / 2

    assert report["pairs"].keys() == everyone
    assert all(counts.keys() == COUNTS | {"plain"} for counts in report["pairs"].values())
    ours = report["pairs"]["retool_env"]
    assert (ours["n"], ours["right"], ours["plain"]) == (3, 3, {"n": 2, "right": 2})
    assert report["pairs"]["math_dapo"]["false_positives"] == ["test_all.py:4", "test_all.py:7"]

    many = report["many"]
    counts = {"n", "hanging", "hungry", "malformed", "limit_s", "restart_s", "plain_s"}
    assert many.keys() == counts | {"serial", "threads"}
    for key in ("serial", "threads"):
        ways = {"workers", "total_s", "kills", "missed", "paid", "explained_s", "alive", "left_behind"}
        assert many[key].keys() == ways
        assert many[key]["kills"] >= many["hanging"] + many["hungry"]
        assert (many[key]["paid"], many[key]["alive"], many[key]["left_behind"]) == (0, True, 0)

    for target in report["targets"]:
        assert target.keys() == {"topic", "name", "unit", "measured", "target", "verdict"}
        comparison, limit = target["target"].split()[:2]
        reached = target["measured"] >= float(limit) if comparison == ">=" else target["measured"] <= float(limit)
        assert target["verdict"] == ("met" if reached else "not met")
        assert target["name"] in done.stdout
    assert {target["topic"] for target in report["targets"]} == sections


@pytest.mark.slow
def test_what_is_not_here_is_said_and_the_rest_is_measured(tmp_path: Path) -> None:
    done = run("--quick", "--only", "latency", "pairs", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    report = read(tmp_path)
    assert "--pairs" in report["pairs"]["unsupported"]
    assert [target["verdict"] for target in report["targets"] if target["topic"] == "pairs"] == ["not measured"]
    assert report["latency"]["integer"].keys() >= TIMED
    for name in DAPO:
        assert ("unsupported" in report["graders"][name]) is ("math_dapo" not in report["latency"]["integer"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "corpora"), "latency"),
        (("--verl", "/"), "math_dapo.py"),
        (("--verl", sys.executable + "-none"), "none"),
        (("--pairs", SCRIPT.parent / "sandbox_bench"), "pip download"),
        (("--pairs", "no.tar.gz"), "no.tar.gz"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_right_ones(
    arguments: tuple[object, ...], said: str, tmp_path: Path
) -> None:
    done = run(*arguments, "--out", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
