"""The options of ``ReToolEnv``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from pydantic import ValidationError

from retool_env.config import EpisodeConfig, explain
from retool_env.errors import ConfigurationError
from retool_env.sandbox import Sandbox, SandboxConfig


class InvalidOptionError(ConfigurationError, gymnasium.error.Error):
    """The caller's fault: an option of the environment, or of ``reset``, has a value that cannot work."""


class checked_options:  # noqa: N801 - used like contextlib's
    """Makes a bad option gymnasium's kind of error as well as ours; a context."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ConfigurationError) and not isinstance(error, InvalidOptionError):
            raise InvalidOptionError(str(error)) from error


def sandbox_config(sandbox: object) -> SandboxConfig:
    """Returns the configuration that the ``sandbox`` option stands for.

    Raises:
        ConfigurationError: The option is none of the forms it takes, or has a value that cannot work.
    """
    if isinstance(sandbox, Sandbox):
        return sandbox.config
    if isinstance(sandbox, SandboxConfig):
        return sandbox
    try:
        if sandbox is None:
            return SandboxConfig()
        if isinstance(sandbox, str):
            return SandboxConfig.model_validate({"tier": sandbox})
        if isinstance(sandbox, Mapping):
            return SandboxConfig.model_validate(dict(sandbox))
    except ValidationError as error:
        raise ConfigurationError(explain(error, "sandbox")) from error
    raise ConfigurationError(
        f"sandbox: takes a Sandbox, a SandboxConfig, a mapping, a tier's name or None, got {type(sandbox).__name__}"
    )


def episode_config(rules: Mapping[str, Any], sandbox: SandboxConfig) -> EpisodeConfig:
    """Returns the rules of the episodes; the limits they state are the sandbox's.

    Raises:
        ConfigurationError: An option is unknown or has a value that cannot work.
    """
    for name in ("timeout_s", "memory_mb"):
        if name in rules:
            raise ConfigurationError(f"{name}: is the sandbox's limit: give sandbox={{{name!r}: {rules[name]!r}}}")
    return EpisodeConfig(**rules, timeout_s=sandbox.timeout_s, memory_mb=sandbox.memory_mb)
