"""The keys of the agent loop's entry: what they become, what is refused, and that the manual has them all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from retool_verl.options import OPTIONS, read_options

from retool_env.errors import ConfigurationError
from retool_env.reward import RewardFacts
from retool_env.sandbox import SandboxConfig

README = Path(__file__).parents[2] / "adapters" / "verl" / "README.md"


def read(options: dict[str, Any], **limits: Any) -> Any:
    return read_options(options, **{"prompt_length": 1024, "response_length": 4096, **limits})


def half(facts: RewardFacts) -> float:
    return 0.5


def test_without_keys_everything_has_its_default() -> None:
    settings = read({})
    assert settings.attempt.episode.protocol == "code_tags"
    assert settings.attempt.on_fault == "mask"
    assert settings.attempt.budget.response == 4096
    assert settings.attempt.budget.context is None
    assert settings.attempt.deadline_s is not None
    assert settings.sandbox == SandboxConfig()
    assert settings.record is None


def test_keys_go_where_they_belong(tmp_path: Path) -> None:
    template = tmp_path / "prompt.txt"
    template.write_text("Mine: {question}")
    settings = read(
        {
            "protocol": "tool_calls",
            "interpreter": "session",
            "max_turns": 3,
            "prompt_template": str(template),
            "max_observation_tokens": 256,
            "max_turn_tokens": 512,
            "turn_timeout_s": 60,
            "on_fault": "raise",
            "sandbox": {"tier": "landlock", "timeout_s": 2, "memory_mb": 300, "packages": ["numpy"]},
        },
        max_model_len=8192,
        template_options={"enable_thinking": False},
    )
    attempt = settings.attempt
    assert (attempt.episode.protocol, attempt.episode.interpreter) == ("tool_calls", "session")
    assert attempt.episode.max_turns == 3
    assert attempt.episode.prompt_template == "Mine: {question}"
    assert (attempt.budget.observation, attempt.budget.turn) == (256, 512)
    assert attempt.budget.context == 8191
    assert attempt.turn_timeout_s == 60
    assert attempt.on_fault == "raise"
    assert attempt.template_options == {"enable_thinking": False}
    assert settings.sandbox == SandboxConfig(tier="landlock", timeout_s=2, memory_mb=300, packages=("numpy",))
    assert (attempt.episode.timeout_s, attempt.episode.memory_mb) == (2, 300)


def test_a_table_of_ones_own_is_found_by_its_name() -> None:
    assert read({"reward": "operator:attrgetter"}).attempt.episode.reward.__name__ == "attrgetter"
    assert read({"reward": half}).attempt.episode.reward is half


def test_workers_of_a_machine_share_its_cores() -> None:
    cores = max(2, os.cpu_count() or 1)
    alone, shared = read({}).sandbox, read({}, workers_per_node=cores).sandbox
    assert alone.max_concurrency is None
    assert (shared.max_concurrency, shared.standby, shared.zygotes) == (4, 2, 1)
    said = read({"sandbox": {"max_concurrency": 7}}, workers_per_node=cores).sandbox
    assert said.max_concurrency == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 3}, "unknown key 'timeout_s'"),
        ({"sandbox": "auto"}, "sandbox"),
        ({"sandbox": {"tier": "docker"}}, "sandbox.tier"),
        ({"on_fault": "drop"}, "on_fault"),
        ({"reward": "operator:nothing"}, "cannot be imported"),
        ({"reward": "mine"}, "reward"),
        ({"prompt_template": "no/such/file"}, "cannot be read"),
        ({"record": ""}, "record"),
        ({"record": "/proc/nowhere"}, "record"),
        ({"max_turns": 0}, "max_turns"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(options)


def test_the_manual_has_every_key() -> None:
    text = README.read_text(encoding="utf-8")
    assert [key for key in OPTIONS if f"`{key}`" not in text] == []


def test_the_manual_has_every_metric() -> None:
    from retool_env.rollout.measure import METRICS

    text = README.read_text(encoding="utf-8")
    assert [key for key in METRICS if f"`{key}`" not in text] == []
