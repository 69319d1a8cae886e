"""The host: one thread for each sandbox that feeds children and collects outcomes.

All state belongs to that thread. Others only append to its inbox and wake it, so any thread, event loop or signal
handler may submit. One thing is shared, under a lock: who may start a program now. A thread that is going to block
anyway (``run_here``) may take an idle child and wait for it itself, which saves two changes of thread; as soon as
anything is out of the ordinary, it hands the program over to the host's thread.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import resource
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from retool_env.errors import SandboxClosedError, SandboxError, SandboxUnavailableError
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Child, Job, Outcome
from retool_env.sandbox.nursery import Nursery

_DYING = 64
"""Slots for children that have been killed and not yet reaped."""

_DESCRIPTORS_OF_A_CHILD = 4
_SPARE_DESCRIPTORS = 32
"""Left for the rest of the process."""

_RETRY_S = 0.02

_log = logging.getLogger("retool_env.sandbox")


class Host:
    """Runs programs in the children of one zygote."""

    def __init__(self, tier: str, config: SandboxConfig):
        """Starts the zygote and the thread.

        Raises:
            SandboxUnavailableError: The tier cannot run here.
        """
        self.tier = tier
        self._cores = len(os.sched_getaffinity(0))
        self._running_limit, self._standby = _within_descriptors(
            config.max_concurrency or 4 * self._cores, 2 * self._cores if config.standby is None else config.standby
        )
        self._inbox: deque[Callable[[], None]] = deque()
        self._queue: deque[Job] = deque()
        self._running: dict[int, Job] = {}  # by the child's control descriptor; those of this thread
        self._busy: set[Child] = set()  # those that run a program, here or in ``run_here``
        self._handlers: dict[int, Callable[[], None]] = {}
        self._deadlines: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._closing = False
        self._closed = False
        self._over = False
        # Re-entrant, because a signal handler may submit while the code it interrupted holds one.
        self._lock = threading.RLock()  # inbox and closing
        self._start = threading.RLock()  # queue, idle and busy children
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            slots = self._running_limit + self._standby + _DYING
            self._nursery = Nursery(
                tier, config, slots, self._watch, self._unwatch, self._child_exited, self._zygote_died
            )
        except BaseException:
            self._poll.close()
            os.close(self._wake)
            raise
        self._watch(self._wake, self._read_inbox)
        self._thread = threading.Thread(target=self._run, name="retool-sandbox", daemon=True)
        self._thread.start()

    # Called from any thread.

    def submit(self, job: Job) -> None:
        """Queues a job; its future gets the outcome.

        Raises:
            SandboxClosedError: The host was closed.
        """
        self._tell(lambda: self._enqueue(job))

    def run_here(self, job: Job) -> Outcome:
        """Runs a job and waits for its outcome, in this thread as far as possible.

        Raises:
            SandboxClosedError: The host was closed.
            SandboxError: This is the host's own thread (a callback of a future), which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise SandboxError("run() in a callback of a sandbox's future would wait for itself: use submit() there")
        child = self._borrow()
        if child is None:
            self.submit(job)
            return job.future.result()
        try:
            outcome = job.run_borrowed(child)
        except BaseException:  # such as KeyboardInterrupt: the program must not live on unwatched
            self._give_back(job, child, None)
            self.cancel(job)
            raise
        self._give_back(job, child, outcome)
        return job.future.result() if outcome is None else outcome

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
        if not self._over:
            self._nursery.abandon()
            self._poll.close()
            os.close(self._wake)

    @property
    def broken(self) -> bool:
        """Whether the thread has ended without having been told to: a bug of ours, after which a new host is needed."""
        return self._closed and not self._closing

    def _tell(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the sandbox is closed")
            self._inbox.append(action)
            os.eventfd_write(self._wake, 1)

    def _borrow(self) -> Child | None:
        """Takes an idle child for the calling thread, if nobody is waiting and one more program may run."""
        with self._start:
            if self._closed or self._queue or len(self._busy) >= self._running_limit:
                return None
            child = self._nursery.take()
            if child is not None:
                child.borrowed = True
                self._busy.add(child)
            return child

    def _give_back(self, job: Job, child: Child, outcome: Outcome | None) -> None:
        """Leaves a borrowed child to the host's thread: to be killed, or with a program that still runs."""
        try:
            self._tell(lambda: self._take_back(job, child, outcome))
        except SandboxClosedError:  # the thread is gone, or about to: it has killed the child
            child.borrowed = False
            if child.lost:
                child.close()
            if not job.future.done():
                job.future.set_result(outcome or Outcome(ExecutionStatus.UNAVAILABLE))

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

    def _enqueue(self, job: Job) -> None:
        with self._start:
            self._queue.append(job)

    def _until_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].future.done():
            heapq.heappop(self._deadlines)
        if self._queue and not self._nursery.requested and len(self._busy) < self._running_limit:
            return _RETRY_S  # a child could not even be asked for
        if not self._deadlines:
            return None
        return min(3600.0, max(0.0, self._deadlines[0][0] - time.monotonic()) + 1e-4)

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
        while (pair := self._next_start()) is not None:
            self._begin(*pair)
        nursery = self._nursery
        if nursery.zygote is None and not nursery.restart():
            with self._start:
                waiting, self._queue = self._queue, deque()
            for job in waiting:
                self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
            return
        nursery.supply(min(len(self._queue), self._running_limit - len(self._busy)) + self._standby)
        if len(self._busy) < self._cores and not self._queue and not nursery.requested:
            nursery.warm()

    def _next_start(self) -> tuple[Job, Child] | None:
        with self._start:
            while self._queue and len(self._busy) < self._running_limit:
                child = self._nursery.take()
                if child is None:
                    return None
                job = self._queue.popleft()
                if job.future.set_running_or_notify_cancel():
                    self._busy.add(child)
                    return job, child
                self._nursery.idle.appendleft(child)
        return None

    def _begin(self, job: Job, child: Child) -> None:
        try:
            job.begin(child)
        except OSError:  # it died while it waited; nothing was run
            child.kill()
            self._busy.discard(child)
            self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
            return
        self._follow(job)

    def _follow(self, job: Job) -> None:
        """Watches a running program from here on."""
        child = job.child
        assert child is not None
        self._running[child.control.fileno()] = job
        if not job.silent:
            self._watch(child.control.fileno(), lambda: self._hear_child(job))
        for fd in (child.out, child.err):
            if fd not in job.ended:
                self._watch(fd, lambda fd=fd: self._read_output(job, fd))  # type: ignore[misc]
        heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))

    def _take_back(self, job: Job, child: Child, outcome: Outcome | None) -> None:
        child.borrowed = False
        if outcome is None:
            if child.lost:
                outcome = Outcome(ExecutionStatus.UNAVAILABLE)
            elif child.exit is not None:
                outcome = job.exited(*child.exit)
            else:
                self._follow(job)
                return
            self._resolve(job, outcome)
        self._busy.discard(child)
        if child.lost:
            child.close()
        elif child.exit is not None:
            self._nursery.discard(child)
        else:
            child.kill()

    def _read_output(self, job: Job, fd: int) -> None:
        if not job.read(fd):
            self._unwatch(fd)
        if job.over_cap:
            self._end(job, job.finish(ExecutionStatus.OUTPUT_LIMIT))

    def _hear_child(self, job: Job) -> None:
        outcome = job.hear()
        if outcome is not None:
            self._nursery.deaths = 0
            self._end(job, outcome)
        elif job.silent:
            assert job.child is not None
            self._unwatch(job.child.control.fileno())

    def _child_exited(self, child: Child, wait_status: int, cpu_s: float) -> None:
        if child.borrowed:
            child.exit = (wait_status, cpu_s)
            return
        job = self._running.get(child.control.fileno())
        if job is not None:
            # A claim may still be unread: it was sent before the exit.
            if not job.silent:
                self._hear_child(job)
            if not job.future.done():
                self._nursery.deaths = 0
                self._end(job, job.exited(wait_status, cpu_s))
        self._nursery.discard(child)

    def _zygote_died(self) -> None:
        """All that ran is lost, none of it by its own fault; what waits is run by the next zygote."""
        for job in list(self._running.values()):
            self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))

    def _end(self, job: Job, outcome: Outcome) -> None:
        """Delivers an outcome first, and only then kills the child: its teardown is off the latency path."""
        child = job.child
        assert child is not None
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        self._running.pop(child.control.fileno(), None)
        self._busy.discard(child)
        self._resolve(job, outcome)
        job.forget()
        child.kill()
        if len(self._deadlines) > 2 * len(self._running) + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].future.done()]
            heapq.heapify(self._deadlines)

    def _resolve(self, job: Job, outcome: Outcome) -> None:
        if job.future.done():
            return
        try:
            job.future.set_result(outcome)
        except BaseException:  # what a callback of the user's raises must not end this thread
            _log.exception("a callback of a sandbox's future failed")

    def _drop(self, job: Job) -> None:
        if job.child is not None and not job.future.done():
            if not job.child.borrowed:
                self._end(job, job.finish(ExecutionStatus.KILLED, error_class="Cancelled"))
            return
        with self._start, contextlib.suppress(ValueError):
            self._queue.remove(job)
        job.future.cancel()

    def _shut_down(self) -> None:
        self._read_inbox()
        for job in list(self._running.values()):
            self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
        with self._start:
            waiting, self._queue = self._queue, deque()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
        self._nursery.end()
        self._over = True
        self._poll.close()
        os.close(self._wake)


def _within_descriptors(running: int, standby: int) -> tuple[int, int]:
    """Lowers the numbers of children to what this process's limit on descriptors leaves room for.

    Raises:
        SandboxUnavailableError: There is no room for a single child.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return running, standby
    room = (limit - len(os.listdir("/proc/self/fd")) - _SPARE_DESCRIPTORS) // _DESCRIPTORS_OF_A_CHILD
    if room < 1:
        raise SandboxUnavailableError(
            f"the limit on open files is too low ({limit}): raise it, for example `ulimit -n 1024`"
        )
    running = min(running, room)
    return running, min(standby, room - running)
