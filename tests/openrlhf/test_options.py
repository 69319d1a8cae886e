"""The environment variables and the file of the agent files: what they become, what is refused, and the manual."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from retool_openrlhf.options import OPTIONS, PREFIX, read_environment, read_options

from retool_env.errors import ConfigurationError
from retool_env.rollout.measure import METRICS
from retool_env.sandbox import SandboxConfig

ADAPTER = Path(__file__).parents[2] / "adapters" / "openrlhf"
README = ADAPTER / "README.md"


def test_without_anything_everything_has_its_default() -> None:
    settings = read_environment({"PATH": "/bin", "RETOOL_TOKENIZERS": "elsewhere"})
    assert settings.attempt.episode.protocol == "code_tags"
    assert settings.attempt.on_fault == "mask"
    assert settings.attempt.deadline_s is not None
    assert settings.evaluation.episode.reward == "accuracy"
    assert settings.sandbox == SandboxConfig()
    assert settings.record is None


def test_a_variable_stands_in_place_of_the_files_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("protocol: tool_calls\nmax_turns: 3\nreward: paper\nsandbox: {timeout_s: 2, memory_mb: 300}\n")
    said = {
        "CONFIG": str(file),
        "MAX_TURNS": "5",
        "MAX_OBSERVATION_TOKENS": "256",
        "TEMPLATE_OPTIONS": "{enable_thinking: false}",
        "ON_FAULT": "raise",
    }
    settings = read_environment({PREFIX + key: value for key, value in said.items()})
    for attempt, reward in ((settings.attempt, "paper"), (settings.evaluation, "accuracy")):
        assert (attempt.episode.protocol, attempt.episode.max_turns) == ("tool_calls", 5)
        assert attempt.episode.reward == reward
        assert (attempt.episode.timeout_s, attempt.episode.memory_mb) == (2, 300)
        assert attempt.budget.observation == 256
        assert attempt.template_options == {"enable_thinking": False}
        assert attempt.on_fault == "raise"
    assert settings.sandbox == SandboxConfig(timeout_s=2, memory_mb=300)


def test_engines_of_a_machine_share_its_cores() -> None:
    cores = max(2, os.cpu_count() or 1)
    shared = read_options({"engines_per_node": cores}).sandbox
    assert (shared.max_concurrency, shared.standby, shared.zygotes) == (4, 2, 1)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"PROTOKOL": "code_tags"}, "RETOOL_AGENT_PROTOKOL: there is no such variable"),
        ({"PROTOCOL": "nonsense"}, "protocol"),
        ({"MAX_TURNS": "many"}, "max_turns"),
        ({"MAX_TURNS": "[1"}, "RETOOL_AGENT_MAX_TURNS: no valid YAML"),
        ({"MAX_TURNS": "2025-13-01"}, "RETOOL_AGENT_MAX_TURNS: no valid YAML"),
        ({"MAX_TURNS": "[" * 10_000}, "RETOOL_AGENT_MAX_TURNS: no valid YAML"),
        ({"SANDBOX": "auto"}, "sandbox"),
        ({"SANDBOX": "{timeout: 3}"}, "sandbox.timeout"),
        ({"REWARD": "operator:nothing"}, "cannot be imported"),
        ({"CONFIG": "no/such/file.yaml"}, "cannot be read"),
        ({"ENGINES_PER_NODE": "0"}, "engines_per_node"),
        ({"TEMPLATE_OPTIONS": "thinking"}, "template_options"),
        ({"RECORD": "/proc/nowhere"}, "record"),
        ({"ON_FAULT": "drop"}, "on_fault"),
    ],
)
def test_what_cannot_work_is_refused_by_name(said: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_environment({PREFIX + key: value for key, value in said.items()})


@pytest.mark.parametrize(
    ("text", "message"), [("- a\n- b\n", "must hold keys and values"), ("protokol: x\n", "unknown key 'protokol'")]
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_environment({PREFIX + "CONFIG": str(file)})


def test_the_file_in_the_repository_is_read() -> None:
    settings = read_environment({PREFIX + "CONFIG": str(ADAPTER / "config" / "retool.yaml")})
    assert settings.sandbox == SandboxConfig(timeout_s=5, memory_mb=512)
    assert settings.attempt.budget.observation == 512


@pytest.mark.parametrize("key", ["protocol", "max_turns", "on_fault", "sandbox", "reward"])
def test_the_file_in_the_repository_has_the_main_keys(key: str) -> None:
    assert f"\n{key}:" in (ADAPTER / "config" / "retool.yaml").read_text()


def test_the_manual_has_every_key_and_every_metric() -> None:
    text = README.read_text(encoding="utf-8")
    assert [key for key in (*OPTIONS, *METRICS) if f"`{key}`" not in text] == []


@pytest.mark.parametrize(("arguments", "file"), [([], "agent_func.py"), (["instance"], "instance_func.py")])
def test_the_command_says_where_the_agent_file_is_or_what_is_wrong(arguments: list[str], file: str) -> None:
    def run(**said: str) -> Any:
        command = [sys.executable, "-m", "retool_openrlhf.options", *arguments]
        return subprocess.run(command, env={**os.environ, **said}, capture_output=True, text=True, check=False)

    good = run()
    assert good.returncode == 0, good.stderr
    assert Path(good.stdout.strip()).is_file()
    assert Path(good.stdout.strip()).name == file
    bad = run(RETOOL_AGENT_PROTOKOL="tool_calls")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "RETOOL_AGENT_PROTOKOL: there is no such variable" in bad.stderr


def test_the_command_knows_what_an_instance_cannot_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retool_openrlhf.options import main

    monkeypatch.setenv("RETOOL_AGENT_PROTOCOL", "tool_calls")
    assert main([]) == 0
    assert main(["instance"]) == 1
    assert "'tool_calls'" in capsys.readouterr().err
    assert main(["nothing"]) == 2
