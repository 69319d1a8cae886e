"""What this machine can do for the sandbox, and what would make it better. The data behind ``retool doctor``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

from retool_env.errors import ReToolError, SandboxUnavailableError
from retool_env.sandbox import cgroups, immortal, inventory, kernel, launch, nsjail, privileges, seccomp
from retool_env.sandbox.config import SandboxConfig


@dataclass(frozen=True)
class Check:
    """One fact: what was looked at, whether it is as good as it can be, what was seen, and what would mend it."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class TierReport:
    """Whether a tier runs here (it was really started and ran a program), why or why not, and the facts behind it."""

    tier: str
    available: bool
    why: str
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Report:
    """The whole examination. ``chosen`` is what ``auto`` takes, or None if no tier runs."""

    chosen: str | None
    tiers: tuple[TierReport, ...]
    system: tuple[Check, ...]


def examine(config: SandboxConfig | None = None) -> Report:
    """Examines this machine by starting each tier once (a second or two each)."""
    config = config or SandboxConfig()
    tiers = (
        _tier("nsjail", config, (*_nsjail_checks(), _fork_check("nsjail"))),
        _tier("landlock", config, (*_landlock_checks(), _fork_check("landlock"))),
    )
    chosen = next((report.tier for report in tiers if report.available), None)
    return Report(chosen, tiers, _system_checks(config))


def _tier(name: str, config: SandboxConfig, checks: tuple[Check, ...]) -> TierReport:
    from retool_env.sandbox.sandbox import Sandbox

    try:
        with Sandbox(config, tier=name, standby=0) as sandbox:
            result = sandbox.run("print(6 * 7)", timeout_s=20)
    except ReToolError as error:
        return TierReport(name, False, str(error), checks)
    if result.stdout != "42\n":
        return TierReport(name, False, f"a test program ended with {result.status}: {result.stderr[-200:]!r}", checks)
    weak = [check.detail for check in checks if not check.ok]
    return TierReport(name, True, "started and ran a program" + (f"; {'; '.join(weak)}" if weak else ""), checks)


def _try(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except SandboxUnavailableError as error:
        detail, _, mend = str(error).partition("; ")
        return Check(name, False, detail, mend)


def _nsjail_checks() -> tuple[Check, ...]:
    rights = privileges.current()
    base = cgroups.find_base() if rights.is_root else None
    own_ids = rights.spare_ids(16) is not None
    return (
        _try("nsjail binary", nsjail.find_binary),
        Check(
            "memory cgroup",
            base is not None,
            f"version {base.version}" if base else "memory is limited by address space only (RLIMIT_AS)",
            ""
            if base
            else "run as root in a container that may make cgroups (for Docker: --privileged, or a delegated cgroup)",
        ),
        Check(
            "own user id for each program",
            own_ids,
            "yes" if own_ids else "programs share this user's id, apart from each other by pid namespaces",
            "" if own_ids else "run as root",
        ),
    )


def _landlock_checks() -> tuple[Check, ...]:
    abi = int(kernel.landlock_abi())
    detail = f"ABI {abi}" if abi else "none"
    if 0 < abi < 6:
        detail += " (signals, and below ABI 4 TCP, are denied by seccomp alone)"
    return (
        Check(
            "Landlock", abi > 0, detail, "" if abi else "Linux 5.13 or later, started with landlock in its lsm= list"
        ),
        _try(
            "libseccomp",
            lambda: f"filter of {len(seccomp.compile_policy(seccomp.Policy(writable_folder=False))) // 8} instructions",
        ),
    )


def _fork_check(tier: str) -> Check:
    detail, _, mend = launch.fork_obstacle(tier).partition("; ")
    return Check("sessions can be forked", not detail, detail or "yes", mend)


def _immortal_check(config: SandboxConfig, version: str) -> Check:
    possible = immortal.supported() if config.python is None else immortal.supports(version)
    return Check(
        "immortal objects",
        possible,
        "possible (immortal=True)" if possible else "not with this interpreter",
        "" if possible else "64-bit CPython 3.12 or 3.13, neither free-threaded nor a debug build",
    )


def _system_checks(config: SandboxConfig) -> tuple[Check, ...]:
    world = inventory.take(config.packages, config.python)
    found = ", ".join(f"{name} {version}" for name, version in world.distributions.items())
    missing = [name for name in config.packages if inventory._canonical(name) not in world.distributions]
    return (
        Check("Python", True, f"{world.version} at {world.executable}"),
        _immortal_check(config, world.version),
        Check("kernel", True, f"Linux {platform.release()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores"),
        Check("importable packages", True, found or "the standard library only"),
        Check(
            "packages not installed",
            not missing,
            ", ".join(missing) or "none",
            f"pip install {' '.join(missing)}" if missing else "",
        ),
    )
