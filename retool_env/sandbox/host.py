"""The host: one thread for each sandbox that feeds children and collects outcomes.

All state belongs to that thread. Others only append to its inbox and wake it, so any thread, event loop or signal
handler may submit.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from retool_env.errors import SandboxClosedError, SandboxUnavailableError
from retool_env.sandbox import launch, wire
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Child, Job, Outcome

_MAX_RESTARTS = 3
"""Zygotes that may die one after the other without any program having ended, before waiting programs are given up."""

_MAX_STILLBORN = 20
"""Children that may die one after the other before they are ready, before their zygote is given up."""


class Host:
    """Runs programs in the children of one zygote."""

    def __init__(self, tier: str, config: SandboxConfig):
        """Starts the zygote and the thread.

        Raises:
            SandboxUnavailableError: The tier cannot run here.
        """
        cores = len(os.sched_getaffinity(0))
        self.tier = tier
        self._config = config
        self._running_limit = config.max_concurrency or 4 * cores
        self._standby = 2 * cores if config.standby is None else config.standby
        self._zygote: launch.ZygoteProcess | None = launch.start(tier, config)
        self._inbox: deque[Callable[[], None]] = deque()
        self._queue: deque[Job] = deque()
        self._idle: deque[Child] = deque()
        self._running: dict[int, Job] = {}  # by the child's control descriptor
        self._children: dict[int, Child] = {}  # by the zygote's pid for it, until it is reaped
        self._handlers: dict[int, Callable[[], None]] = {}
        self._deadlines: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._requested = 0
        self._deaths = 0
        self._stillborn = 0
        self._closing = False
        self._closed = False
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watch(self._wake, self._read_inbox)
        self._adopt_zygote()
        self._thread = threading.Thread(target=self._run, name="retool-sandbox", daemon=True)
        self._thread.start()

    # Called from any thread.

    def submit(self, job: Job) -> None:
        """Queues a job; its future gets the outcome.

        Raises:
            SandboxClosedError: The host was closed.
        """
        self._tell(lambda: self._queue.append(job))

    def cancel(self, job: Job) -> None:
        """Gives up a job: it leaves the queue, or its child is killed. Its future may be cancelled already."""
        with contextlib.suppress(SandboxClosedError):
            self._tell(lambda: self._drop(job))

    def close(self) -> None:
        """Kills what runs, ends the zygote and the thread, and waits for both. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.append(self._begin_closing)
                os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """Closes all descriptors in a forked process, to which neither the thread nor the zygote belongs."""
        self._closed = True
        for child in (*self._children.values(),):
            child.close()
        if self._zygote is not None:
            self._zygote.abandon()
            if self._zygote.process is not None:
                self._zygote.process.returncode = 0  # not ours to wait for
        self._poll.close()
        os.close(self._wake)

    def _tell(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the sandbox is closed")
            self._inbox.append(action)
            os.eventfd_write(self._wake, 1)

    # Called from the thread only.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._keep_supplied()
                for fd, _ in self._poll.poll(self._until_deadline()):
                    handler = self._handlers.get(fd)
                    if handler is not None:
                        handler()
                self._enforce_deadlines()
        finally:  # also after a bug of ours: nobody may wait for ever
            with self._lock:
                self._closed = True
            self._shut_down()

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _read_inbox(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()

    def _begin_closing(self) -> None:
        self._closing = True

    def _until_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].future.done():
            heapq.heappop(self._deadlines)
        if not self._deadlines:
            return None
        return max(0.0, self._deadlines[0][0] - time.monotonic()) + 1e-4

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, job = heapq.heappop(self._deadlines)
            if job.future.done() or job.child is None:
                continue
            if job.extend(now):
                heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))
                continue
            self._end(job, job.finish(ExecutionStatus.TIMEOUT, error_class="TimeoutError"))

    def _keep_supplied(self) -> None:
        """Starts waiting jobs in idle children, and asks for as many children as are missing."""
        while self._queue and self._idle and len(self._running) < self._running_limit:
            job = self._queue.popleft()
            if job.future.set_running_or_notify_cancel():
                self._begin(job, self._idle.popleft())
        if self._zygote is None:
            self._restart_zygote()
            if self._zygote is None:
                return
        waiting = min(len(self._queue), self._running_limit - len(self._running))
        missing = waiting + self._standby - len(self._idle) - self._requested
        with contextlib.suppress(OSError):  # its death is noticed by its pidfd
            for _ in range(missing):
                self._zygote.control.send(wire.SPAWN)
                self._requested += 1

    # The zygote.

    def _adopt_zygote(self) -> None:
        assert self._zygote is not None
        self._zygote.control.setblocking(False)
        self._watch(self._zygote.control.fileno(), self._hear_zygote)
        self._watch(self._zygote.pidfd, self._zygote_died)

    def _hear_zygote(self) -> None:
        while self._zygote is not None:
            try:
                message, ancillary, _, _ = self._zygote.control.recvmsg(64, socket.CMSG_LEN(16))
            except BlockingIOError:
                return
            except OSError:
                message, ancillary = b"", []
            if not message:
                self._zygote_died()
            elif message[:1] == wire.CHILD:
                self._adopt_child(message, struct.unpack("4i", ancillary[0][2][:16]))
            elif message[:1] == wire.EXITED:
                _, pid, status, cpu_s = wire.EXITED_HEAD.unpack(message)
                self._child_exited(pid, status, cpu_s)

    def _zygote_died(self) -> None:
        """All that ran is lost, none of it by its own fault; what waits is run by the next zygote."""
        if self._zygote is None:
            return
        self._deaths += 1
        zygote, self._zygote = self._zygote, None
        self._unwatch(zygote.control.fileno())
        self._unwatch(zygote.pidfd)
        for job in list(self._running.values()):
            self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
        for child in list(self._children.values()):
            self._discard(child)
        self._idle.clear()
        self._requested = 0
        zygote.end()

    def _restart_zygote(self) -> None:
        if self._deaths <= _MAX_RESTARTS:
            try:
                self._zygote = launch.start(self.tier, self._config)
            except (SandboxUnavailableError, OSError):
                self._deaths += 1
            else:
                self._adopt_zygote()
                return
        if self._deaths > _MAX_RESTARTS:
            while self._queue:
                self._resolve(self._queue.popleft(), Outcome(ExecutionStatus.UNAVAILABLE))
            # The next submission tries again, once.
            self._deaths = _MAX_RESTARTS

    # Children.

    def _adopt_child(self, message: bytes, fds: tuple[int, ...]) -> None:
        _, zygote_pid = wire.CHILD_HEAD.unpack(message)
        control, out, err, pidfd = fds
        self._requested -= 1
        try:
            pid = launch.host_pid(pidfd)
            child = Child(zygote_pid, pid, socket.socket(fileno=control), out, err, pidfd)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self._children[zygote_pid] = child
        assert self._zygote is not None
        if self._zygote.memory is not None:
            with contextlib.suppress(OSError):  # it died already: noticed when its exit is reported
                child.cgroup = self._zygote.memory.attach(pid)
        self._watch(control, lambda: self._child_ready(child))

    def _child_ready(self, child: Child) -> None:
        fd = child.control.fileno()
        self._unwatch(fd)
        try:
            message = child.control.recv(8)
        except OSError:
            message = b""
        if message == wire.READY and (child.cgroup is not None or self._zygote is None or self._zygote.memory is None):
            self._stillborn = 0
            self._idle.append(child)
        else:
            child.kill()
            self._stillborn += 1
            if self._stillborn > _MAX_STILLBORN:
                self._zygote_died()

    def _begin(self, job: Job, child: Child) -> None:
        try:
            job.begin(child)
        except OSError:
            child.kill()
            self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
            return
        self._running[child.control.fileno()] = job
        self._watch(child.control.fileno(), lambda: self._hear_child(job))
        for fd in (child.out, child.err):
            self._watch(fd, lambda fd=fd: self._read_output(job, fd))  # type: ignore[misc]
        heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))

    def _read_output(self, job: Job, fd: int) -> None:
        if not job.read(fd):
            self._unwatch(fd)
        if job.over_cap:
            self._end(job, job.finish(ExecutionStatus.OUTPUT_LIMIT))

    def _hear_child(self, job: Job) -> None:
        assert job.child is not None
        try:
            message = job.child.control.recv(wire.CLAIM_MAX)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            outcome = job.claim(message)
            if job.over_cap:
                outcome.status = ExecutionStatus.OUTPUT_LIMIT
            elif outcome.exit_code != 0 and job.child.cgroup is not None and job.child.cgroup.oom_killed():
                outcome.status = ExecutionStatus.MEMORY
            self._deaths = 0
            self._end(job, outcome)
        else:
            job.silent = True
            self._unwatch(job.child.control.fileno())

    def _child_exited(self, zygote_pid: int, wait_status: int, cpu_s: float) -> None:
        child = self._children.get(zygote_pid)
        if child is None:
            return
        job = self._running.get(child.control.fileno())
        if job is not None:
            # A claim may still be unread: it was sent before the exit.
            if not job.silent:
                self._hear_child(job)
            if not job.future.done():
                self._deaths = 0
                outcome = job.exited(wait_status, cpu_s)
                if job.over_cap:
                    outcome.status = ExecutionStatus.OUTPUT_LIMIT
                self._end(job, outcome)
        with contextlib.suppress(ValueError):
            self._idle.remove(child)
        self._discard(child)

    def _end(self, job: Job, outcome: Outcome) -> None:
        """Delivers an outcome first, and only then kills the child: its teardown is off the latency path."""
        child = job.child
        assert child is not None
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        self._running.pop(child.control.fileno(), None)
        self._resolve(job, outcome)
        child.kill()

    def _discard(self, child: Child) -> None:
        """Forgets a child that has ended."""
        self._children.pop(child.zygote_pid, None)
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        if child.cgroup is not None:
            child.cgroup.release()
        child.close()

    def _resolve(self, job: Job, outcome: Outcome) -> None:
        if not job.future.done():
            job.future.set_result(outcome)

    def _drop(self, job: Job) -> None:
        if job.child is not None and not job.future.done():
            self._end(job, job.finish(ExecutionStatus.KILLED, error_class="Cancelled"))
        else:
            with contextlib.suppress(ValueError):
                self._queue.remove(job)
            job.future.cancel()

    def _shut_down(self) -> None:
        self._read_inbox()
        for job in list(self._running.values()):
            self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
        while self._queue:
            job = self._queue.popleft()
            if job.future.set_running_or_notify_cancel():
                self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
        for child in list(self._children.values()):
            self._discard(child)
        if self._zygote is not None:
            self._zygote.end()
            self._zygote = None
        self._poll.close()
        os.close(self._wake)
