"""The launch scripts, whose overrides verl's real configuration takes and reads; and the agent loop's entry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ADAPTER = Path(__file__).parents[2] / "adapters" / "verl"
SCRIPTS = {"sft": "sft_trainer_engine", "grpo": "ppo_trainer", "ppo": "ppo_trainer"}


def overrides(script: str, **settings: str) -> list[str]:
    run = subprocess.run(
        [ADAPTER / "scripts" / f"{script}.sh"],
        env={**os.environ, "PRINT": "1", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()


@pytest.mark.parametrize("device", ["gpu", "npu"])
@pytest.mark.parametrize("model", ["7b", "32b", "qwen3-4b"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_verl_takes_and_reads_every_override(script: str, model: str, device: str) -> None:
    from retool_verl.overrides import find_faults

    said = overrides(script, MODEL=model, DEVICE=device)
    assert len(said) > 10
    assert find_faults(SCRIPTS[script], said) == []
    assert f"trainer.device={'cuda' if device == 'gpu' else 'npu'}" in said


def test_dynamic_sampling_and_the_tools_settings_are_taken() -> None:
    from retool_verl.overrides import find_faults

    more = [
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={ADAPTER / 'config' / 'tool.yaml'}",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "actor_rollout_ref.rollout.multi_turn.max_tool_response_length=1100",
        "reward.custom_reward_function.path=pkg://retool_verl.reward",
        "reward.custom_reward_function.name=compute_score",
        "+reward.custom_reward_function.reward_kwargs.reward=paper",
    ]
    assert find_faults("ppo_trainer", [*overrides("grpo"), *more]) == []
    readme = (ADAPTER / "README.md").read_text(encoding="utf-8")
    for override in more:
        assert override.partition("=")[0] in readme


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.no_such_key=1", "no_such_key"),
        ("+trainer.no_such_key=1", "nothing reads it"),
        ("custom_reward_function.path=mine.py", "old layout"),
        ("reward_model.reward_manager=dapo", "old layout"),
        ("actor_rollout_ref.actor.clip_ratio_low=many", "clip_ratio_low"),
        ("actor_rollout_ref.actor.loss_agg_mode=mine", "loss_agg_mode"),
        ("data.return_raw_input_ids=True", "no line of verl reads"),
        ("actor_rollout_ref.rollout.over_sample_rate=0.1", "no line of verl reads"),
        ("actor_rollout_ref.rollout.n=four", "must be a number, got a text"),
        ("sense", "key=value"),
    ],
)
def test_what_verl_would_not_take_or_not_read_is_found(override: str, said: str) -> None:
    from retool_verl.overrides import find_faults

    faults = find_faults("ppo_trainer", [*overrides("grpo"), override])
    assert any(said in fault for fault in faults), faults


def test_the_loops_entry_is_read_as_verl_reads_it() -> None:
    from omegaconf import OmegaConf
    from retool_verl.options import read_options

    from retool_env.sandbox import SandboxConfig

    [entry] = OmegaConf.load(ADAPTER / "config" / "retool.yaml")
    assert entry.name == "retool"
    keys = {key: value for key, value in OmegaConf.to_container(entry).items() if key not in ("name", "_target_")}
    settings = read_options(keys, prompt_length=2048, response_length=16384)
    assert settings.sandbox == SandboxConfig(timeout_s=5, memory_mb=512)
    assert settings.attempt.budget.observation == 512


def test_the_tools_entry_is_read_by_verl() -> None:
    from verl.tools.tool_registry import load_all_tools

    [tool] = load_all_tools(str(ADAPTER / "config" / "tool.yaml"), None)
    assert tool.name == "code_interpreter"


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    from retool_verl.overrides import main

    good = "\n".join(overrides("grpo"))
    assert main(["ppo_trainer"], good.splitlines()) == 0
    assert main(["ppo_trainer"], [*good.splitlines(), "custom_reward_function.path=mine.py"]) == 1
    assert "old layout" in capsys.readouterr().err
    assert main([], []) == 2
    assert main(["ppo_trainer"], ["\n"]) == 2
    assert "has the script failed" in capsys.readouterr().err
