"""A contained child as the host holds it: its descriptors and its cgroup."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from typing import TYPE_CHECKING

from retool_env.sandbox.cgroups import Cgroup

if TYPE_CHECKING:
    from retool_env.sandbox.forking import Family
    from retool_env.sandbox.nursery import Nursery
    from retool_env.sandbox.seats import Seat

READ = 65536
"""Bytes read from a pipe at once."""

_LONG_S = 0.02
"""After a call of a session that was longer, it is looked up how long it had no core; what shorter ones waited is left
out of no deadline."""

STALE = 64
"""Messages that say nothing about a call and are thrown away; a child that sends more is not listened to."""


class Child:
    """A contained child: its descriptors and its cgroup."""

    __slots__ = (
        "borrowed", "cgroup", "control", "cpu_before", "err", "exit", "family", "frozen", "lost", "nursery", "out",
        "pid", "pidfd", "poll", "seat", "waited_before", "warm", "zygote_pid",
    )  # fmt: skip

    def __init__(self, zygote_pid: int, pid: int, control: socket.socket, out: int, err: int, pidfd: int):
        self.zygote_pid = zygote_pid  # its pid as the zygote knows it
        self.pid = pid
        self.control = control
        self.out = out
        self.err = err
        self.pidfd = pidfd
        self.cgroup: Cgroup | None = None
        self.borrowed = False  # another thread than the host's reads its descriptors now
        self.exit: tuple[int, float] | None = None  # reaped while it was borrowed: wait status, CPU seconds
        self.warm = False  # has copied the memory that typical programs write to
        self.lost = False  # given up, with its zygote or at the end, while it was borrowed
        self.nursery: Nursery | None = None
        self.seat: Seat | None = None  # the session that lives in it
        self.frozen = False
        self.family: Family | None = None  # of one that can be forked
        self.cpu_before = self.waited_before = 0.0
        control.setblocking(False)
        os.set_blocking(out, False)
        os.set_blocking(err, False)
        # For the thread that borrows it. In this order: what came before a claim is seen with it.
        self.poll = select.poll()
        for fd in (control.fileno(), out, err):
            self.poll.register(fd, select.POLLIN)

    @property
    def is_open(self) -> bool:
        """Whether our ends of its descriptors are open: its exit has not been reported."""
        return self.pidfd >= 0

    def kill(self) -> None:
        """Kills it at once. Its pid namespace, where it has one, goes with it."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def kill_unread(self) -> bool:
        """Kills it; whether it has not read what it was sent last, and so never will.

        The kernel's word. With SIGKILL pending a process comes to no instruction of its own any more, so what lies in
        its socket now stays unread; a socket that was closed with something unread has been reset.
        """
        self.kill()
        try:
            (queued,) = struct.unpack("i", fcntl.ioctl(self.control, termios.TIOCOUTQ, bytes(4)))
            if queued:
                return True
            self.control.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True
        except OSError:  # it has read it and still lives, or cannot be asked
            return False
        return False

    def freeze(self) -> None:
        """Stops it between two calls of its session: nothing that the last one left behind runs on."""
        self.frozen = True
        if self.pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP)

    def rest(self, wall_s: float) -> None:
        """Stops it after a call of its session that took so long."""
        self.freeze()
        if wall_s > _LONG_S:
            self.mark()

    def thaw(self) -> None:
        """Lets a stopped child go on."""
        self.frozen = False
        if self.pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def empty(self) -> None:
        """Stops it, and throws away what it has written and sent so far."""
        self.freeze()
        for fd in (self.out, self.err):
            with contextlib.suppress(OSError):
                while os.read(fd, READ):
                    pass
        with contextlib.suppress(OSError):
            drain(self.control)
        self.mark()

    def flush(self) -> None:
        """Has it write the output that it holds back."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGRTMAX)

    def mark(self) -> None:
        """Notes what it has used so far, none of which is the next program's. While it waits, it uses nothing."""
        self.cpu_before = self.cpu_s()
        self.waited_before = self.waited_s()

    def close(self) -> None:
        """Closes our ends of its descriptors."""
        fds = [fd for fd in (self.out, self.err, self.pidfd) if fd >= 0]
        self.out = self.err = self.pidfd = -1  # first: a worker forked at this moment must not close them again
        self.control.close()
        for fd in fds:
            os.close(fd)

    def cpu_s(self) -> float:
        """Returns the CPU seconds it has used, by the kernel's clock of its process."""
        try:
            return time.clock_gettime(
                ~self.pid << 3 | 2
            )  # the clock id of a process's CPU time: see clock_getcpuclockid
        except OSError:
            return 0.0

    def waited_s(self) -> float:
        """Returns the seconds in which it was ready to run but had no core."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb", buffering=0) as file:
                return int(file.read(128).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0


def drain(sock: socket.socket) -> None:
    """Throws away what a session sent after its last claim: it must not be taken for an answer to the next call.

    Raises:
        OSError: It has closed its end, or sent far too much.
    """
    for _ in range(STALE):
        try:
            if not sock.recv(1) and hung_up(sock):
                raise BrokenPipeError
        except BlockingIOError:
            return
    raise BrokenPipeError


def hung_up(sock: socket.socket) -> bool:
    """Whether the other side has closed a socket, rather than sent an empty packet."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP | select.POLLHUP)
    return bool(poll.poll(0))
