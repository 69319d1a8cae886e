"""The launch scripts, whose flags OpenRLHF's own parser and checks take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ADAPTER = Path(__file__).parents[2] / "adapters" / "openrlhf"
SCRIPTS = {
    "sft": "train_sft",
    "grpo": "train_ppo_ray",
    "reinforce": "train_ppo_ray",
    "ppo": "train_ppo_ray",
}


def flags(script: str, *more: str, **settings: str) -> list[str]:
    run = subprocess.run(
        [ADAPTER / "scripts" / f"{script}.sh", *more],
        env={**os.environ, "PRINT": "1", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()


@pytest.mark.parametrize("mode", ["hybrid", "async"])
@pytest.mark.parametrize("model", ["7b", "32b", "qwen3-4b"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_openrlhf_takes_and_reads_every_flag(script: str, model: str, mode: str) -> None:
    from retool_openrlhf.flags import find_faults, read_flags

    said = flags(script, MODEL=model, MODE=mode)
    assert len(said) > 10
    assert find_faults(SCRIPTS[script], said) == []
    arguments = read_flags(SCRIPTS[script], said)
    if script == "sft":
        assert arguments.data.input_key == "messages"
        return
    assert Path(arguments.train.agent_func_path).is_file()
    assert (arguments.data.input_key, arguments.data.label_key) == ("input", "label")
    assert arguments.data.apply_chat_template is False
    assert arguments.train.async_enable is (mode == "async")
    assert arguments.vllm.enable_sleep is (mode == "hybrid")
    gpus = arguments.actor.num_nodes * arguments.actor.num_gpus_per_node
    engines = arguments.vllm.num_engines * arguments.vllm.tensor_parallel_size
    n_nodes = 2 if model == "32b" else 1
    assert gpus == engines if mode == "hybrid" else gpus + engines == 8 * n_nodes


def test_reinforce_without_a_baseline_and_more_flags_are_taken() -> None:
    from retool_openrlhf.flags import find_faults, read_flags

    more = ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0.0", "1.0"]
    said = flags("reinforce", *more, "--train.partial_rollout_enable", ESTIMATOR="reinforce", MODE="async")
    assert find_faults("train_ppo_ray", said) == []
    assert read_flags("train_ppo_ray", said).algo.advantage.estimator == "reinforce"
    readme = (ADAPTER / "README.md").read_text(encoding="utf-8")
    for flag in (*more[:2], "--train.partial_rollout_enable"):
        assert flag in readme


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--train.no_such_flag"], "no_such_flag"),
        (["--train.agent_func", "mine.py"], "--train.agent_func"),  # the parser itself takes abbreviations
        (["--actor.adam.lr", "fast"], "--actor.adam.lr"),
        (["--algo.advantage.estimator", "grpo"], "invalid choice"),
        (["--data.max_len", "1"], "given 2 times"),
        (["--actor.num_gpus_per_node", "4"], "--actor has 4 GPUs"),
        (["--train.async_enable"], "Async RLHF is not supported"),
        (["--train.partial_rollout_enable"], "requires --train.async_enable"),
        (["--data.input_template", "User:"], "input_template"),
        (["mine"], "mine"),
    ],
)
def test_what_openrlhf_would_not_take_or_do_otherwise_is_found(more: list[str], said: str) -> None:
    from retool_openrlhf.flags import find_faults

    faults = find_faults("train_ppo_ray", [*flags("grpo", MODE="hybrid"), *more])
    assert any(said in fault for fault in faults), faults


def test_scripts_refuse_what_there_is_not() -> None:
    for name, value, said in (("DEVICE", "npu", "CUDA only"), ("MODEL", "70b", "7b"), ("MODE", "sync", "hybrid")):
        run = subprocess.run(
            [ADAPTER / "scripts" / "grpo.sh"],
            env={**os.environ, "PRINT": "1", name: value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 2
        assert said in run.stderr


def test_a_running_cluster_gets_the_job_with_its_variables(tmp_path: Path) -> None:
    """Ray's workers have the environment of the cluster; a mistake in the variables stops the script before it."""
    for name, does in (("ray", 'printf "%s\\n" "$@"'), ("python3", f'exec "{sys.executable}" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RAY_JOB": "http://127.0.0.1:8265",
        "MODEL": "qwen3-4b",
        "RETOOL_AGENT_MAX_TURNS": "3",
    }
    said = flags("grpo", PRINT="", **settings)
    assert said[:4] == ["job", "submit", "--address", "http://127.0.0.1:8265"]
    variables = json.loads(said[5])["env_vars"]
    assert variables["RETOOL_AGENT_MAX_TURNS"] == "3"
    assert variables["RETOOL_AGENT_TEMPLATE_OPTIONS"] == "{enable_thinking: false}"
    assert variables["RETOOL_AGENT_ENGINES_PER_NODE"] == "8"
    assert Path(variables["RETOOL_AGENT_CONFIG"]).is_file()
    assert said[6:9] == ["--", "python3", "-m"]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        flags("grpo", PRINT="", **{**settings, "RETOOL_AGENT_MAX_TURN": "3"})
    assert "RETOOL_AGENT_MAX_TURN: there is no such variable" in caught.value.stderr
    assert caught.value.stdout == ""


def test_every_script_says_that_it_is_not_verified() -> None:
    assert "Not verified on hardware" in (ADAPTER / "scripts" / "machine.sh").read_text()
    for script in SCRIPTS:
        assert "machine.sh" in (ADAPTER / "scripts" / f"{script}.sh").read_text()


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    from retool_openrlhf.flags import main

    good = flags("grpo")
    assert main(["train_ppo_ray"], good) == 0
    assert main(["train_ppo_ray"], [*good, "--train.no_such_flag"]) == 1
    assert "no_such_flag" in capsys.readouterr().err
    assert main([], []) == 2
    assert main(["train_dpo"], []) == 2
