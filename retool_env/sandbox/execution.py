"""One execution: what is read from the child it runs in, and which verdict follows from it.

Nothing here trusts the child. The deadline is the host's clock, memory is the kernel's counter, a death is a wait
status from the zygote; only "it ended with this exit code and this exception" is taken from the child's own claim.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retool_env.sandbox import wire
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.contained import READ, STALE, Child, drain, hung_up

if TYPE_CHECKING:
    from retool_env.sandbox.forking import Forking
    from retool_env.sandbox.seats import Seat

_CPU_GRACE_S = 1.0
_FLUSH_AT = 0.9
_FLUSH_S = 0.01
"""When a program is asked for the output it holds back, as a part of its time; and what it gets for that at the end."""

_CORES = len(os.sched_getaffinity(0))
_SURVIVED = (ExecutionStatus.OK, ExecutionStatus.ERROR)


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

    def result(self, job: Job) -> ExecutionResult:
        """Returns it as the public result of a job, with output decoded."""
        return ExecutionResult(
            status=self.status,
            stdout=self.stdout.decode("utf-8", "replace"),
            stderr=self.stderr.decode("utf-8", "replace"),
            error_class=self.error_class,
            exit_code=self.exit_code,
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            truncated=self.truncated,
            queue_s=max(0.0, (job.started or job.submitted) - job.submitted),
            code_chars=job.chars,
        )

    @property
    def survived(self) -> bool:
        """Whether a session lives on after a call that ended like this."""
        return self.claimed and self.status in _SURVIVED

    def why_lost(self, job: Job) -> str:
        """Says why a session does not live on after a call that ended like this."""
        match self.status:
            case ExecutionStatus.TIMEOUT:
                return f"its last call passed the time limit of {job.timeout_s:g} s"
            case ExecutionStatus.MEMORY:
                return "its last call ran out of memory"
            case ExecutionStatus.OUTPUT_LIMIT:
                return f"its last call wrote more than {job.max_output} bytes"
            case ExecutionStatus.KILLED:
                return f"its process was killed ({self.error_class or 'no signal known'})"
            case ExecutionStatus.UNAVAILABLE:
                return "the sandbox failed"
            case _:
                return "its process ended"


@dataclass(slots=True, eq=False, repr=False)  # deque.remove shows what it misses: a future's repr takes its lock
class Job:
    """One program, from its submission to its outcome."""

    code: bytes
    timeout_s: float
    echo: bool
    seed: int
    max_output: int
    chars: int = 0
    light: bool = False  # names nothing that the light zygote has not got
    seat: Seat | None = None
    branch: Seat | None = None  # not a program, but a fork of the session into this one
    forking: Forking | None = None
    borrowed: bool = False  # it runs in the thread of its caller
    returned: bool = False  # the thread that had borrowed its child is done with it
    bounded: bool = False  # counts against the queue's limit
    call: int = 0  # its number in its session
    submitted: float = field(default_factory=time.monotonic)
    child: Child | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    begun: bool = False  # the program has been handed over; False again if it is known that it was not read
    attempts: int = 0
    flushes: int = 0  # how often its output was asked for: shortly before the deadline, and at it
    quiet: bool = False  # the output pipes are known to be empty
    started: float = 0.0
    deadline: float = 0.0
    silent: bool = False  # the child closed its socket: only its exit can say more
    ignored: int = 0  # messages that say nothing about this call
    ended: set[int] = field(default_factory=set)  # output pipes that have been closed on the other side
    _future: Future[Outcome] | None = None

    @property
    def future(self) -> Future[Outcome]:
        """Gets the outcome. Made when it is first asked for, by the one thread that knows of the job then."""
        if self._future is None:
            self._future = Future()
        return self._future

    def waiter(self) -> Callable[[], Outcome]:
        """Returns a function that waits for the outcome, while nobody else knows of the job yet.

        It leaves the future alone: a thread that is interrupted as it takes a future's lock leaves it locked, and the
        host's thread would wait for it for ever. For the same reason the future is the job's only once it is prepared.
        """
        done = threading.Lock()
        done.acquire()
        outcomes: list[Outcome] = []

        def take(future: Future[Outcome]) -> None:
            if not future.cancelled():  # by its caller, who was interrupted
                outcomes.append(future.result())
            done.release()

        def wait() -> Outcome:
            done.acquire()
            return outcomes[0]

        future: Future[Outcome] = Future()
        future.add_done_callback(take)
        self._future = future
        return wait

    def begin(self, child: Child) -> None:
        """Hands the program to a ready child. Never waits for it.

        Raises:
            OSError: The child is gone, or its socket cannot take the program.
        """
        self.child = child
        self.started = time.monotonic()
        self.deadline = self.started + _FLUSH_AT * self.timeout_s
        if self.seat is not None:
            self.seat.calls += 1
            self.call = self.seat.calls
            self.deadline = min(self.deadline, self.started + (self.timeout_s + _CPU_GRACE_S) / _CORES)
        if child.frozen:
            drain(child.control)
        wire.send_run(child.control, self.call, self.seed, self.timeout_s, self.echo, self.code)
        self.begun = True
        if child.frozen:
            child.thaw()

    def reset(self) -> None:
        """Makes it as if it had not been given to a child: its program was not read."""
        self.child, self.begun, self.silent = None, False, False
        self.flushes = 0
        self.ended.clear()

    @property
    def is_first(self) -> bool:
        """Whether it needs no state: it has an interpreter of its own, or is the first call of its session."""
        return self.seat is None or self.seat.calls <= (1 if self.call else 0)

    def read(self, fd: int) -> bool:
        """Reads what is there on one of the child's output pipes; False at its end."""
        assert self.child is not None
        buffer = self.out if fd == self.child.out else self.err
        while True:
            try:
                data = os.read(fd, READ)
            except BlockingIOError:
                return True
            if not data:
                self.ended.add(fd)
                return False
            buffer += data
            if len(data) < READ or self.over_cap:
                return True

    @property
    def over_cap(self) -> bool:
        """Whether it wrote more than is kept."""
        return len(self.out) + len(self.err) > self.max_output

    def extend(self, now: float) -> bool:
        """Says when to look at the program again; False if its time is over.

        The deadline is moved by the time the program had to wait for a core. The program is looked at a little earlier,
        to have it write its output, and once more when it had a moment to do so; a call of a session also when threads
        could have used up its CPU time.
        """
        child = self.child
        assert child is not None
        if self.flushes > 1:
            return False
        waited = child.waited_s() - child.waited_before
        deadline = self.started + self.timeout_s + min(waited, 20 * self.timeout_s)
        if self.seat is not None:
            left = self.timeout_s + _CPU_GRACE_S - (child.cpu_s() - child.cpu_before)
            deadline = min(deadline, now + left / _CORES)
        over = deadline <= now + 1e-3
        if over or (not self.flushes and now >= self.started + _FLUSH_AT * self.timeout_s - 1e-3):
            self.flushes = 2 if over else 1
            child.flush()
        self.deadline = now + _FLUSH_S if over else deadline
        return True

    @property
    def is_late(self) -> bool:
        """Whether its deadline is over, whatever it says from now on."""
        return self.flushes > 1

    def finish(self, status: ExecutionStatus, **fields: object) -> Outcome:
        """Drains what is left of the output and makes the outcome."""
        now = time.monotonic()
        child = self.child
        cpu = 0.0
        if child is not None:
            self._read_rest()
            used = child.cpu_s()
            cpu = max(0.0, used - child.cpu_before)
            child.cpu_before = used
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

    def _read_rest(self) -> None:
        """Reads what is left in the output pipes."""
        if self.quiet:
            return
        child = self.child
        assert child is not None
        for fd in (child.out, child.err):
            while fd >= 0 and not self.over_cap:
                before = len(self.out) + len(self.err)
                if not self.read(fd) or len(self.out) + len(self.err) == before:
                    break

    def run_borrowed(self, child: Child) -> Outcome | None:
        """Runs the program in the calling thread; returns its outcome, or None where the host's thread must go on.

        That is at the deadline, when it writes too much, when the child ends without a claim, and when the program
        could not even be handed over.
        """
        # Its future is left alone: an interrupt that came while its lock is taken would leave it locked for ever.
        try:
            self.begin(child)
        except OSError:  # it died while it waited; nothing was run
            return None
        control = child.control.fileno()
        while True:
            events = child.poll.poll(max(0.0, self.deadline - time.monotonic()) * 1000)
            if not events:
                return None
            for fd, _ in events:
                if fd != control and not self.read(fd):
                    child.poll.unregister(fd)
            if self.over_cap:
                return None
            if events[0][0] == control:
                self.quiet = len(events) == 1
                outcome = self.hear()
                self.quiet = False
                if outcome is not None or self.silent:
                    return outcome

    def hear(self) -> Outcome | None:
        """Reads what the child sent; returns the outcome if that was its claim."""
        assert self.child is not None
        try:
            message = self.child.control.recv(wire.CLAIM_MAX)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # the kernel's word that it ended with this unread
            message, self.begun = b"", not self.is_first
        except OSError:
            message = b""
        if not message and hung_up(self.child.control):
            self.silent = True
            return None
        outcome = self.claim(message) if message else None
        if outcome is None:
            self.ignored += 1
            if self.ignored <= STALE:
                return None
            outcome = self.finish(ExecutionStatus.ERROR)
        if self.is_late:
            return self.finish(ExecutionStatus.TIMEOUT, error_class="TimeoutError")
        if outcome.status is ExecutionStatus.ERROR and self.child.cgroup is not None and self.child.cgroup.oom_killed():
            outcome.status = ExecutionStatus.MEMORY
        return outcome

    def forget(self) -> None:
        """Lets go of what only a running program needs; the future keeps the outcome."""
        self.code = b""
        self.out, self.err = bytearray(), bytearray()

    def claim(self, message: bytes) -> Outcome | None:
        """Makes the outcome from the child's claim; a malformed one is an error without an exit code.

        None if it is about an earlier call of the session.
        """
        if len(message) < wire.CLAIM_HEAD.size or message[:1] != wire.CLAIM:
            return self.finish(ExecutionStatus.ERROR)
        _, call, code = wire.CLAIM_HEAD.unpack_from(message)
        if call < self.call:
            return None
        raw, _, rest = message[wire.CLAIM_HEAD.size :].partition(b"\0")
        if len(rest) >= wire.CLAIM_OUTPUT.size - 1:
            self._read_rest()  # what was written before comes first
            (size,) = wire.CLAIM_OUTPUT.unpack_from(b"\0" + rest[:4])
            self.out += rest[4 : 4 + size]
            self.err += rest[4 + size :]
        name = raw[: wire.CLAIM_NAME].decode("utf-8", "replace")
        name = "".join(character for character in name if ("_" + character).isidentifier())
        code &= 0xFF
        if code == 0:
            return self.finish(ExecutionStatus.OK, exit_code=0, claimed=True)
        return self.finish(ExecutionStatus.ERROR, exit_code=code, error_class=name, claimed=True)

    def exited(self, wait_status: int, cpu_s: float) -> Outcome:
        """Makes the outcome from the wait status of a child that ended without a claim."""
        assert self.child is not None
        if self.child.cgroup is not None and self.child.cgroup.oom_killed():
            outcome = self.finish(ExecutionStatus.MEMORY, error_class="MemoryError")
        elif self.is_late or self._ran_out(wait_status, cpu_s - self.child.cpu_before):
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
        outcome.cpu_s = max(0.0, cpu_s - self.child.cpu_before)
        return outcome

    def _ran_out(self, wait_status: int, cpu_s: float) -> bool:
        """Whether a child that has ended did so because its time did."""
        if not os.WIFSIGNALED(wait_status):
            return False
        number = os.WTERMSIG(wait_status)
        if number == signal.SIGKILL:  # nobody else kills it: this is the kernel, at RLIMIT_CPU
            return cpu_s >= self.timeout_s
        # A program may take the handler away by which it is asked for its output.
        return number == signal.SIGRTMAX and self.flushes > 0
