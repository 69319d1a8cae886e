"""``retool bench env``: it measures what it says, with turns that work, and judges what it measured."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retool_env.bench import targets
from retool_env.bench.actions import PROTOCOLS, SHAPES, FixedTurns, answer, episode, turn
from retool_env.bench.env import TOPICS
from retool_env.protocol import get_protocol
from retool_env.protocol.base import Answer, RunCode
from retool_env.tools import ToolRegistry

FACES = ("single", "vector", "group")
OWN = {"n", "chars", "own_p50_us", "own_best_us", "cpu_p50_us", "beside_program_p50_us", "step_p50_us", "reset_p50_us"}


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retool_env.cli", "bench", "env", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.slow
def test_a_quick_run_measures_all_that_is_documented(tmp_path: Path) -> None:
    done = bench("--quick", "--num-envs", 2, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "env.json").read_text(encoding="utf-8"))
    assert report.keys() == {"schema", "machine", "options", "targets", *TOPICS}
    assert report["options"] == {"quick": True, "topics": list(TOPICS), "num_envs": 2}

    for protocol in PROTOCOLS:
        for shape in SHAPES:
            own, length = report["own"][protocol][shape], report["length"][protocol][shape]
            assert own.keys() == OWN
            assert (own["chars"] == 10_000) is (shape != "output")
            assert 0 < own["own_best_us"] <= own["own_p50_us"] <= own["step_p50_us"]
            assert length["chars"] == [1_000, 2_000, 4_000]
            assert (len(length["own_best_us"]), len(length["ratios"])) == (3, 2)
        # Nothing runs for an answer: all of its step is our own.
        figures = report["own"][protocol]["answer"]
        assert figures["own_p50_us"] == figures["step_p50_us"] == figures["beside_program_p50_us"]

    has_group = importlib.util.find_spec("pettingzoo") is not None
    for face in FACES if has_group else FACES[:2]:
        assert report["rates"][face]["envs"] == (1 if face == "single" else 2)
        for protocol in PROTOCOLS:
            assert report["rates"][face][protocol].keys() == {"code", "no_code"}
            assert all(figures["turns_per_s"] > 0 for figures in report["rates"][face][protocol].values())
        memory = report["memory"][face]
        assert memory.keys() == {"envs", "made_kb", "reset_kb", "ended_kb"}
        assert 0 < memory["made_kb"] < memory["ended_kb"]
    assert [report["rates"][face]["what"] for face in FACES[:2]] == ["ReToolEnv", "ReToolVectorEnv"]

    for target in report["targets"]:
        comparison, limit = target["target"].split()[:2]
        reached = target["measured"] <= float(limit) if comparison == "<=" else target["measured"] < float(limit)
        assert target["verdict"] == ("met" if reached else "not met")
        assert target["name"] in done.stdout
    assert len(report["targets"]) == len(PROTOCOLS) * (len(SHAPES) - 1 + len(SHAPES))

    has_picture = importlib.util.find_spec("matplotlib") is not None
    assert (tmp_path / "env.png").exists() is has_picture
    assert ("no picture" in done.stderr) is not has_picture


def test_only_what_is_asked_for_is_measured(tmp_path: Path) -> None:
    done = bench("--quick", "--only", "own", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "env.json").read_text(encoding="utf-8"))
    assert [topic for topic in TOPICS if topic in report] == ["own"]
    assert {target["topic"] for target in report["targets"]} == {"own"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--only", "speed"), 2, "own, length, rates, memory"),
        (("--tier", "moon"), 2, "tier"),
        (("--out", __file__), 1, "test_bench_env.py"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_measured(
    arguments: tuple[object, ...], code: int, said: str, tmp_path: Path
) -> None:
    done = bench("--quick", *(() if "--out" in arguments else ("--out", tmp_path / "new")), *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_pettingzoo_the_rest_is_measured() -> None:
    code = """
import sys
sys.modules["pettingzoo"] = None  # as where it is not installed
from retool_env.bench import memory, rates
from retool_env.sandbox import Sandbox
with Sandbox() as sandbox:
    part = rates.measure(sandbox, 2, 0.01, 1, True)
    print(sorted(part["group"]), sorted(part["vector"]))
    print(sorted(memory.measure(sandbox, 1)["group"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['unsupported'] ['code_tags', 'envs', 'markdown', 'tool_calls', 'what']",
        "['unsupported']",
    ]


def test_the_command_line_loads_no_benchmark_and_the_benchmark_no_picture() -> None:
    code = """
import sys
import retool_env.cli
print([name for name in sys.modules if name.startswith("retool_env.bench")])
import retool_env.bench.env
print([name for name in ("matplotlib", "pettingzoo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "[]"
    assert "matplotlib" not in done.stdout
    assert "pettingzoo" not in done.stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_chars", [200, 1_000, 10_007])
def test_a_turn_is_as_long_as_was_asked_for_and_means_what_it_should(protocol: str, shape: str, n_chars: int) -> None:
    text = turn(protocol, shape, n_chars)
    action = get_protocol(protocol).parse(text, ToolRegistry())
    if shape != "output":
        assert len(text) == n_chars
    if shape == "answer":
        assert isinstance(action, Answer)
        assert action.text == "42"
        return
    assert isinstance(action, RunCode)
    (source,) = action.codes
    compile(source, "turn", "exec")
    assert source.splitlines()[-1] == (f"print('x' * {n_chars})" if shape == "output" else "print(6 * 7)")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_episode_of_turns_is_sampled_over_and_over(protocol: str) -> None:
    turns = episode(protocol, code=True)
    assert turns[-1] == answer(protocol)
    assert episode(protocol, code=False) == turns[-1:]
    space = FixedTurns(turns)
    assert tuple(space.sample() for _ in range(8)) == turns * 2
    assert all(text in space for text in turns)


def _length_report(ratios: list[float]) -> dict[str, Any]:
    return {"length": {"code_tags": {"prose": {"ratios": ratios}}}}


@pytest.mark.parametrize(("ratios", "verdict"), [([1.1, 2.2], "met"), ([1.1, 4.0, 2.0], "not met")])
def test_what_grows_as_the_square_is_not_met(ratios: list[float], verdict: str) -> None:
    (entry,) = targets.judge(_length_report(ratios))
    assert (entry["measured"], entry["verdict"]) == (max(ratios), verdict)


@pytest.mark.parametrize(("p50_us", "verdict"), [(100.0, "met"), (100.1, "not met")])
def test_own_time_is_judged_by_its_median(p50_us: float, verdict: str) -> None:
    figures = {"own_p50_us": p50_us, "own_best_us": 1.0}
    entries = targets.judge({"own": {"code_tags": dict.fromkeys(("prose", "program", "answer", "output"), figures)}})
    assert {entry["verdict"] for entry in entries} == {verdict}
    assert not any("output" in entry["name"] for entry in entries)
