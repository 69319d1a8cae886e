"""What this process may do on this machine: the facts that decide how a tier is set up."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 6, 7, 21
_NOBODY = 65534


@dataclass(frozen=True)
class Privileges:
    """Identity and capabilities of this process.

    Attributes:
        uid: Effective user id.
        gid: Effective group id.
        capabilities: Effective capabilities as a bit mask.
    """

    uid: int
    gid: int
    capabilities: int

    @property
    def is_root(self) -> bool:
        """Whether this is root (in this user namespace) with the right to administer."""
        return self.uid == 0 and self.has(_CAP_SYS_ADMIN)

    def has(self, capability: int) -> bool:
        """Whether a capability is effective."""
        return bool(self.capabilities >> capability & 1)

    def spare_ids(self, count: int) -> int | None:
        """Returns the first of ``count`` + 1 consecutive ids for children to take, or None if they must keep ours.

        The range is random, so that the limits of two sandboxes on one machine do not add up.
        """
        if not (self.uid == 0 and self.has(_CAP_SETUID) and self.has(_CAP_SETGID)):
            return None
        start, size = min(_widest_range("uid_map"), _widest_range("gid_map"), key=lambda item: item[1])
        if size > 1 << 31:
            return start + 0x60000000 + secrets.randbelow(1 << 15) * (count + 1)
        if size <= _NOBODY + 2 and size > 8192:  # a rootless container: stay clear of system users and of nobody
            return start + size - 4096 - count
        return start + size - count - 1 if size > 1 << 17 else None

    def tasks_of_user(self) -> int:
        """Counts the threads of this user's processes, which RLIMIT_NPROC counts too."""
        total = 0
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    if entry.stat().st_uid == self.uid:
                        total += len(os.listdir(f"/proc/{entry.name}/task"))
                except OSError:
                    continue
        return total


def _widest_range(name: str) -> tuple[int, int]:
    ranges = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{name}").read_text().splitlines()]
    inside, _, size = max(ranges, key=lambda item: item[2])
    return inside, size


def current() -> Privileges:
    """Reads this process's privileges."""
    capabilities = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    return Privileges(os.geteuid(), os.getegid(), capabilities)
