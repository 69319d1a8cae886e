"""The host: one thread for each sandbox that feeds children and collects outcomes.

All state belongs to that thread. Others only append to its inbox and wake it, so any thread, event loop or signal
handler may submit. One thing is shared, under a lock: who may start a program now. A thread that is going to block
anyway (``run_here``) may take an idle child, or the child of an idle session, and wait for it itself, which saves two
changes of thread; as soon as anything is out of the ordinary, it hands the program over to the host's thread.
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
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

from retool_env.errors import SandboxBusyError, SandboxClosedError, SandboxError, SandboxUnavailableError
from retool_env.sandbox import inventory, launch
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Child, Job, Outcome, Seat
from retool_env.sandbox.forking import Forking
from retool_env.sandbox.nursery import MAX_DEATHS, Nursery

_DYING = 64
"""Slots for children that have been killed and not yet reaped."""

_MAX_SESSIONS = 512
_CORES_OF_A_ZYGOTE = 4
_DESCRIPTORS_OF_A_CHILD = 4
_DESCRIPTORS_OF_A_SESSION = 6
"""Of one that can be forked: with its listener and its folder."""

_DESCRIPTORS_OF_A_FORK = 12
_SPARE_DESCRIPTORS = 32
"""Left for the rest of the process."""

_RETRY_S = 0.02
_FORK_LIMIT_S = 10.0
_LONG_S = 0.02
"""After a call of a session that was longer, it is looked up how long it had no core; what shorter ones waited is left
out of no deadline."""

_ATTEMPTS = 5
"""Children a program is handed to, one after the other, should they be dead already."""

_LONGEST_SCAN = 1 << 20

_Result = TypeVar("_Result")

_log = logging.getLogger("retool_env.sandbox")


class Host:
    """Runs programs in the children of its zygotes.

    Attributes:
        tier: The tier.
        nurseries: One for each zygote; those with the libraries first.
        max_sessions: Sessions that may be open at the same time.
    """

    def __init__(self, tier: str, config: SandboxConfig):
        """Starts the first zygote and the thread; more zygotes follow in the background.

        Raises:
            SandboxUnavailableError: The tier cannot run here.
        """
        self.tier = tier
        self._config = config
        self._cores = len(os.sched_getaffinity(0))
        each = config.zygotes or max(1, self._cores // _CORES_OF_A_ZYGOTE)
        libraries = _third_party(config)
        light = each if config.light and libraries else 0
        self._libraries = libraries if light else ()
        self._asked = _MAX_SESSIONS if config.max_sessions is None else config.max_sessions
        self._running_limit, self._standby, self.max_sessions = _within_descriptors(
            config.max_concurrency or 4 * self._cores,
            2 * self._cores if config.standby is None else config.standby,
            self._asked,
            each + light,
        )
        self._inbox: deque[Callable[[], None]] = deque()
        self._queue: deque[Job] = deque()
        self._running: dict[int, Job] = {}  # by the child's control descriptor; those of this thread
        self._busy: set[Child] = set()  # those that run a program, here or in ``run_here``
        self._seats: set[Seat] = set()  # of all open sessions
        self._idle_seats: OrderedDict[Seat, None] = OrderedDict()  # the longest idle one first
        self._handlers: dict[int, Callable[[], None]] = {}
        self._deadlines: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._closing = False
        self._closed = False
        self._over = False
        # Re-entrant, because a signal handler may submit while the code it interrupted holds one.
        self._lock = threading.RLock()  # inbox and closing
        # Bounded jobs that wait. The lock is taken itself, not by way of this: an interrupt in a condition's own
        # __enter__ would leave it locked.
        self._space = threading.Condition(self._lock)
        self._waiting = 0
        self._on_the_way: set[Job] = set()  # jobs that are not in the queue yet
        # The same: a session may be collected, or a signal come, in the middle of either, and both take the other.
        self._start = self._lock  # queue, idle and busy children, seats
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        slots = self._running_limit + self._standby + self.max_sessions + _DYING
        first = self._nursery(launch.Plan(tier, config, slots))
        self.nurseries = [first]
        try:
            first.start_here()
        except BaseException:
            self._poll.close()
            os.close(self._wake)
            raise
        self.nurseries += [self._nursery(launch.Plan(tier, config, slots)) for _ in range(each - 1)]
        light_plan = launch.Plan(tier, config, slots, light=True, like=first.zygote)
        self.nurseries += [self._nursery(light_plan) for _ in range(light)]
        for nursery in self.nurseries[1:]:
            nursery.start()
        self._watch(self._wake, self._read_inbox)
        self._thread = threading.Thread(target=self._run, name="retool-sandbox", daemon=True)
        self._thread.start()

    def _nursery(self, plan: launch.Plan) -> Nursery:
        return Nursery(
            plan,
            self._watch,
            self._unwatch,
            self._child_exited,
            self._zygote_died,
            self._zygote_started,
            self._seat_ready,
        )

    # Called from any thread.

    def submit(self, job: Job, block: bool = True) -> None:
        """Queues a job; its future gets the outcome.

        Args:
            job: A bounded one waits here until there is room in the queue.
            block: Rather wait than raise.

        Raises:
            SandboxClosedError: The host was closed.
            SandboxBusyError: The queue is full, and ``block`` is false or this is the host's own thread.
        """
        if job.bounded:
            with self._lock:
                while self._waiting >= self._config.max_queue and not self._closed:
                    if not block or threading.current_thread() is self._thread:
                        raise SandboxBusyError(f"the sandbox's queue is full: {self._waiting} programs wait")
                    self._space.wait()
                self._waiting += 1
                try:
                    self._send_in(job)
                except BaseException:  # closed, or interrupted
                    self._left(job)
                    raise
        else:
            self._send_in(job)

    def run_here(self, job: Job, result: Callable[[Outcome], _Result]) -> _Result:
        """Runs a job and waits for its outcome, in this thread as far as possible.

        Args:
            job: The job.
            result: Makes what is returned from the outcome, before the host's thread is woken and asks for the
                interpreter.

        Raises:
            SandboxClosedError: The host was closed.
            SandboxError: This is the host's own thread (a callback of a future), which would wait for itself.
        """
        self.forbid_waiting("run()", "submit()")
        outcome = None
        try:
            child = self._borrow(job)
            if child is None:
                return result(self.wait_for(job))
            outcome = job.run_borrowed(child)
            if outcome is None:
                wait = job.waiter()
                self._give_back(job, child, None)
                return result(wait())
            made = result(outcome)
            if not self._rest_here(job, child, outcome):
                if job.seat is not None and not _survives(outcome):
                    self._end_seat(job.seat, _why_lost(job, outcome), at_fault=outcome.status.ran)
                self._give_back(job, child, outcome)
            return made
        except BaseException:  # such as KeyboardInterrupt: the program must not live on unwatched
            if job.child is not None and job.borrowed and not job.returned:
                self._give_back(job, job.child, outcome)
            self.cancel(job)
            raise

    def wait_for(self, job: Job) -> Outcome:
        """Queues a job and waits for its outcome; raises what ``submit`` does."""
        wait = job.waiter()
        self.submit(job)
        return wait()

    def forbid_waiting(self, what: str, instead: str) -> None:
        """Keeps the host's thread from waiting for itself.

        Raises:
            SandboxError: This is it.
        """
        if threading.current_thread() is self._thread:
            raise SandboxError(f"{what} in a callback of a sandbox's future would wait for itself: use {instead} there")

    def cancel(self, job: Job) -> None:
        """Gives up a job: it leaves the queue, or its child is killed. Its future may be cancelled already."""
        with contextlib.suppress(SandboxClosedError):
            self._tell(lambda: self._drop(job))

    def open_seat(self, forkable: bool, rest: bool = True) -> Seat:
        """Opens a session; it gets a child with its first call.

        Args:
            forkable: Whether that child is one that can be forked.
            rest: Whether it may be called from now on; else it waits for a child, from a fork.

        Raises:
            SandboxBusyError: As many sessions are open as there may be.
            SandboxClosedError: The host was closed.
        """
        seat = Seat(forkable)
        try:
            with self._start:
                if self._closed:
                    raise SandboxClosedError("the sandbox is closed")
                if len(self._seats) >= self.max_sessions:
                    limit = (
                        "max_sessions" if self._asked <= self.max_sessions else "the limit on open files (ulimit -n)"
                    )
                    raise SandboxBusyError(
                        f"{len(self._seats)} sessions are open, which is all this sandbox may have: close some, or "
                        f"raise {limit}"
                    )
                self._seats.add(seat)
                if rest:
                    self._idle_seats[seat] = None
            self._tell(_nothing)  # it has to watch for idle sessions from now on
        except BaseException:  # such as KeyboardInterrupt: nobody has it
            self.close_seat(seat)
            raise
        return seat

    def close_seat(self, seat: Seat) -> None:
        """Closes a session: kills its process; calls that wait are refused."""
        with self._start:  # its place is free at once
            self._seats.discard(seat)
            self._idle_seats.pop(seat, None)
        with contextlib.suppress(SandboxClosedError):
            self._tell(lambda: self._end_seat(seat, "it was closed", at_fault=True))

    def gauges(self) -> dict[str, int]:
        """Returns how many programs run and wait, sessions are open, children idle, and zygotes were restarted."""
        return {
            "running": len(self._busy),
            "queued": len(self._queue),
            "sessions": len(self._seats),
            "idle_children": sum(len(nursery.idle) for nursery in self.nurseries),
            "zygote_restarts": sum(nursery.restarts for nursery in self.nurseries),
        }

    def is_light(self, program: bytes) -> bool:
        """Whether a program names no third-party module.

        Looks for the names in the text, so it is quick, needs no parser (which hostile text could exhaust) and errs on
        the safe side: a name in a comment counts. Programs of more than 1 MiB are not looked at.
        """
        names = self._libraries
        return bool(names) and len(program) <= _LONGEST_SCAN and not any(name in program for name in names)

    def close(self) -> None:
        """Kills what runs, ends the zygotes and the thread, and waits for them. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.append(self._begin_closing)
                os.eventfd_write(self._wake, 1)
                self._space.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """Closes all descriptors in a forked process, to which neither the thread nor the zygotes belong."""
        # Another thread may have held them when this process was forked; sessions are still closed here.
        self._start = self._lock = threading.RLock()
        self._space = threading.Condition(self._lock)
        self._closed = True
        if not self._over:
            for nursery in self.nurseries:
                nursery.abandon()
            self._poll.close()
            os.close(self._wake)

    @property
    def broken(self) -> bool:
        """Whether the thread has ended without having been told to: a bug of ours, after which a new host is needed."""
        return self._closed and not self._closing

    def _send_in(self, job: Job) -> None:
        with self._lock:
            try:
                self._on_the_way.add(job)
                self._tell(lambda: self._enqueue(job))
            except BaseException:  # closed, or interrupted: nothing waits for it
                self._on_the_way.discard(job)
                raise

    def _tell(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the sandbox is closed")
            self._inbox.append(action)
            os.eventfd_write(self._wake, 1)

    def _borrow(self, job: Job) -> Child | None:
        """Takes a child for the calling thread, if nobody is waiting and one more program may run."""
        with self._start:
            if self._closed or self._queue or self._on_the_way or len(self._busy) >= self._running_limit:
                return None
            seat = job.seat
            if seat is not None and (seat.lost or seat.current is not None or (seat.forkable and seat.child is None)):
                return None
            child = self._take(job)
            if child is not None:
                job.child, job.borrowed = child, True
                child.borrowed = True
                self._occupy(job, child)
            return child

    def _take(self, job: Job) -> Child | None:
        """Takes the child a job is to run in, or an idle one of its kind."""
        seat = job.seat
        if seat is not None:
            if seat.child is None and not seat.forkable:
                seat.child = self._take_idle(light=False, cold=True)
                if seat.child is not None:
                    seat.child.seat = seat
            return seat.child
        if job.light:
            child = self._take_idle(light=True)
            if child is not None or any(nursery.light and nursery.zygote for nursery in self.nurseries):
                return child
        return self._take_idle(light=False)

    def _take_idle(self, light: bool, cold: bool = False) -> Child | None:
        for nursery in sorted(
            (nursery for nursery in self.nurseries if nursery.light is light), key=lambda item: -len(item.idle)
        ):
            child = nursery.take(cold)
            if child is not None:
                return child
        return None

    def _occupy(self, job: Job, child: Child) -> None:
        self._busy.add(child)
        if job.seat is not None:
            job.seat.current = job
            self._idle_seats.pop(job.seat, None)

    def _rest_here(self, job: Job, child: Child, outcome: Outcome) -> bool:
        """Puts the child of a session to rest in the calling thread; False if the host's has to see to it."""
        seat = job.seat
        if seat is None or not outcome.claimed or outcome.status not in _SURVIVED:
            return False
        child.freeze()
        if outcome.wall_s > _LONG_S:
            child.mark()
        with self._start:
            if child.lost or child.exit is not None or seat.lost or seat.waiting or self._closed:
                return False
            assert child.nursery is not None
            child.nursery.deaths = 0
            child.borrowed = False
            self._vacate(seat, child)
            job.returned = True
            wake = bool(self._queue) or job.call == 1  # a program may start, or a child is to be replaced
        if wake:
            with contextlib.suppress(SandboxClosedError):
                self._tell(_nothing)
        return True

    def _vacate(self, seat: Seat, child: Child) -> None:
        seat.current = None
        seat.idle_since = time.monotonic()
        self._idle_seats[seat] = None
        self._busy.discard(child)

    def _give_back(self, job: Job, child: Child, outcome: Outcome | None) -> None:
        """Leaves a borrowed child to the host's thread: to be killed, or with a program that still runs."""
        try:
            self._tell(lambda: self._take_back(job, child, outcome))
        except SandboxClosedError:  # the thread is gone, or about to: it has killed the child
            job.returned = True
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
                self._space.notify_all()
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
        seat = job.seat
        for nursery in self.nurseries:
            if nursery.hopeless:
                nursery.deaths = MAX_DEATHS
        with self._start:  # at once: in between, another call of the session could overtake this one
            self._on_the_way.discard(job)
            if seat is None:
                self._queue.append(job)
                return
            if not seat.lost:
                if seat.current is not None:
                    seat.waiting.append(job)
                else:
                    seat.current = job
                    self._idle_seats.pop(seat, None)
                    self._queue.append(job)
                return
        self._refuse(job)

    def _refuse(self, job: Job) -> None:
        """Answers a call of a session that is lost."""
        assert job.seat is not None
        self._left(job)
        if job.future.running() or job.future.set_running_or_notify_cancel():
            self._resolve(job, job.seat.refusal())

    def _left(self, job: Job) -> None:
        """A job has left the queue."""
        if job.bounded:
            job.bounded = False
            with self._lock:
                self._waiting -= 1
                self._space.notify()

    def _until_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].future.done():
            heapq.heappop(self._deadlines)
        if (
            self._queue
            and len(self._busy) < self._running_limit
            and not any(nursery.requested or nursery.starting for nursery in self.nurseries)
        ):
            return _RETRY_S  # a child could not even be asked for
        limit = self._config.session_idle_s / 4 if self._seats else 3600.0
        if not self._deadlines:
            return limit
        return min(limit, max(0.0, self._deadlines[0][0] - time.monotonic()) + 1e-4)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, job = heapq.heappop(self._deadlines)
            if job.future.done() or job.child is None:
                continue
            if job.forking is not None:
                job.deadline = job.forking.begun + _FORK_LIMIT_S
                if job.deadline > now:  # it had to wait for another fork of its family
                    heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))
                    continue
                job.forking.abort(f"it did not fork within {_FORK_LIMIT_S:g} s")
                continue
            if job.extend(now):
                heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))
                continue
            self._end(job, job.finish(ExecutionStatus.TIMEOUT, error_class="TimeoutError"))
        self._evict(now - self._config.session_idle_s)

    def _evict(self, before: float) -> None:
        while True:
            with self._start:  # throughout: a call may begin at any moment
                seat = next(iter(self._idle_seats), None)
                if seat is None or seat.idle_since > before:
                    return
                self._end_seat(seat, f"it was idle for {self._config.session_idle_s:g} s and evicted", at_fault=False)

    def _keep_supplied(self) -> None:
        """Starts waiting jobs in idle children, and asks for as many children as are missing."""
        while (pair := self._next_start()) is not None:
            self._begin(*pair)
        for nursery in self.nurseries:
            if nursery.zygote is None and not nursery.starting and not nursery.hopeless:
                nursery.start()
        if self._queue and all(nursery.hopeless for nursery in self.nurseries if not nursery.light):
            self._give_up()
            return
        self._supply()
        if len(self._busy) < self._cores and not self._queue:
            for nursery in self.nurseries:
                if nursery.zygote is not None and not nursery.requested and nursery.warm():
                    return  # one at a time

    def _supply(self) -> None:
        with self._start:
            free = self._running_limit - len(self._busy)
            due = [job for job in itertools.islice(self._queue, free) if job.seat is None or job.seat.child is None]
        wanted = [job.light for job in due if job.seat is None]
        for job in due:
            if job.seat is not None and not job.seat.asked:
                any(nursery.supply_seat(job.seat) for nursery in self.nurseries if not nursery.light)
        for light in (False, True):
            living = [nursery for nursery in self.nurseries if nursery.light is light and nursery.zygote is not None]
            if not living:
                if light:
                    continue
                wanted = [False] * len(wanted)
            demand = sum(kind is light for kind in wanted)
            for i, nursery in enumerate(living):
                nursery.supply(self._standby + (demand + i) // len(living))

    def _give_up(self) -> None:
        """Too many zygotes have died: what waits is not run. Another is tried when there is something to run again."""
        with self._start:
            waiting, self._queue = self._queue, deque()
        for job in waiting:
            self._left(job)
            if job.future.running() or job.future.set_running_or_notify_cancel():
                self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
            if job.seat is not None:
                self._call_ended(job.seat, None)

    def _next_start(self) -> tuple[Job, Child] | None:
        with self._start:
            while self._queue and len(self._busy) < self._running_limit:
                job = self._queue[0]
                child = self._take(job)
                if child is None:
                    return None
                self._queue.popleft()
                self._left(job)
                if job.future.running() or job.future.set_running_or_notify_cancel():
                    self._occupy(job, child)
                    return job, child
                if job.seat is None:
                    assert child.nursery is not None
                    child.nursery.put_back(child)
                else:
                    self._next_call(job.seat)
        return None

    def _begin(self, job: Job, child: Child) -> None:
        if job.branch is not None:
            self._begin_fork(job, child)
            return
        try:
            job.begin(child)
        except OSError:
            self._not_begun(job, child)
            child.kill()
        else:
            self._follow(job)

    def _not_begun(self, job: Job, child: Child) -> None:
        """A program could not be handed over, so nothing was run: it gets another child, if it has no state to lose."""
        seat = job.seat
        job.attempts += 1
        if job.call <= 1 and job.attempts < _ATTEMPTS:
            with self._start:
                self._busy.discard(child)
                job.child = None
                if seat is None or not seat.lost:
                    if seat is not None:
                        seat.child, child.seat, seat.calls = None, None, 0
                    self._queue.appendleft(job)
                    return
        self._busy.discard(child)
        self._resolve(job, job.not_begun())
        if seat is not None:
            self._end_seat(seat, "its process does not answer", at_fault=job.call > 1)

    def _begin_fork(self, job: Job, child: Child) -> None:
        job.child = child
        job.started = time.monotonic()
        job.deadline = job.started + _FORK_LIMIT_S
        self._running[child.control.fileno()] = job
        heapq.heappush(self._deadlines, (job.deadline, next(self._order), job))
        job.forking = Forking(child, self._watch, self._unwatch, lambda *end: self._forked(job, *end))
        job.forking.begin()

    def _forked(self, job: Job, forking: Forking, failure: str, trunk_lives: bool) -> None:
        seat, trunk = job.branch, job.seat
        assert seat is not None
        assert trunk is not None
        if failure:
            self._end_seat(seat, failure, at_fault=True)
        else:
            assert forking.branch is not None
            with self._start:
                seat.calls = trunk.calls
                if not seat.lost:
                    seat.child, forking.branch.seat = forking.branch, seat
                    self._next_call(seat)
            if seat.lost:
                forking.branch.kill()
        status = ExecutionStatus.KILLED if not trunk_lives else ExecutionStatus.ERROR if failure else ExecutionStatus.OK
        name = "ForkError" if failure else ""
        self._end(job, Outcome(status, stderr=failure.encode(), error_class=name, claimed=trunk_lives))

    def _seat_ready(self, seat: Seat, child: Child) -> None:
        """The child that was asked for has come."""
        with self._start:
            seat.asked = False
            if not seat.lost and seat.child is None:
                seat.child, child.seat = child, seat
                return
            if child.family is None:  # an idle one was there sooner, or the session is closed
                assert child.nursery is not None
                child.nursery.put_back(child)
                return
        child.kill()

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
        with self._start:
            at_rest = job.seat is not None and not job.seat.lost and job.seat.current is not job
            if job.returned or at_rest:  # its thread was interrupted, after that or after telling it before
                return
            job.returned = True
            child.borrowed = False
            lost, ended = child.lost, child.exit
        if outcome is None and not job.begun:
            if lost:
                child.close()
            elif ended is not None:
                assert child.nursery is not None
                child.nursery.discard(child)
            else:
                child.kill()
            self._not_begun(job, child)
            return
        if outcome is None:
            if lost:
                outcome = Outcome(ExecutionStatus.UNAVAILABLE)
            elif ended is not None:
                outcome = job.exited(*ended)
            else:
                self._follow(job)
                return
            self._resolve(job, outcome)
        elif child.nursery is not None:
            child.nursery.deaths = 0
        self._busy.discard(child)
        if lost:
            child.close()
        if job.seat is not None:
            self._call_ended(job.seat, job, outcome)
        if ended is not None and not lost:
            assert child.nursery is not None
            child.nursery.discard(child)
        elif not lost and child.seat is None:
            child.kill()

    def _read_output(self, job: Job, fd: int) -> None:
        if not job.read(fd):
            self._unwatch(fd)
        if job.over_cap:
            self._end(job, job.finish(ExecutionStatus.OUTPUT_LIMIT))

    def _hear_child(self, job: Job) -> None:
        outcome = job.hear()
        assert job.child is not None
        if outcome is not None:
            assert job.child.nursery is not None
            job.child.nursery.deaths = 0
            self._end(job, outcome)
        elif job.silent:
            self._unwatch(job.child.control.fileno())

    def _child_exited(self, child: Child, wait_status: int, cpu_s: float) -> None:
        with self._start:
            if child.borrowed:
                child.exit = (wait_status, cpu_s)
                return
        assert child.nursery is not None
        job = self._running.get(child.control.fileno())
        if job is not None and job.forking is not None:
            job.forking.abort("its process ended")
        elif job is not None:
            # A claim may still be unread: it was sent before the exit.
            if not job.silent:
                self._hear_child(job)
            if not job.future.done():
                child.nursery.deaths = 0
                self._end(job, job.exited(wait_status, cpu_s))
        if child.seat is not None:
            self._end_seat(child.seat, "its process ended", at_fault=True)
        forking = child.family.forking if child.family is not None else None
        child.nursery.discard(child)
        if forking is not None:
            forking.branch_ended(child)

    def _zygote_started(self, nursery: Nursery) -> None:
        with contextlib.suppress(SandboxClosedError):  # the end waits for it, too
            self._tell(nursery.settle)

    def _zygote_died(self, nursery: Nursery) -> None:
        """All that ran is lost, none of it by its own fault; what waits is run by the next zygote."""
        for job in list(self._running.values()):
            if job.child is None or job.child.nursery is not nursery:
                continue
            if job.forking is not None:
                job.forking.abort("the sandbox failed")
            else:
                self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
        for child in list(nursery.children.values()):
            if child.seat is not None:
                self._end_seat(child.seat, "the sandbox failed", at_fault=False)

    def _end(self, job: Job, outcome: Outcome) -> None:
        """Delivers an outcome first, and only then kills the child: its teardown is off the latency path."""
        child = job.child
        assert child is not None
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        self._running.pop(child.control.fileno(), None)
        self._busy.discard(child)
        if job.seat is not None and not (outcome.claimed and outcome.status in _SURVIVED):
            self._end_seat(job.seat, _why_lost(job, outcome), at_fault=outcome.status.ran)
        self._resolve(job, outcome)
        job.forget()
        if job.seat is None:
            child.kill()
        else:
            self._call_ended(job.seat, job, outcome)
        if len(self._deadlines) > 2 * len(self._running) + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].future.done()]
            heapq.heapify(self._deadlines)

    def _call_ended(self, seat: Seat, job: Job | None, outcome: Outcome | None = None) -> None:
        """Puts a session to rest after a call, or ends it; then its next call is due."""
        child = seat.child
        if outcome is not None and job is not None:
            if outcome.claimed and outcome.status in _SURVIVED:
                if child is not None:
                    child.freeze()
                    if outcome.wall_s > _LONG_S:
                        child.mark()
            else:
                self._end_seat(seat, _why_lost(job, outcome), at_fault=outcome.status.ran)
                return
        with self._start:
            if child is not None:
                self._vacate(seat, child)
            self._next_call(seat)

    def _next_call(self, seat: Seat) -> None:
        """Queues the next call of a session that has none now."""
        with self._start:
            seat.current = None
            if seat.waiting and not seat.lost:
                seat.current = seat.waiting.popleft()
                self._queue.append(seat.current)
                self._idle_seats.pop(seat, None)
            elif not seat.lost:
                seat.idle_since = time.monotonic()
                self._idle_seats[seat] = None

    def _end_seat(self, seat: Seat, why: str, at_fault: bool) -> None:
        """Ends a session: kills its process, and refuses the calls that wait."""
        with self._start:
            if seat.lost:
                return
            child, current = seat.child, seat.current
            seat.lose(why, at_fault)
            self._seats.discard(seat)
            self._idle_seats.pop(seat, None)
            refused = list(seat.waiting)
            seat.waiting.clear()
            if current is not None:
                with contextlib.suppress(ValueError):
                    self._queue.remove(current)
                    refused.insert(0, current)
        if child is not None:
            child.kill()
        for job in refused:
            self._refuse(job)

    def _resolve(self, job: Job, outcome: Outcome) -> None:
        if job.future.done():
            return
        try:
            job.future.set_result(outcome)
        except BaseException:  # what a callback of the user's raises must not end this thread
            _log.exception("a callback of a sandbox's future failed")

    def _drop(self, job: Job) -> None:
        if job.child is not None and not job.future.done():
            if job.forking is not None:
                job.forking.abort("it was cancelled")
            elif self._running.get(job.child.control.fileno()) is job:
                self._end(job, job.finish(ExecutionStatus.KILLED, error_class="Cancelled"))
            return
        with self._start:
            try:
                self._queue.remove(job)
            except ValueError:
                if job.seat is None or job not in job.seat.waiting:
                    return
                job.seat.waiting.remove(job)
            else:
                if job.seat is not None:
                    self._next_call(job.seat)
        self._left(job)
        job.future.cancel()

    def _shut_down(self) -> None:
        self._read_inbox()
        for job in list(self._running.values()):
            if job.forking is not None:
                job.forking.abort("the sandbox was closed")
            else:
                self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
            self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))  # also after a bug of ours
        for seat in list(self._seats):
            self._end_seat(seat, "the sandbox was closed", at_fault=False)
        with self._start:
            waiting, self._queue = self._queue, deque()
        for job in waiting:
            if job.future.running() or job.future.set_running_or_notify_cancel():
                self._resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
        for nursery in self.nurseries:  # all at once: each takes a moment
            nursery.quit()
        for nursery in self.nurseries:
            nursery.end()
        self._over = True
        self._poll.close()
        os.close(self._wake)


