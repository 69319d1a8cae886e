"""What the kernel tells about the sandbox's processes, from outside: no private name of the sandbox is used."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One line of /proc: see proc_pid_stat(5)."""

    pid: int
    name: str
    state: str
    parent: int
    faults: int
    """Minor faults of its children that were waited for."""
    children_cpu_s: float


def descendants(pid: int | None = None) -> list[Process]:
    """Lists the processes below ``pid`` (this process)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                head, _, tail = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
                fields = tail.split()
                name = head.partition("(")[2]
                cpu_s = (int(fields[13]) + int(fields[14])) * TICK_S
                found[int(entry)] = Process(int(entry), name, fields[0], int(fields[1]), int(fields[8]), cpu_s)
    below, level = [], {os.getpid() if pid is None else pid}
    while level:
        members = [process for process in found.values() if process.parent in level]
        below += members
        level = {process.pid for process in members}
    return below


def named(name: str, count: int, pid: int | None = None, limit_s: float = 10.0) -> list[Process]:
    """Waits until ``count`` living processes below ``pid`` have that name, and returns them.

    Raises:
        RuntimeError: They do not appear within ``limit_s`` seconds.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = [process for process in descendants(pid) if process.name == name and process.state not in "ZX"]
        if len(found) >= count:
            return found
        time.sleep(0.005)
    raise RuntimeError(f"no {count} processes called {name} within {limit_s} s")


class Watched:
    """Processes whose end is waited for, by descriptors that no other process can take over."""

    def __init__(self, pids: Iterable[int]):
        self._fds = [os.pidfd_open(pid) for pid in pids]

    def wait(self, limit_s: float = 10.0) -> None:
        """Waits until all have ended.

        Raises:
            RuntimeError: One lives on after ``limit_s`` seconds.
        """
        deadline = time.monotonic() + limit_s
        try:
            for fd in self._fds:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                    raise RuntimeError(f"a process was alive {limit_s} s after its kill")
        finally:
            for fd in self._fds:
                os.close(fd)


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process's main thread, 0.0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def settle(limit_s: float = 5.0) -> None:
    """Waits until the processes below this one have used no CPU for a while: children are forked and readied."""
    deadline, since = time.monotonic() + limit_s, time.monotonic()
    before: dict[int, float] = {}
    while time.monotonic() < deadline:
        now = {process.pid: cpu_s(process.pid) for process in descendants()}
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 0.1:
            return
        time.sleep(0.02)


def private_mb(pid: int) -> float:
    """Returns the MB (2**20 bytes) that a process shares with no other.

    Raises:
        OSError: The kernel does not let us look, as with any process that is not dumpable, unless we are root.
    """
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = (line.split() for line in text.splitlines() if line.startswith("Private_"))
    return sum(int(fields[1]) for fields in lines) / 1024


def page_tables_mb(pid: int) -> float:
    """Returns the MB that the kernel holds for a process's page tables."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmPTE:"):
            return int(line.split()[1]) / 1024
    return 0.0
