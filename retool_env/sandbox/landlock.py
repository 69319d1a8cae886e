"""The landlock tier: what the zygote's children may read, as Landlock rules. Needs no privilege at all."""

from __future__ import annotations

import os

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import kernel
from retool_env.sandbox.inventory import Inventory

_READ = kernel.FS_READ_FILE | kernel.FS_READ_DIR

_abi_ceiling: int | None = None


def mask_abi(ceiling: int | None) -> None:
    """Makes later zygotes use at most this Landlock ABI, as an older kernel would; None lifts it. For tests."""
    global _abi_ceiling
    _abi_ceiling = ceiling


def usable_abi() -> int:
    """Returns the Landlock ABI that will be used.

    Raises:
        SandboxUnavailableError: This kernel has no Landlock.
    """
    abi = int(kernel.landlock_abi())
    if abi == 0:
        raise SandboxUnavailableError(
            "this kernel has no Landlock: Linux 5.13 or later with lsm=...,landlock is needed (and a container runtime "
            "whose seccomp profile lets landlock_create_ruleset pass)"
        )
    return abi if _abi_ceiling is None else min(abi, _abi_ceiling)


def rules(inventory: Inventory) -> list[tuple[str, int]]:
    """Returns (path, rights) for all that may be read. Landlock only adds rights: what is masked is left out."""
    found: list[tuple[str, int]] = [
        ("/dev/null", kernel.FS_READ_FILE | kernel.FS_WRITE_FILE),
        ("/dev/zero", kernel.FS_READ_FILE),
        ("/dev/urandom", kernel.FS_READ_FILE),
    ]
    found += [(file, kernel.FS_READ_FILE) for file in inventory.files]
    masked = set(inventory.masked)
    for folder in inventory.folders:
        found += _without(os.path.realpath(folder), masked)
    found += [(path, _READ if os.path.isdir(path) else kernel.FS_READ_FILE) for path in inventory.modules.values()]
    return found


def _without(folder: str, masked: set[str]) -> list[tuple[str, int]]:
    if not any(path.startswith(folder + "/") for path in masked):
        return [(folder, _READ)]
    # Listing is allowed for the whole folder, reading entry by entry.
    found = [(folder, kernel.FS_READ_DIR)]
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in masked or entry.is_symlink():
                continue
            if entry.is_dir():
                found += _without(entry.path, masked)
            elif entry.is_file():
                found.append((entry.path, kernel.FS_READ_FILE))
    return found
