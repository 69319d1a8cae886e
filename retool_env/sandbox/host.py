"""The host: one thread for each sandbox that feeds children and collects outcomes.

All state belongs to that thread, apart from the scheduler's, which all threads share under a lock: who may start a
program now. Others only append to the loop's inbox and wake it, so any thread, event loop or signal handler may submit.
A thread that is going to block anyway (``run_here``) may borrow a child: see ``borrowing``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from retool_env.errors import SandboxClosedError, SandboxError
from retool_env.sandbox import launch, routing
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.borrowing import Borrowing
from retool_env.sandbox.capacity import capacity, zygotes_of_each_kind
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.contained import Child
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.forking import Forking
from retool_env.sandbox.loop import Loop
from retool_env.sandbox.nursery import MAX_DEATHS, Nursery
from retool_env.sandbox.running import Running
from retool_env.sandbox.scheduler import Scheduler
from retool_env.sandbox.seats import Seat

_RETRY_S = 0.02
_LONGEST_WAIT_S = 3600.0

_ATTEMPTS = 5
"""Children a program is handed to, one after the other, should they be dead already."""

_Result = TypeVar("_Result")

_log = logging.getLogger("retool_env.sandbox")


class Host:
    """Runs programs in the children of its zygotes.

    Attributes:
        tier: The tier.
        nurseries: One for each zygote; those with the libraries first.
        loop: What its thread waits for.
        scheduler: What is shared by all threads.
        running: What its own thread follows.
    """

    def __init__(self, tier: str, config: SandboxConfig):
        """Makes one that is to be started. It may be closed at any moment from now on, also if its start fails."""
        self.tier = tier
        self._config = config
        self._cores = len(os.sched_getaffinity(0))
        each = zygotes_of_each_kind(config, self._cores)
        libraries = routing.third_party(config)
        light = each if config.light and libraries else 0
        self._libraries = libraries if light else ()
        self._room = capacity(config, self._cores, each + light)
        self._zygotes = (each, light)
        self._closing = False
        self._begun = False
        self._over = False
        self.nurseries: list[Nursery] = []
        self.loop = Loop()
        self.scheduler = Scheduler(self.loop, self.nurseries, self._room, config.max_queue)
        self._borrowing = Borrowing(self)
        self.running = Running(self.loop, self._end)
        self._thread = threading.Thread(target=self._run, name="retool-sandbox", daemon=True)

    def start(self) -> None:
        """Starts the first zygote and the thread, which starts the other zygotes.

        Raises:
            SandboxUnavailableError: The tier cannot run here.
        """
        each, light = self._zygotes
        plan = launch.Plan(self.tier, self._config, self._room.slots)
        first = self._nursery(plan)
        self.nurseries.append(first)
        first.start_here()
        self.nurseries += [self._nursery(plan) for _ in range(each - 1)]
        light_plan = dataclasses.replace(plan, light=True, like=first.zygote)
        self.nurseries += [self._nursery(light_plan) for _ in range(light)]
        self._thread.start()

    def _nursery(self, plan: launch.Plan) -> Nursery:
        return Nursery(
            plan,
            self.loop.watch,
            self.loop.unwatch,
            self._child_exited,
            self._zygote_died,
            self._zygote_started,
            self._seat_ready,
        )

    # Called from any thread.

    @property
    def max_sessions(self) -> int:
        """Sessions that may be open at the same time."""
        return self._room.sessions

    def submit(self, job: Job, block: bool = True) -> None:
        """Queues a job; its future gets the outcome.

        Args:
            job: A bounded one waits here until there is room in the queue.
            block: Rather wait than raise.

        Raises:
            SandboxClosedError: The host was closed.
            SandboxBusyError: The queue is full, and ``block`` is false or this is the host's own thread.
        """
        if not job.bounded:
            self.scheduler.send_in(job, self._enqueue)
            return
        with self.loop.lock:
            self.scheduler.admit(job, may_wait=block and threading.current_thread() is not self._thread)
            try:
                self.scheduler.send_in(job, self._enqueue)
            except BaseException:  # closed, or interrupted
                self.scheduler.leave(job)
                raise

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
        return self._borrowing.run(job, result)

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
            self.loop.tell(lambda: self._drop(job))

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
            self.scheduler.open_seat(seat, rest)
            self.loop.wake()  # it has to watch for idle sessions from now on
        except BaseException:  # such as KeyboardInterrupt: nobody has it
            self.close_seat(seat)
            raise
        return seat

    def close_seat(self, seat: Seat) -> None:
        """Closes a session: kills its process; calls that wait are refused."""
        self.scheduler.free_place(seat)
        with contextlib.suppress(SandboxClosedError):
            self.loop.tell(lambda: self.end_seat(seat, "it was closed", at_fault=True))

    def gauges(self) -> dict[str, int]:
        """Returns how many programs run and wait, sessions are open, children idle, and zygotes were restarted."""
        return {
            "running": len(self.scheduler.busy),
            "queued": len(self.scheduler.queue),
            "sessions": len(self.scheduler.seats),
            "idle_children": sum(len(nursery.idle) for nursery in self.nurseries),
            "zygote_restarts": sum(nursery.restarts for nursery in self.nurseries),
        }

    def is_light(self, program: bytes) -> bool:
        """Whether a program is one for the light zygotes."""
        return routing.is_light(program, self._libraries)

    def close(self) -> None:
        """Kills what runs, ends the zygotes and the thread, and waits for them. May be called twice."""
        with self.loop.lock:
            if self.loop.tell_last(self._begin_closing):
                self.scheduler.admit_nobody()
            self._closing = self._closing or not self._begun  # the thread leaves all to us, should it begin now
        if not self._begun:
            self._shut_down()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """Closes all descriptors in a forked process, to which neither the thread nor the zygotes belong."""
        self.loop.renew_lock()  # sessions are still closed here
        self.scheduler.renew_lock()
        self.loop.closed = True
        if not self._over:
            for nursery in self.nurseries:
                nursery.abandon()
            self.loop.close()

    @property
    def broken(self) -> bool:
        """Whether the thread has ended without having been told to: a bug of ours, after which a new host is needed."""
        return self.loop.closed and not self._closing

    # Called from the thread only.

    def _run(self) -> None:
        with self.loop.lock:
            if self._closing:
                return
            self._begun = True
        try:
            while not self._closing:
                self._keep_supplied()
                self.loop.turn(self._until_deadline())
                self._enforce_deadlines()
        finally:  # also after a bug of ours: nobody may wait for ever
            with self.loop.lock:
                self.loop.closed = True
                self.scheduler.admit_nobody()
            self._shut_down()

    def _begin_closing(self) -> None:
        self._closing = True

    def _enqueue(self, job: Job) -> None:
        for nursery in self.nurseries:
            if nursery.hopeless:
                nursery.deaths = MAX_DEATHS
        if not self.scheduler.enqueue(job):
            self._refuse(job)

    def _refuse(self, job: Job) -> None:
        """Answers a call of a session that is lost."""
        assert job.seat is not None
        self.scheduler.leave(job)
        if job.future.running() or job.future.set_running_or_notify_cancel():
            self.resolve(job, job.seat.refusal())

    def _until_deadline(self) -> float:
        first = self.running.deadlines.first()
        if self.scheduler.could_start and not any(nursery.requested or nursery.starting for nursery in self.nurseries):
            return _RETRY_S  # a child could not even be asked for
        limit = self._config.session_idle_s / 4 if self.scheduler.seats else _LONGEST_WAIT_S
        return limit if first is None else min(limit, max(0.0, first - time.monotonic()) + 1e-4)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        self.running.enforce_deadlines(now)
        self._evict(now - self._config.session_idle_s)

    def _evict(self, before: float) -> None:
        while True:
            with self.loop.lock:  # throughout: a call may begin at any moment
                seat = self.scheduler.seats.idle_since(before)
                if seat is None:
                    return
                self.end_seat(seat, f"it was idle for {self._config.session_idle_s:g} s and evicted", at_fault=False)

    def _keep_supplied(self) -> None:
        """Starts waiting jobs in idle children, and asks for as many children as are missing."""
        while (pair := self.scheduler.next_start()) is not None:
            self._begin(*pair)
        for nursery in self.nurseries:
            if nursery.zygote is None and not nursery.starting and not nursery.hopeless:
                nursery.start()
        waiting = self.scheduler.queue
        if waiting and all(nursery.hopeless for nursery in self.nurseries if not nursery.light):
            self._give_up()
            return
        routing.supply(self.scheduler.due(), self.nurseries, self._room.standby)
        if len(self.scheduler.busy) < self._cores and not self.scheduler.queue:
            for nursery in self.nurseries:
                if nursery.zygote is not None and not nursery.requested and nursery.warm():
                    return  # one at a time

    def _give_up(self) -> None:
        """Too many zygotes have died: what waits is not run. Another is tried when there is something to run again."""
        for job in self.scheduler.take_all():
            self.scheduler.leave(job)
            if job.future.running() or job.future.set_running_or_notify_cancel():
                self.resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
            if job.seat is not None:
                self.call_ended(job.seat)

    def _begin(self, job: Job, child: Child) -> None:
        if job.branch is not None:
            self.running.begin_fork(job, child, lambda *end: self._forked(job, *end))
            return
        try:
            job.begin(child)
        except OSError:
            self.not_begun(job, child)
            child.kill()
        else:
            self.running.follow(job)

    def not_begun(self, job: Job, child: Child) -> None:
        """A program could not be handed over, so nothing was run: it gets another child, if it has no state to lose."""
        job.attempts += 1
        if job.is_first and job.attempts < _ATTEMPTS and self.scheduler.requeue(job, child):
            return
        seat = job.seat
        if seat is not None and not seat.lost and not job.is_first and child.is_open:
            child.kill()
            job.silent = True
            self.running.follow(job)  # its exit, or its zygote's death, says whose fault it is
            return
        self.scheduler.busy.discard(child)
        if seat is None:
            self.resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
        else:
            self._silenced(job, seat, at_fault=not job.is_first)

    def _silenced(self, job: Job, seat: Seat, at_fault: bool) -> None:
        """Ends a session whose process did not take its next call, which is answered first."""
        refused = self.scheduler.end_seat(seat, "its process does not answer", at_fault)
        self.resolve(job, seat.refusal())
        for other in refused:
            self._refuse(other)

    def _hand_on(self, job: Job) -> bool:
        """Gives a program whose child has ended, or must end, to another; False if it may have begun."""
        child = job.child
        assert child is not None
        if not job.is_first or (job.begun and not child.kill_unread()):
            return False
        self.running.forget(job)
        self.not_begun(job, child)
        return True

    def _forked(self, job: Job, forking: Forking, failure: str, trunk_lives: bool) -> None:
        seat, trunk = job.branch, job.seat
        assert seat is not None
        assert trunk is not None
        if failure:
            self.end_seat(seat, failure, at_fault=True)
        else:
            assert forking.branch is not None
            with self.loop.lock:
                seat.calls = trunk.calls
                if not seat.lost:
                    seat.child, forking.branch.seat = forking.branch, seat
                    self.scheduler.next_call(seat)
            if seat.lost:
                forking.branch.kill()
        status = ExecutionStatus.KILLED if not trunk_lives else ExecutionStatus.ERROR if failure else ExecutionStatus.OK
        name = "ForkError" if failure else ""
        self._end(job, Outcome(status, stderr=failure.encode(), error_class=name, claimed=trunk_lives))

    def _seat_ready(self, seat: Seat, child: Child) -> None:
        """The child that was asked for has come."""
        with self.loop.lock:
            seat.asked = False
            if not seat.lost and seat.child is None:
                seat.child, child.seat = child, seat
                return
            if child.family is None:  # an idle one was there sooner, or the session is closed
                assert child.nursery is not None
                child.nursery.put_back(child)
                return
        child.kill()

    def _child_exited(self, child: Child, wait_status: int, cpu_s: float) -> None:
        with self.loop.lock:
            if child.borrowed:
                child.exit = (wait_status, cpu_s)
                return
        assert child.nursery is not None
        job = self.running.job_of(child)
        if job is not None and job.forking is not None:
            job.forking.abort("its process ended")
        elif job is not None:
            # A claim may still be unread: it was sent before the exit.
            if not job.silent:
                self.running.hear(job)
            if not job.future.done() and not self._hand_on(job):
                child.nursery.deaths = 0
                if job.seat is not None and not job.begun:
                    self._silenced(job, job.seat, at_fault=True)
                self._end(job, job.exited(wait_status, cpu_s))
        if child.seat is not None:
            self.end_seat(child.seat, "its process ended", at_fault=True)
        forking = child.family.forking if child.family is not None else None
        child.nursery.discard(child)
        if forking is not None:
            forking.branch_ended(child)

    def _zygote_started(self, nursery: Nursery) -> None:
        with contextlib.suppress(SandboxClosedError):  # the end waits for it, too
            self.loop.tell(nursery.settle)

    def _zygote_died(self, nursery: Nursery) -> None:
        """All that ran is lost, none of it by its own fault; what waits, or was not read, is run by the next zygote."""
        for job in self.running.in_zygote(nursery):
            if job.forking is not None:
                job.forking.abort("the sandbox failed")
            elif not self._hand_on(job):
                self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
        for child in list(nursery.children.values()):
            if child.seat is None:
                continue
            call = child.seat.current
            if not (child.borrowed and call is not None and call.is_first):  # else it is seen to when it is given back
                self.end_seat(child.seat, "the sandbox failed", at_fault=False)

    def _end(self, job: Job, outcome: Outcome) -> None:
        """Delivers an outcome first, and only then kills the child: its teardown is off the latency path."""
        child = job.child
        assert child is not None
        self.running.forget(job)
        self.scheduler.busy.discard(child)
        if job.seat is not None and not outcome.survived:
            self.end_seat(job.seat, outcome.why_lost(job), at_fault=outcome.status.ran)
        self.resolve(job, outcome)
        job.forget()
        if job.seat is None:
            child.kill()
        else:
            self.call_ended(job.seat, job, outcome)
        self.running.deadlines.tidy(len(self.running))

    def call_ended(self, seat: Seat, job: Job | None = None, outcome: Outcome | None = None) -> None:
        """Puts a session to rest after a call, or ends it; then its next call is due."""
        child = seat.child
        if outcome is not None and job is not None:
            if not outcome.survived:
                self.end_seat(seat, outcome.why_lost(job), at_fault=outcome.status.ran)
                return
            if child is not None:
                child.rest(outcome.wall_s)
        self.scheduler.end_call(seat, child)

    def end_seat(self, seat: Seat, why: str, at_fault: bool) -> None:
        """Ends a session: kills its process, and refuses the calls that wait."""
        for job in self.scheduler.end_seat(seat, why, at_fault):
            self._refuse(job)

    def resolve(self, job: Job, outcome: Outcome) -> None:
        """Gives a job its outcome, if it has none."""
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
            elif self.running.job_of(job.child) is job:
                self._end(job, job.finish(ExecutionStatus.KILLED, error_class="Cancelled"))
        elif self.scheduler.remove(job):
            self.scheduler.leave(job)
            job.future.cancel()

    def _shut_down(self) -> None:
        if self._over:
            return
        self.loop.read_inbox()
        for job in self.running.jobs():
            if job.forking is not None:
                job.forking.abort("the sandbox was closed")
            else:
                self._end(job, job.finish(ExecutionStatus.UNAVAILABLE))
            self.resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))  # also after a bug of ours
        for seat in self.scheduler.seats.all():
            self.end_seat(seat, "the sandbox was closed", at_fault=False)
        for job in self.scheduler.take_all():
            if job.future.running() or job.future.set_running_or_notify_cancel():
                self.resolve(job, Outcome(ExecutionStatus.UNAVAILABLE))
        for nursery in self.nurseries:  # all at once: each takes a moment
            nursery.quit()
        for nursery in self.nurseries:
            nursery.end()
        self._over = True
        self.loop.close()
