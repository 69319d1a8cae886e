"""How many children a sandbox may have: what its configuration asks for, and what the limit on descriptors leaves."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox.config import SandboxConfig

_MAX_SESSIONS = 512
_CORES_OF_A_ZYGOTE = 4
_DYING = 64
"""Slots for children that have been killed and not yet reaped."""

_DESCRIPTORS_OF_A_CHILD = 4
_DESCRIPTORS_OF_A_SESSION = 6
"""Of one that can be forked: with its listener and its folder."""

_DESCRIPTORS_OF_A_FORK = 12
_SPARE_DESCRIPTORS = 32
"""Left for the rest of the process."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many there may be at the same time.

    Attributes:
        running: Programs that run.
        standby: Children of each zygote that wait for a program.
        sessions: Sessions that are open.
        more_sessions: What to raise for more of them.
    """

    running: int
    standby: int
    sessions: int
    more_sessions: str = "max_sessions"

    @property
    def slots(self) -> int:
        """Children of each zygote, with those that are being reaped."""
        return self.running + self.standby + self.sessions + _DYING


def zygotes_of_each_kind(config: SandboxConfig, cores: int) -> int:
    """Returns how many zygotes with the libraries there are to be, and as many light ones."""
    return config.zygotes or max(1, cores // _CORES_OF_A_ZYGOTE)


def capacity(config: SandboxConfig, cores: int, zygotes: int) -> Capacity:
    """Returns what a configuration asks for, lowered to what this process's limit on descriptors leaves room for.

    Args:
        config: The configuration.
        cores: How many cores there are.
        zygotes: How many zygotes there are in all.

    Raises:
        SandboxUnavailableError: There is no room for a single child.
    """
    running = config.max_concurrency or 4 * cores
    standby = 2 * cores if config.standby is None else config.standby
    sessions = _MAX_SESSIONS if config.max_sessions is None else config.max_sessions
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return Capacity(running, standby, sessions)
    left = limit - len(os.listdir("/proc/self/fd")) - _SPARE_DESCRIPTORS - _DESCRIPTORS_OF_A_FORK
    room = left // _DESCRIPTORS_OF_A_CHILD
    if room < 1:
        raise SandboxUnavailableError(
            f"the limit on open files is too low ({limit}): raise it, for example `ulimit -n 1024`"
        )
    running = min(running, room)
    standby = min(standby, (room - running) // zygotes)
    left -= (running + standby * zygotes) * _DESCRIPTORS_OF_A_CHILD
    room = left // _DESCRIPTORS_OF_A_SESSION
    if room < sessions:
        return Capacity(running, standby, room, more_sessions="the limit on open files (ulimit -n)")
    return Capacity(running, standby, sessions)
