"""What the agent loop's entry in verl's ``agent_loop_config_path`` may hold, and what verl's own configuration adds.

    - name: retool
      _target_: retool_verl.loop.RetoolAgentLoop
      protocol: code_tags
      reward: tool_aware
      sandbox: {tier: auto, timeout_s: 5}
      max_observation_tokens: 512

The keys are those of ``retool_env.rollout.options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_env.rollout.attempt import AttemptConfig
from retool_env.rollout.options import OPTIONS, read_attempt_options
from retool_env.sandbox import SandboxConfig

__all__ = ["OPTIONS", "Settings", "read_options"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the attempts of a worker are made.

    Attributes:
        attempt: The attempts.
        sandbox: Where their code runs.
        prompt_length: Tokens that verl has room for in a prompt.
        record: Folder for the trajectories; None for none.
    """

    attempt: AttemptConfig
    sandbox: SandboxConfig
    prompt_length: int
    record: Path | None = None


def read_options(
    options: Mapping[str, Any],
    *,
    prompt_length: int,
    response_length: int,
    max_model_len: int | None = None,
    workers_per_node: int = 1,
    template_options: Mapping[str, Any] | None = None,
) -> Settings:
    """Returns what the keys of the entry and verl's configuration say.

    Args:
        options: The entry's keys, without ``name`` and ``_target_``.
        prompt_length: verl's ``rollout.prompt_length``.
        response_length: verl's ``rollout.response_length``: observations are shortened to keep it, turns end there.
        max_model_len: verl's ``rollout.max_model_len``; None for the model's own.
        workers_per_node: Agent loop workers on a machine: each has a sandbox, which gets its share of the cores.
        template_options: verl's ``data.apply_chat_template_kwargs``.

    Raises:
        ConfigurationError: A key is unknown or has a value that cannot work.
    """
    read = read_attempt_options(
        options,
        name="agent loop",
        response=response_length,
        # One less than the model has room for: that is where SGLang stops.
        context=None if max_model_len is None else max_model_len - 1,
        processes_per_node=workers_per_node,
        template_options=template_options,
    )
    return Settings(read.attempt, read.sandbox, prompt_length, read.record)
