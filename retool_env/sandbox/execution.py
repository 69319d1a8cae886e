"""One execution and the child it runs in: what is read from the child, and which verdict follows from it.

Nothing here trusts the child. The deadline is the host's clock, memory is the kernel's counter, a death is a wait
status from the zygote; only "it ended with this exit code and this exception" is taken from the child's own claim.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from retool_env.sandbox import wire
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.cgroups import Cgroup

_READ = 65536


@dataclass(slots=True)
class Outcome:
    """How an execution ended, with output as bytes; becomes an ``ExecutionResult``."""

    status: ExecutionStatus
    stdout: bytes = b""
    stderr: bytes = b""
    error_class: str = ""
    exit_code: int | None = None
    claimed: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    truncated: bool = False

    def result(self) -> ExecutionResult:
        """Returns it as the public result, with output decoded."""
        return ExecutionResult(
            status=self.status,
            stdout=self.stdout.decode("utf-8", "replace"),
            stderr=self.stderr.decode("utf-8", "replace"),
            error_class=self.error_class,
            exit_code=self.exit_code,
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            truncated=self.truncated,
        )


class Child:
    """A contained child: its descriptors and its cgroup."""

    __slots__ = ("borrowed", "cgroup", "control", "err", "exit", "lost", "out", "pid", "pidfd", "warm", "zygote_pid")

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
        control.setblocking(False)
        os.set_blocking(out, False)
        os.set_blocking(err, False)

    def kill(self) -> None:
        """Kills it at once. Its pid namespace, where it has one, goes with it."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

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


