"""How a trainer's configuration makes attempts: the keys that every adapter has, and what they become.

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
"""Trainers wait for an attempt for ever, and with it a whole step. Far more than an attempt may wait for its turns in a
full batch: it is for what hangs."""


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """How the attempts of a process are made.

    Attributes:
        attempt: The attempts.
        sandbox: Where their code runs.
        record: Folder for the trajectories; None for none.
    """

    attempt: AttemptConfig
    sandbox: SandboxConfig
    record: Path | None = None


def read_attempt_options(
    options: Mapping[str, Any],
    *,
    name: str,
    response: int,
    context: int | None = None,
    processes_per_node: int = 1,
    template_options: Mapping[str, Any] | None = None,
) -> AttemptSettings:
    """Returns what the keys of a configuration say.

    Args:
        options: The keys.
        name: What messages call the configuration.
        response: Tokens after the prompt: observations are shortened to keep it, turns end there.
        context: Tokens in all; None for no limit of its own.
        processes_per_node: Processes on a machine that make attempts: each has a sandbox, which gets its share of the
            cores.
        template_options: Further arguments of the chat template.

    Raises:
        ConfigurationError: A key is unknown or has a value that cannot work.
    """
    if unknown := [key for key in options if key not in OPTIONS]:
        raise ConfigurationError(f"{name}: unknown key {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    episode = {key: options[key] for key in _EPISODE if key in options}
    if "reward" in episode:
        episode["reward"] = _find_reward(episode["reward"])
    if episode.get("prompt_template") is not None:
        episode["prompt_template"] = _template(episode["prompt_template"])
    min_turn = options.get("min_turn_tokens")
    try:
        budget = TokenBudget(
            context=context,
            response=response,
            turn=options.get("max_turn_tokens"),
            observation=options.get("max_observation_tokens"),
            min_turn=min(16, response) if min_turn is None else min_turn,
        )
    except ConfigurationError as error:
        keys = "max_turn_tokens, max_observation_tokens, min_turn_tokens"
        raise ConfigurationError(f"tokens ({keys}): {error}") from None
    sandbox = _shared(_sandbox(options.get("sandbox")), processes_per_node)
    attempt = AttemptConfig(
        # The limits that a prompt states are those that hold.
        episode=EpisodeConfig(**episode, timeout_s=sandbox.timeout_s, memory_mb=sandbox.memory_mb),
        budget=budget,
        template_options=dict(template_options or {}),
        **{"deadline_s": _DEADLINE_S} | {key: options[key] for key in _ATTEMPT if key in options},
    )
    return AttemptSettings(attempt, sandbox, _folder(options.get("record")))


def _find_reward(reward: object) -> object:
    """Finds the callable that ``"package.module:name"`` stands for; anything else is left to ``EpisodeConfig``."""
    if not isinstance(reward, str) or ":" not in reward:
        return reward
    module, _, name = reward.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: no name of a module
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
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"record: cannot make {record!r:.200}: {why}") from error
    return Path(record)


def _sandbox(options: object) -> SandboxConfig:
    if not isinstance(options, Mapping | None):
        raise ConfigurationError(f"sandbox: must hold the options of the sandbox, got {options!r:.100}")
    try:
        return SandboxConfig(**{str(key): value for key, value in (options or {}).items()})
    except ValidationError as error:
        raise ConfigurationError(explain(error, "sandbox")) from None


def _shared(config: SandboxConfig, n: int) -> SandboxConfig:
    """Gives the sandbox of one of n processes its share of the cores, where the user has not said how many."""
    if n <= 1:
        return config
    share = max(1, (os.cpu_count() or 1) // n)
    shares = {"zygotes": max(1, share // 4), "max_concurrency": min(900, 4 * share), "standby": min(900, 2 * share)}
    return config.model_copy(update={key: value for key, value in shares.items() if getattr(config, key) is None})
