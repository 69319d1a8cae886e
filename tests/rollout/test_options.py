"""What a trainer's configuration becomes, and the figures of attempts. The adapters' tests have the rest."""

import math
import os
from typing import Any

import pytest

from retool_env.errors import ConfigurationError
from retool_env.rollout.measure import METRICS, measure
from retool_env.rollout.options import OPTIONS, AttemptSettings, read_attempt_options
from retool_env.sandbox import SandboxConfig


def read(options: dict[str, Any], **limits: Any) -> AttemptSettings:
    return read_attempt_options(options, **{"name": "mine", "response": 4096, **limits})


def test_keys_go_where_they_belong() -> None:
    said = {"protocol": "tool_calls", "max_turns": 3, "max_turn_tokens": 512, "on_fault": "score"}
    sandbox = {"timeout_s": 2, "memory_mb": 300}
    settings = read({**said, "sandbox": sandbox}, context=8192, template_options={"enable_thinking": False})
    attempt = settings.attempt
    assert (attempt.episode.protocol, attempt.episode.max_turns) == ("tool_calls", 3)
    assert (attempt.budget.context, attempt.budget.response, attempt.budget.turn) == (8192, 4096, 512)
    assert attempt.on_fault == "score"
    assert attempt.template_options == {"enable_thinking": False}
    assert settings.sandbox == SandboxConfig(timeout_s=2, memory_mb=300)
    assert (attempt.episode.timeout_s, attempt.episode.memory_mb) == (2, 300)


def test_processes_of_a_machine_share_its_cores() -> None:
    cores = max(2, os.cpu_count() or 1)
    shared = read({}, processes_per_node=cores).sandbox
    assert (shared.max_concurrency, shared.standby, shared.zygotes) == (4, 2, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protokol": "code_tags"}, "mine: unknown key 'protokol'"),
        ({"sandbox": {"tier": "docker"}}, "sandbox.tier"),
        ({"reward": "operator:nothing"}, "cannot be imported"),
        ({"reward": "..nowhere:reward"}, "cannot be imported"),
        ({"max_observation_tokens": 1}, r"max_observation_tokens, .*: observation"),
        ({"deadline_s": math.inf}, "deadline_s"),
        ({"turn_timeout_s": math.inf}, "turn_timeout_s"),
        ({"resume_pause_s": math.inf}, "resume_pause_s"),
        ({"record": ""}, "record"),
        ({"record": "a\0b"}, "record: cannot make"),
        ({"reward": ":half"}, "cannot be imported"),
        ({"reward": "..mine:half"}, "cannot be imported"),
        ({"sandbox": {1: 2}}, "sandbox.1"),
        ({"min_turn_tokens": "many"}, "min_turn"),
        ({"min_turn_tokens": 5000}, "no turn would ever be begun"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(options)


def test_a_small_response_has_room_for_a_turn() -> None:
    assert read({}, response=8).attempt.budget.min_turn == 8
    assert read({"min_turn_tokens": None}).attempt.budget.min_turn == 16


def test_every_key_is_named_once() -> None:
    assert len(set(OPTIONS)) == len(OPTIONS)


def test_an_attempt_without_a_trace_has_all_figures() -> None:
    assert measure(None) == {**dict.fromkeys(METRICS, 0.0), "fault": 1.0}
