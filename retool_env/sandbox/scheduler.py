"""Who may start a program now: the jobs that wait, the children that are busy, and the open sessions.

This is what the threads of a sandbox share: all of it is guarded by the loop's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from retool_env.errors import SandboxBusyError, SandboxClosedError
from retool_env.sandbox.capacity import Capacity
from retool_env.sandbox.contained import Child
from retool_env.sandbox.execution import Job
from retool_env.sandbox.routing import take_child
from retool_env.sandbox.seats import Seat, Seats

if TYPE_CHECKING:
    from retool_env.sandbox.loop import Loop
    from retool_env.sandbox.nursery import Nursery


class Scheduler:
    """Gives children to jobs.

    Attributes:
        limit: Programs that may run at the same time.
        queue: Jobs that wait for a child.
        busy: Children that run a program, in the host's thread or in its caller's.
        seats: The open sessions.
        waiting: Bounded jobs that have not left the queue.
    """

    def __init__(self, loop: Loop, nurseries: Sequence[Nursery], room: Capacity, max_queue: int):
        """Begins with nothing.

        Args:
            loop: Its lock guards all this; it says whether the host is closed.
            nurseries: Where children come from; the list is the host's, and grows.
            room: How many programs may run, and sessions be open.
            max_queue: Bounded jobs that may wait.
        """
        self._loop, self._nurseries, self._room, self._max_queue = loop, nurseries, room, max_queue
        self.limit = room.running
        self.queue: deque[Job] = deque()
        self.busy: set[Child] = set()
        self.seats = Seats()
        self.waiting = 0
        self._on_the_way: set[Job] = set()  # jobs that are not in the queue yet
        self._space = threading.Condition(loop.lock)  # for bounded jobs; the lock is not taken by way of it

    # Called from any thread.

    def admit(self, job: Job, may_wait: bool) -> None:
        """Counts a bounded job, once there is room for it. The caller holds the lock.

        Raises:
            SandboxBusyError: There is none, and it may not wait.
        """
        while self.waiting >= self._max_queue and not self._loop.closed:
            if not may_wait:
                raise SandboxBusyError(f"the sandbox's queue is full: {self.waiting} programs wait")
            self._space.wait()
        self.waiting += 1

    def leave(self, job: Job) -> None:
        """Notes that a job has left the queue."""
        if job.bounded:
            job.bounded = False
            with self._loop.lock:
                self.waiting -= 1
                self._space.notify()

    def admit_nobody(self) -> None:
        """Wakes all who wait for room: the host is closed. The caller holds the lock."""
        self._space.notify_all()

    def send_in(self, job: Job, enqueue: Callable[[Job], None]) -> None:
        """Has the host's thread queue a job; until then no other may overtake it.

        Raises:
            SandboxClosedError: The host was closed.
        """
        with self._loop.lock:
            try:
                self._on_the_way.add(job)
                self._loop.tell(lambda: enqueue(job))
            except BaseException:  # closed, or interrupted: nothing waits for it
                self._on_the_way.discard(job)
                raise

    def open_seat(self, seat: Seat, rest: bool) -> None:
        """Takes in a session.

        Args:
            seat: The session.
            rest: Whether it may be called from now on; else it waits for a child, from a fork.

        Raises:
            SandboxBusyError: As many sessions are open as there may be.
            SandboxClosedError: The host was closed.
        """
        with self._loop.lock:
            if self._loop.closed:
                raise SandboxClosedError("the sandbox is closed")
            if len(self.seats) >= self._room.sessions:
                raise SandboxBusyError(
                    f"{len(self.seats)} sessions are open, which is all this sandbox may have: close some, or "
                    f"raise {self._room.more_sessions}"
                )
            self.seats.add(seat)
            if rest:
                self.seats.rest(seat)

    def free_place(self, seat: Seat) -> None:
        """Has a session that is closed take no place any more, even before it is ended."""
        with self._loop.lock:
            self.seats.discard(seat)

    def borrow(self, job: Job) -> Child | None:
        """Takes a child for the calling thread, if nobody is waiting and one more program may run."""
        with self._loop.lock:
            if self._loop.closed or self.queue or self._on_the_way or len(self.busy) >= self.limit:
                return None
            seat = job.seat
            if seat is not None and (seat.lost or seat.current is not None or (seat.forkable and seat.child is None)):
                return None
            child = take_child(job, self._nurseries)
            if child is not None:
                # No call between these: an interrupt finds all of it done, or nothing.
                job.child, job.borrowed, child.borrowed = child, True, True
                if seat is not None:
                    seat.current = job
                self._occupy(job, child)
            return child

    def put_to_rest(self, job: Job, child: Child) -> bool | None:
        """Puts a session to rest after a call in a borrowed child, if nothing is out of the ordinary.

        Returns:
            Whether the host's thread has something to do now: a program may start, or a child is to be replaced. None
            if it has to put the session to rest itself.
        """
        seat = job.seat
        assert seat is not None
        with self._loop.lock:
            if child.lost or child.exit is not None or seat.lost or seat.waiting or self._loop.closed:
                return None
            assert child.nursery is not None
            child.nursery.deaths = 0
            child.borrowed = False
            self._vacate(seat, child)
            job.returned = True
            return bool(self.queue) or job.call == 1

    def lose(self, seat: Seat, why: str, at_fault: bool) -> None:
        """Notes that a session has ended; ``end_seat`` is to follow."""
        with self._loop.lock:
            seat.lose(why, at_fault)

    # Called from the host's thread only.

    def enqueue(self, job: Job) -> bool:
        """Queues a job, or has it wait for an earlier call of its session; False if its session is lost."""
        seat = job.seat
        with self._loop.lock:  # at once: in between, another call of the session could overtake this one
            self._on_the_way.discard(job)
            if seat is None:
                self.queue.append(job)
            elif seat.lost:
                return False
            elif seat.current is not None:
                seat.waiting.append(job)
            else:
                self.seats.occupy(seat, job)
                self.queue.append(job)
            return True

    def next_start(self) -> tuple[Job, Child] | None:
        """Takes the next job that can start, and its child; None if there is none."""
        with self._loop.lock:
            while self.queue and len(self.busy) < self.limit:
                job = self.queue[0]
                child = take_child(job, self._nurseries)
                if child is None:
                    return None
                self.queue.popleft()
                self.leave(job)
                if job.future.running() or job.future.set_running_or_notify_cancel():
                    self._occupy(job, child)
                    return job, child
                if job.seat is None:
                    assert child.nursery is not None
                    child.nursery.put_back(child)
                else:
                    self.next_call(job.seat)
        return None

    def due(self) -> list[Job]:
        """Returns the jobs that could start at once, had they children."""
        with self._loop.lock:
            free = self.limit - len(self.busy)
            return [job for job in itertools.islice(self.queue, free) if job.seat is None or job.seat.child is None]

    def take_all(self) -> deque[Job]:
        """Empties the queue."""
        with self._loop.lock:
            waiting, self.queue = self.queue, deque()
        return waiting

    def requeue(self, job: Job, child: Child) -> bool:
        """Puts a job that was not read and needs no state first in the queue; False if its session is lost."""
        with self._loop.lock:
            self.busy.discard(child)
            job.reset()
            seat = job.seat
            if seat is not None:
                if seat.lost:
                    return False
                seat.child, child.seat, seat.calls = None, None, 0
            self.queue.appendleft(job)
            return True

    def remove(self, job: Job) -> bool:
        """Takes back a job that waits; False if it does not."""
        seat = job.seat
        with self._loop.lock:
            try:
                self.queue.remove(job)
            except ValueError:
                if seat is None or job not in seat.waiting:
                    return False
                seat.waiting.remove(job)
            else:
                if seat is not None:
                    self.next_call(seat)
        return True

    def end_call(self, seat: Seat, child: Child | None) -> None:
        """Notes that a call of a session is over, and queues the next one.

        Args:
            seat: The session.
            child: Its child; None if it has none.
        """
        with self._loop.lock:
            if child is not None:
                self._vacate(seat, child)
            self.next_call(seat)

    def next_call(self, seat: Seat) -> None:
        """Queues the next call of a session that has none now."""
        with self._loop.lock:
            seat.current = None
            if seat.lost:
                return
            if seat.waiting:
                job = seat.waiting.popleft()
                self.seats.occupy(seat, job)
                self.queue.append(job)
            else:
                self.seats.rest(seat)

    def end_seat(self, seat: Seat, why: str, at_fault: bool) -> list[Job]:
        """Ends a session: kills its process and frees its place. May be told again.

        Returns:
            The calls that wait, in their order, which are to be refused.
        """
        with self._loop.lock:
            child, current = seat.child, seat.current
            seat.lose(why, at_fault)
            self.seats.discard(seat)
            refused = list(seat.waiting)
            seat.waiting.clear()
            if current is not None:
                with contextlib.suppress(ValueError):  # it runs
                    self.queue.remove(current)
                    refused.insert(0, current)
        if child is not None:
            child.kill()
        return refused

    def renew_lock(self) -> None:
        """In a forked process: see the loop's."""
        self._space = threading.Condition(self._loop.lock)

    @property
    def could_start(self) -> bool:
        """Whether a job waits although one more program may run."""
        return bool(self.queue) and len(self.busy) < self.limit

    def _vacate(self, seat: Seat, child: Child) -> None:
        self.seats.rest(seat)
        self.busy.discard(child)

    def _occupy(self, job: Job, child: Child) -> None:
        self.busy.add(child)
        if job.seat is not None:
            self.seats.occupy(job.seat, job)
