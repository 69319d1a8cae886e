"""The configuration of the agent files: OpenRLHF builds an executor without arguments, so it comes by environment.

    RETOOL_AGENT_CONFIG=/path/retool.yaml     a file with keys
    RETOOL_AGENT_PROTOCOL=tool_calls          one key, in place of the file's
    RETOOL_AGENT_SANDBOX='{timeout_s: 2}'     values are YAML

The keys are those of ``retool_env.rollout.options``, and the few in ``_OWN``.

    --train.agent_func_path "$(python -m retool_openrlhf.options)"

checks them and prints the path of the agent file (with the argument ``instance``, of that for OpenRLHF's own loop).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retool_env.errors import ConfigurationError
from retool_env.rollout.attempt import AttemptConfig
from retool_env.rollout.options import OPTIONS as _SHARED
from retool_env.rollout.options import read_attempt_options
from retool_env.sandbox import SandboxConfig

PREFIX: Final = "RETOOL_AGENT_"
"""How the environment variables begin."""

FILE: Final = "CONFIG"
"""With the prefix, the variable that names the file."""

_OWN: Final = ("engines_per_node", "template_options")
OPTIONS: Final = (*_SHARED, *_OWN)
"""The names of all keys."""

_UNKNOWN_YET: Final = 16_384
"""Stands for the tokens of a response until OpenRLHF tells, with each attempt."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the attempts of an engine's process are made.

    Attributes:
        attempt: Those that are trained on.
        evaluation: Those of evaluation sets: paid 1.0 or 0.0, for OpenRLHF's pass@1 is the mean of rewards.
        sandbox: Where their code runs.
        record: Folder for the trajectories; None for none.
    """

    attempt: AttemptConfig
    evaluation: AttemptConfig
    sandbox: SandboxConfig
    record: Path | None = None


def read_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Returns what the environment variables and the file they name say.

    Args:
        environment: The variables; those of the process if None.

    Raises:
        ConfigurationError: A variable or a key is unknown or has a value that cannot work, or the file cannot be read.
    """
    environment = os.environ if environment is None else environment
    options: dict[str, Any] = {}
    said = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    path = said.pop(PREFIX + FILE, "")
    if path:
        options |= _read_file(Path(path))
    for name, value in said.items():
        key = name.removeprefix(PREFIX).lower()
        if key not in OPTIONS:
            raise ConfigurationError(
                f"{name}: there is no such variable; there are {PREFIX}{FILE} and {PREFIX} with one of "
                + ", ".join(map(str.upper, OPTIONS))
            )
        options[key] = _read_yaml(value, name)
    return read_options(options)


def read_options(options: Mapping[str, Any]) -> Settings:
    """Returns what the keys say.

    Raises:
        ConfigurationError: A key is unknown or has a value that cannot work.
    """
    if unknown := [key for key in options if key not in OPTIONS]:
        raise ConfigurationError(f"agent: unknown key {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    engines, template_options = options.get("engines_per_node", 1), options.get("template_options") or {}
    if isinstance(engines, bool) or not isinstance(engines, int) or engines < 1:
        raise ConfigurationError(f"engines_per_node: must be a whole number from 1 on, got {engines!r:.100}")
    if not isinstance(template_options, Mapping):
        raise ConfigurationError(f"template_options: must hold keys and values, got {template_options!r:.100}")
    read = read_attempt_options(
        {key: value for key, value in options.items() if key not in _OWN},
        name="agent",
        response=_UNKNOWN_YET,
        processes_per_node=engines,
        template_options=template_options,
    )
    judged = read.attempt.episode.model_copy(update={"reward": "accuracy"})
    evaluation = read.attempt.model_copy(update={"episode": judged})
    return Settings(read.attempt, evaluation, read.sandbox, read.record)


def check_instance(settings: Settings) -> None:
    """Finds options that an instance cannot keep.

    Raises:
        ConfigurationError: One is set.
    """
    rules = settings.attempt.episode
    if rules.protocol == "tool_calls":
        raise ConfigurationError("protocol: an instance cannot have 'tool_calls'; use agent_func.py, or 'code_tags'")
    if rules.interpreter == "session":
        raise ConfigurationError("interpreter: an instance cannot have 'session'; use agent_func.py, or 'fresh'")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{PREFIX}{FILE}: {path} cannot be read: {error}") from error
    keys = _read_yaml(text, str(path))
    if not isinstance(keys, Mapping | None):
        raise ConfigurationError(f"{path}: must hold keys and values, got {keys!r:.100}")
    return {str(key): value for key, value in (keys or {}).items()}


def _read_yaml(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: 2025-13-01, ten thousand brackets
        raise ConfigurationError(f"{name}: no valid YAML: {error}") from error


def main(arguments: Sequence[str]) -> int:
    """Checks the environment and prints the path of an agent file; returns 0, or 1 if something is wrong."""
    if arguments not in ([], ["instance"]):
        print("usage: python -m retool_openrlhf.options [instance]", file=sys.stderr)
        return 2
    try:
        settings = read_environment()
        if arguments:
            check_instance(settings)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(Path(__file__).with_name("instance_func.py" if arguments else "agent_func.py"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
