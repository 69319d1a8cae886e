"""Memory cgroups, one for each running program: the kernel's own word on who ran out of memory.

Both versions exist in the field. Version 2 can be used only where the memory controller may be handed down from our
own cgroup, which a container usually forbids; then there are none and RLIMIT_AS alone limits memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from retool_env.sandbox.supervisor import remove_cgroup

_CLEAN = 4 << 20  # bytes that do not matter to the next program of a cgroup
_LOOKS = 4
_SLACK_MB = 24  # page tables, the kernel's own memory for a process, and what warming copies are charged too


@dataclass(frozen=True)
class MemoryBase:
    """Where memory cgroups can be made: a folder, and the version of its interface (1 or 2)."""

    folder: str
    version: int


def find_base() -> MemoryBase | None:
    """Returns where this process can make memory cgroups, or None. Makes and removes one to know."""
    for base in _candidates():
        probe = os.path.join(base.folder, f"retool-probe-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            os.mkdir(probe)
        except OSError:
            continue
        try:
            Path(probe, _limit_file(base.version)).write_text(str(64 << 20))
            return base
        except OSError:
            continue
        finally:
            remove_cgroup(probe)
    return None


def _candidates() -> list[MemoryBase]:
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                own[controller] = path
    found = []
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    for line in mounts:
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            # The path is as the host sees it; inside a container the mount's root is our own cgroup.
            found += [MemoryBase(folder + own.get("memory", "/"), 1), MemoryBase(folder, 1)]
        elif kind == "cgroup2":
            found += [MemoryBase(folder + own.get("", "/"), 2), MemoryBase(folder, 2)]
    return [base for base in found if os.path.isdir(base.folder)]


def _limit_file(version: int) -> str:
    return "memory.limit_in_bytes" if version == 1 else "memory.max"


class MemoryCgroups:
    """A folder of cgroups for the programs of one sandbox, reused as programs come and go."""

    def __init__(self, base: MemoryBase, limit_mb: int):
        """Makes the folder; the supervisor removes it.

        Args:
            base: Where to make it.
            limit_mb: MiB each program may use.
        """
        self.version = base.version
        self.limit = str((limit_mb + _SLACK_MB) << 20)
        self.folder = os.path.join(base.folder, f"retool-{os.getpid()}-{secrets.token_hex(4)}")
        os.mkdir(self.folder)
        try:
            if self.version == 2:
                Path(self.folder, "cgroup.subtree_control").write_text("+memory")
        except OSError:
            self.remove()
            raise
        self._free: list[Cgroup] = []
        self._shared: deque[Cgroup] = deque()  # whose memory may still be in use, by branches of their programs
        self._made = 0

    def take(self) -> Cgroup:
        """Returns a free cgroup, for a process to enter by writing "0" to its ``procs``."""
        if self._free:
            return self._free.pop()
        for _ in range(min(_LOOKS, len(self._shared))):
            cgroup = self._shared.popleft()
            if cgroup.used() <= _CLEAN:
                return cgroup
            self._shared.append(cgroup)
        path = os.path.join(self.folder, str(self._made))
        self._made += 1
        os.mkdir(path)
        Path(path, _limit_file(self.version)).write_text(self.limit)
        swap = "memory.memsw.limit_in_bytes" if self.version == 1 else "memory.swap.max"
        with contextlib.suppress(OSError):  # only where swap is accounted
            Path(path, swap).write_text(self.limit if self.version == 1 else "0")
        return Cgroup(self, path)

    def release(self, cgroup: Cgroup, shared: bool = False) -> None:
        """Takes a cgroup back whose process has ended.

        Args:
            cgroup: The cgroup.
            shared: Whether the process had branches. What they have in common stays charged to it while one lives.
        """
        if shared and cgroup.used() > _CLEAN:
            self._shared.append(cgroup)
        else:
            self._free.append(cgroup)

    def remove(self) -> None:
        """Removes all of them; the supervisor does it too, if it still can."""
        remove_cgroup(self.folder)


class Cgroup:
    """The cgroup of one program at a time."""

    __slots__ = ("_kills_before", "_owner", "path")

    def __init__(self, owner: MemoryCgroups, path: str):
        self._owner = owner
        self.path = path
        self._kills_before = 0

    @property
    def procs(self) -> str:
        """The file that a process enters the cgroup by."""
        return os.path.join(self.path, "cgroup.procs")

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process in here for memory since this was last asked.

        Asked after every death without a claim, so the answer is about the current program.
        """
        name = "memory.oom_control" if self._owner.version == 1 else "memory.events"
        kills = self._kills_before
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.path.join(self.path, name), "rb", buffering=0) as file,
        ):
            for line in file.read().splitlines():
                key, _, value = line.partition(b" ")
                if key == b"oom_kill":
                    kills = int(value)
        before, self._kills_before = self._kills_before, kills
        return kills > before

    def used(self) -> int:
        """Returns the bytes that are charged to it."""
        name = "memory.usage_in_bytes" if self._owner.version == 1 else "memory.current"
        try:
            with open(os.path.join(self.path, name), "rb", buffering=0) as file:
                return int(file.read(32))
        except (OSError, ValueError):
            return 0

    def release(self, shared: bool = False) -> None:
        """Gives it back for the next program; see ``MemoryCgroups.release``."""
        self._owner.release(self, shared)
