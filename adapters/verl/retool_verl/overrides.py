"""Whether verl would take a launch script's overrides: composed with its real configuration, key by key.

    PRINT=1 adapters/verl/scripts/grpo.sh | python -m retool_verl.overrides ppo_trainer

hydra itself refuses a key that does not exist. What it lets through, and verl then never reads, is found here: keys of
the old layout that are still in the tree (a ``custom_reward_function`` at the top, ``reward_model``), keys that are
added with ``+``, and keys that verl has and no line of it reads (``data.return_raw_input_ids``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

_OPEN: Final = (
    "override_config", "engine_kwargs", "reward_kwargs", "apply_chat_template_kwargs", "ray_init", "lora",
    "turbo_config", "transfer_queue", "global_tool_config",
)  # fmt: skip
"""Below a key of this name anything goes: verl hands it on."""

_COMMENT: Final = re.compile(r"#[^\n]*")
_READ: Final = re.compile(r"""[.'"]([A-Za-z_]\w*)\b(?!\s*=[^=])""")
_REFERRED: Final = re.compile(r"\$\{[^}]*?(\w+)[,}]")


def find_faults(config_name: str, overrides: Sequence[str]) -> list[str]:
    """Returns what is wrong with the overrides of a configuration of verl, in words; empty if nothing is.

    Args:
        config_name: ``ppo_trainer`` or ``sft_trainer_engine``.
        overrides: ``key=value``, as on the command line.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    faults = []
    for override in overrides:
        name = override.partition("=")[0]
        key = name.lstrip("+~")
        if "=" not in override:
            faults.append(f"{override}: not an override, key=value")
        elif key.partition(".")[0] in _legacy():
            faults.append(f"{name}: a key of the old layout, which main_ppo ignores; it begins with reward. now")
        elif name.startswith("+") and not any(part in _OPEN for part in key.split(".")[:-1]):
            faults.append(f"{name}: no key of verl's configuration, so nothing reads it")
        elif not any(part in _OPEN for part in key.split(".")) and key.rpartition(".")[2] not in _names_read():
            faults.append(f"{name}: no line of verl reads a key of this name")
    try:
        config, default = _compose(config_name, overrides), _default(config_name)
    except (HydraException, OmegaConfBaseException) as error:
        return [*faults, f"hydra: {error}"]
    keys = [override.partition("=")[0].lstrip("+~") for override in overrides]
    return faults + _check_kinds(keys, config, default) + _check_values(config_name, config)


def _compose(config_name: str, overrides: Sequence[str]) -> Any:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(config_dir=str(_folder() / "trainer" / "config"), version_base=None):
        return compose(config_name, overrides=list(overrides))


@cache
def _default(config_name: str) -> Any:
    return _compose(config_name, ())


def _check_kinds(keys: Iterable[str], config: Any, default: Any) -> list[str]:
    """Finds values of another kind than the default has: neither hydra nor verl looks at that."""
    from omegaconf import OmegaConf

    faults = []
    for key in keys:
        kinds = [_kind(OmegaConf.select(whole, key)) for whole in (default, config)]
        if None not in kinds and kinds[0] != kinds[1]:
            faults.append(f"{key}: must be a {kinds[0]}, got a {kinds[1]}")
    return faults


def _kind(value: object) -> str | None:
    names = {bool: "bool", int: "number", float: "number", str: "text"}
    return names.get(type(value), None if value is None else "collection")


def _check_values(config_name: str, config: Any) -> list[str]:
    """Makes verl's own configuration objects, which check types and what excludes what, and runs its validation."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    faults = []
    parts: tuple[str, ...] = ("engine", "optim")
    if config_name == "ppo_trainer":  # the critic's would load its model
        parts = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm")
    for part in parts:
        try:
            omega_conf_to_dataclass(OmegaConf.select(config, part))
        except Exception as error:  # verl raises what it likes
            faults.append(f"{part}: {type(error).__name__}: {error}")
    if config_name == "ppo_trainer":
        # Not the critic: its object would load its model.
        try:
            validate_config(config=config, use_reference_policy=False, use_critic=False)
        except Exception as error:
            faults.append(f"verl's validation: {type(error).__name__}: {error}")
    return faults


def _folder() -> Path:
    import verl

    return Path(next(iter(verl.__path__)))


@cache
def _legacy() -> frozenset[str]:
    """The first parts of the keys of the old layout, as verl's own file lists them."""
    from omegaconf import OmegaConf

    path = _folder() / "trainer" / "config" / "legacy_reward_impl.yaml"
    return frozenset(map(str, OmegaConf.load(path))) if path.exists() else frozenset()


@cache
def _names_read() -> frozenset[str]:
    """All names by which verl reads something: ``x.name``, ``x["name"]``, ``x.get("name")``, and in YAML ``${x.name}``.

    That a dataclass has such a field, that a comment names it, or that something is stored there, reads nothing.
    """
    names: set[str] = set()
    for pattern, files in ((_READ, "*.py"), (_REFERRED, "*.yaml")):
        for path in _folder().rglob(files):
            if not path.name.startswith("_generated"):
                names.update(pattern.findall(_COMMENT.sub("", path.read_text(encoding="utf-8"))))
    return frozenset(names)


def main(arguments: Sequence[str], lines: Iterable[str]) -> int:
    """Checks overrides, one a line; returns 0, 1 if there is a fault, or 2 if there is nothing to check."""
    if len(arguments) != 1:
        print("usage: python -m retool_verl.overrides ppo_trainer|sft_trainer_engine < OVERRIDES", file=sys.stderr)
        return 2
    overrides = [line.strip() for line in lines if line.strip()]
    if not overrides:
        print("no overrides on standard input: has the script failed?", file=sys.stderr)
        return 2
    faults = find_faults(arguments[0], overrides)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
