"""What the agent loop's entry in verl's ``agent_loop_config_path`` may hold, and what verl's own configuration adds.

    - name: retool
      _target_: retool_verl.loop.RetoolAgentLoop
      protocol: code_tags
      reward: tool_aware
      sandbox: {tier: auto, timeout_s: 5}
      max_observation_tokens: 512

The keys are the fields of ``EpisodeConfig``, some of ``AttemptConfig``, and the few in ``_OWN``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from retool_env.config import EpisodeConfig, explain
from retool_env.errors import ConfigurationError
from retool_env.rollout.attempt import AttemptConfig
from retool_env.sandbox import SandboxConfig
from retool_env.tokens import TokenBudget

_FILLED_IN: Final = frozenset({"tools", "special_tokens", "timeout_s", "memory_mb"})
_EPISODE: Final = tuple(name for name in EpisodeConfig.model_fields if name not in _FILLED_IN)
_ATTEMPT: Final = ("turn_timeout_s", "max_resumes", "resume_pause_s", "deadline_s", "on_fault")
_OWN: Final = ("sandbox", "max_observation_tokens", "max_turn_tokens", "min_turn_tokens", "record")
OPTIONS: Final = (*_EPISODE, *_ATTEMPT, *_OWN)
"""The names of all keys."""

_DEADLINE_S: Final = 14_400.0
"""verl itself waits for an attempt for ever, and with it a whole step. Far more than an attempt may wait for its turns
in a full batch: it is for what hangs."""


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
    if unknown := [key for key in options if key not in OPTIONS]:
        raise ConfigurationError(f"agent loop: unknown key {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    episode = {key: options[key] for key in _EPISODE if key in options}
    if "reward" in episode:
        episode["reward"] = _find_reward(episode["reward"])
    if episode.get("prompt_template") is not None:
        episode["prompt_template"] = _template(episode["prompt_template"])
    budget = TokenBudget(
        # One less than the model has room for: that is where SGLang stops.
        context=None if max_model_len is None else max_model_len - 1,
        response=response_length,
        turn=options.get("max_turn_tokens"),
        observation=options.get("max_observation_tokens"),
        min_turn=min(options.get("min_turn_tokens", 16), response_length),
    )
    sandbox = _shared(_sandbox(options.get("sandbox")), workers_per_node)
    attempt = AttemptConfig(
        # The limits that a prompt states are those that hold.
        episode=EpisodeConfig(**episode, timeout_s=sandbox.timeout_s, memory_mb=sandbox.memory_mb),
        budget=budget,
        template_options=dict(template_options or {}),
        **{"deadline_s": _DEADLINE_S} | {key: options[key] for key in _ATTEMPT if key in options},
    )
    return Settings(attempt, sandbox, prompt_length, _folder(options.get("record")))


def _find_reward(reward: object) -> object:
    """Finds the callable that ``"package.module:name"`` stands for; anything else is left to ``EpisodeConfig``."""
    if not isinstance(reward, str) or ":" not in reward:
        return reward
    module, _, name = reward.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"reward: {reward!r} cannot be imported: {error}") from error
    return found


def _template(template: object) -> object:
    """A template is its text, with the question's place in it, or the path of its file."""
    return Path(template) if isinstance(template, str) and "{question}" not in template else template


def _folder(record: object) -> Path | None:
    if record is None:
        return None
    if not isinstance(record, str) or not record:
        raise ConfigurationError(f"record: must be the path of a folder, got {record!r:.100}")
    try:
        Path(record).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"record: cannot make {record}: {error.strerror}") from error
    return Path(record)


def _sandbox(options: object) -> SandboxConfig:
    if not isinstance(options, Mapping | None):
        raise ConfigurationError(f"sandbox: must hold the options of the sandbox, got {options!r:.100}")
    try:
        return SandboxConfig(**(options or {}))
    except ValidationError as error:
        raise ConfigurationError(explain(error, "sandbox")) from None


def _shared(config: SandboxConfig, n: int) -> SandboxConfig:
    """Gives the sandbox of one of n workers its share of the cores, where the user has not said how many."""
    if n <= 1:
        return config
    share = max(1, (os.cpu_count() or 1) // n)
    shares = {"zygotes": max(1, share // 4), "max_concurrency": min(900, 4 * share), "standby": min(900, 2 * share)}
    return config.model_copy(update={key: value for key, value in shares.items() if getattr(config, key) is None})