_SURVIVED = (ExecutionStatus.OK, ExecutionStatus.ERROR)


def _survives(outcome: Outcome) -> bool:
    """Whether a session lives on after this."""
    return outcome.claimed and outcome.status in _SURVIVED


def _nothing() -> None:
    """Does nothing, in the host's thread: what it sees to each time it wakes is what it is woken for."""


def _why_lost(job: Job, outcome: Outcome) -> str:
    match outcome.status:
        case ExecutionStatus.TIMEOUT:
            return f"its last call passed the time limit of {job.timeout_s:g} s"
        case ExecutionStatus.MEMORY:
            return "its last call ran out of memory"
        case ExecutionStatus.OUTPUT_LIMIT:
            return f"its last call wrote more than {job.max_output} bytes"
        case ExecutionStatus.KILLED:
            return f"its process was killed ({outcome.error_class or 'no signal known'})"
        case ExecutionStatus.UNAVAILABLE:
            return "the sandbox failed"
        case _:
            return "its process ended"


def _third_party(config: SandboxConfig) -> tuple[bytes, ...]:
    """Returns the names of third-party modules, which send a program to a full zygote; none if none are preloaded."""
    world = inventory.take(config.packages, config.python)
    preload = inventory.default_preload(world) if config.preload is None else config.preload
    tops = {name.split(".")[0] for name in world.modules}
    if not any(name.split(".")[0] in tops for name in preload):
        return ()
    return tuple(sorted(name.encode() for name in {*tops, *(name.split(".")[0] for name in preload)}))


def _within_descriptors(running: int, standby: int, sessions: int, zygotes: int) -> tuple[int, int, int]:
    """Lowers the numbers of children to what this process's limit on descriptors leaves room for.

    Args:
        running: Programs that may run at the same time.
        standby: Children of each zygote that wait.
        sessions: Sessions that may be open.
        zygotes: How many zygotes there are.

    Raises:
        SandboxUnavailableError: There is no room for a single child.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return running, standby, sessions
    left = limit - len(os.listdir("/proc/self/fd")) - _SPARE_DESCRIPTORS - _DESCRIPTORS_OF_A_FORK
    room = left // _DESCRIPTORS_OF_A_CHILD
    if room < 1:
        raise SandboxUnavailableError(
            f"the limit on open files is too low ({limit}): raise it, for example `ulimit -n 1024`"
        )
    running = min(running, room)
    standby = min(standby, (room - running) // zygotes)
    left -= (running + standby * zygotes) * _DESCRIPTORS_OF_A_CHILD
    return running, standby, min(sessions, left // _DESCRIPTORS_OF_A_SESSION)
