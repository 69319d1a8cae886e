"""Programs that run in the thread of their caller, which is going to wait anyway: it saves two changes of thread.

The thread takes an idle child, or the child of an idle session, and waits for it itself. As soon as anything is out of
the ordinary, it hands the program over to the host's thread. It may be interrupted at any moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from retool_env.errors import SandboxClosedError
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.contained import Child
from retool_env.sandbox.execution import Job, Outcome

if TYPE_CHECKING:
    from retool_env.sandbox.host import Host

_Result = TypeVar("_Result")


class Borrowing:
    """Lends children to the threads of callers."""

    def __init__(self, host: Host):
        """Works for a host."""
        self._host, self._loop, self._scheduler = host, host.loop, host.scheduler

    def run(self, job: Job, result: Callable[[Outcome], _Result]) -> _Result:
        """Runs a job and waits for its outcome; see ``Host.run_here``."""
        outcome = None
        try:
            child = self._scheduler.borrow(job)
            if child is None:
                return result(self._host.wait_for(job))
            outcome = job.run_borrowed(child)
            if outcome is None:
                wait = job.waiter()
                self._give_back(job, child, None)
                return result(wait())
            made = result(outcome)
            if not self._rest(job, child, outcome):
                if job.seat is not None and not outcome.survived:
                    # The calls that wait are refused by the host's thread: callbacks of futures swallow an interrupt.
                    self._scheduler.lose(job.seat, outcome.why_lost(job), at_fault=outcome.status.ran)
                self._give_back(job, child, outcome)
            return made
        except BaseException:  # such as KeyboardInterrupt: the program must not live on unwatched
            if job.child is not None and job.borrowed and not job.returned:
                self._give_back(job, job.child, outcome)
            self._host.cancel(job)
            raise

    def _rest(self, job: Job, child: Child, outcome: Outcome) -> bool:
        """Puts the child of a session to rest in the calling thread; False if the host's has to see to it."""
        if job.seat is None or not outcome.survived:
            return False
        child.rest(outcome.wall_s)
        wake = self._scheduler.put_to_rest(job, child)
        if wake:
            with contextlib.suppress(SandboxClosedError):
                self._loop.wake()
        return wake is not None

    def _give_back(self, job: Job, child: Child, outcome: Outcome | None) -> None:
        """Leaves a borrowed child to the host's thread: to be killed, or with a program that still runs."""
        try:
            self._loop.tell(lambda: self._take_back(job, child, outcome))
        except SandboxClosedError:  # the thread is gone, or about to: it has killed the child
            job.returned = True
            child.borrowed = False
            if child.lost:
                child.close()
            if not job.future.done():
                job.future.set_result(outcome or Outcome(ExecutionStatus.UNAVAILABLE))

    def _take_back(self, job: Job, child: Child, outcome: Outcome | None) -> None:
        """In the host's thread: takes over a child that was borrowed."""
        seat = job.seat
        with self._loop.lock:
            at_rest = seat is not None and not seat.lost and seat.current is not job
            if job.returned or at_rest:  # its thread was interrupted, after that or after telling it before
                return
            job.returned = True
            child.borrowed = False
            lost, ended = child.lost, child.exit
        host, nursery = self._host, child.nursery
        assert nursery is not None
        if outcome is None and not job.begun:
            if lost:
                child.close()
            elif ended is not None:
                nursery.discard(child)
            elif seat is not None and not job.call:
                host.call_ended(seat)  # its thread was interrupted before it began: the session is as it was
                return
            else:
                child.kill()
            host.not_begun(job, child)
            return
        if outcome is None:
            if lost:
                outcome = Outcome(ExecutionStatus.UNAVAILABLE)
            elif ended is not None:
                outcome = job.exited(*ended)
            else:
                host.running.follow(job)
                return
            host.resolve(job, outcome)
        else:
            nursery.deaths = 0
        self._scheduler.busy.discard(child)
        if lost:
            child.close()
        if seat is not None:
            if lost:
                host.end_seat(seat, "the sandbox failed", at_fault=False)
            host.call_ended(seat, job, outcome)
        if ended is not None and not lost:
            nursery.discard(child)
        elif not lost and (seat is None or seat.lost):
            child.kill()