@dataclass(slots=True, eq=False)
class Job:
    """One program, from its submission to its outcome."""

    code: bytes
    timeout_s: float
    echo: bool
    seed: int
    max_output: int
    future: Future[Outcome] = field(default_factory=Future)
    child: Child | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    started: float = 0.0
    deadline: float = 0.0
    cpu_before: float = 0.0
    waited_before: float = 0.0
    silent: bool = False  # the child closed its socket: only its exit can say more
    ended: set[int] = field(default_factory=set)  # output pipes that have been closed on the other side

    def begin(self, child: Child) -> None:
        """Hands the program to a ready child.

        Raises:
            OSError: The child is gone, or its socket cannot take the program.
        """
        self.child = child
        self.cpu_before = child.cpu_s()
        self.waited_before = child.waited_s()
        child.control.setblocking(True)  # it is still our own code that reads on the other side
        child.control.settimeout(10.0)
        child.control.send(wire.RUN_HEAD.pack(len(self.code), self.seed, self.timeout_s, self.echo))
        wire.send_body(child.control, self.code)
        child.control.setblocking(False)
        self.started = time.monotonic()
        self.deadline = self.started + self.timeout_s

    def read(self, fd: int) -> bool:
        """Reads what is there on one of the child's output pipes; False at its end."""
        assert self.child is not None
        buffer = self.out if fd == self.child.out else self.err
        while True:
            try:
                data = os.read(fd, _READ)
            except BlockingIOError:
                return True
            if not data:
                self.ended.add(fd)
                return False
            buffer += data
            if len(data) < _READ or self.over_cap:
                return True

    @property
    def over_cap(self) -> bool:
        """Whether it wrote more than is kept."""
        return len(self.out) + len(self.err) > self.max_output

    def extend(self, now: float) -> bool:
        """Moves the deadline by the time the program had to wait for a core; False if there is nothing to add."""
        assert self.child is not None
        waited = self.child.waited_s() - self.waited_before
        deadline = self.started + self.timeout_s + min(waited, 20 * self.timeout_s)
        if deadline <= now + 1e-3:
            return False
        self.deadline = deadline
        return True

    def finish(self, status: ExecutionStatus, **fields: object) -> Outcome:
        """Drains what is left of the output and makes the outcome."""
        now = time.monotonic()
        child = self.child
        cpu = 0.0
        if child is not None:
            for fd in (child.out, child.err):
                while fd >= 0 and not self.over_cap:
                    before = len(self.out) + len(self.err)
                    if not self.read(fd) or len(self.out) + len(self.err) == before:
                        break
            cpu = max(0.0, child.cpu_s() - self.cpu_before)
        truncated = self.over_cap
        if truncated:
            del self.out[self.max_output :]
            del self.err[self.max_output - len(self.out) :]
        outcome = Outcome(
            status, bytes(self.out), bytes(self.err), truncated=truncated, wall_s=now - self.started, cpu_s=cpu
        )
        for name, value in fields.items():
            setattr(outcome, name, value)
        if truncated and status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED):
            outcome.status, outcome.exit_code, outcome.error_class = ExecutionStatus.OUTPUT_LIMIT, None, ""
        return outcome

    def run_borrowed(self, child: Child) -> Outcome | None:
        """Runs the program in the calling thread; returns its outcome, or None where the host's thread must go on.

        That is at the deadline, when it writes too much, and when the child ends without a claim.
        """
        self.future.set_running_or_notify_cancel()
        try:
            self.begin(child)
        except OSError:  # it died while it waited; nothing was run
            return Outcome(ExecutionStatus.UNAVAILABLE)
        poll = select.poll()
        control = child.control.fileno()
        for fd in (control, child.out, child.err):
            poll.register(fd, select.POLLIN)
        while True:
            events = poll.poll(max(0.0, self.deadline - time.monotonic()) * 1000)
            if not events:
                return None
            for fd, _ in events:
                if fd != control and not self.read(fd):
                    poll.unregister(fd)
            if self.over_cap:
                return None
            if any(fd == control for fd, _ in events):
                outcome = self.hear()
                if outcome is not None or self.silent:
                    return outcome

    def hear(self) -> Outcome | None:
        """Reads what the child sent; returns the outcome if that was its claim."""
        assert self.child is not None
        try:
            message = self.child.control.recv(wire.CLAIM_MAX)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if not message:
            self.silent = _hung_up(self.child.control)  # else it sent an empty packet
            return None
        outcome = self.claim(message)
        if outcome.status is ExecutionStatus.ERROR and self.child.cgroup is not None and self.child.cgroup.oom_killed():
            outcome.status = ExecutionStatus.MEMORY
        return outcome

    def forget(self) -> None:
        """Lets go of what only a running program needs; the future keeps the outcome."""
        self.code = b""
        self.out, self.err = bytearray(), bytearray()

    def claim(self, message: bytes) -> Outcome:
        """Makes the outcome from the child's claim; a malformed one is an error without an exit code."""
        if len(message) < wire.CLAIM_HEAD.size or message[:1] != wire.CLAIM:
            return self.finish(ExecutionStatus.ERROR)
        _, code = wire.CLAIM_HEAD.unpack_from(message)
        name = message[wire.CLAIM_HEAD.size : wire.CLAIM_MAX].decode("utf-8", "replace")
        name = "".join(character for character in name if character.isidentifier() or character.isalnum())
        code &= 0xFF
        if code == 0:
            return self.finish(ExecutionStatus.OK, exit_code=0, claimed=True)
        return self.finish(ExecutionStatus.ERROR, exit_code=code, error_class=name, claimed=True)

    def exited(self, wait_status: int, cpu_s: float) -> Outcome:
        """Makes the outcome from the wait status of a child that ended without a claim."""
        assert self.child is not None
        if self.child.cgroup is not None and self.child.cgroup.oom_killed():
            outcome = self.finish(ExecutionStatus.MEMORY, error_class="MemoryError")
        elif os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGKILL and cpu_s >= self.timeout_s:
            # Nobody else kills it: this is the kernel, at RLIMIT_CPU.
            outcome = self.finish(ExecutionStatus.TIMEOUT, error_class="TimeoutError")
        elif os.WIFSIGNALED(wait_status):
            number = os.WTERMSIG(wait_status)
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = f"SIG{number}"
            outcome = self.finish(ExecutionStatus.KILLED, error_class=name)
        else:
            code = os.WEXITSTATUS(wait_status)
            status = ExecutionStatus.ERROR if code else ExecutionStatus.OK
            outcome = self.finish(status, exit_code=code, error_class="SystemExit" if code else "")
        outcome.cpu_s = max(0.0, cpu_s - self.cpu_before)
        return outcome


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP | select.POLLHUP)
    return bool(poll.poll(0))
