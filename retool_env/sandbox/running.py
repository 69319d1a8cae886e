"""Programs and forks that run, as the host's thread follows them: what they write and say, and their deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.deadlines import Deadlines
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.forking import Forking

if TYPE_CHECKING:
    from retool_env.sandbox.contained import Child
    from retool_env.sandbox.loop import Loop
    from retool_env.sandbox.nursery import Nursery

_FORK_LIMIT_S = 10.0


class Running:
    """The jobs that the host's thread follows.

    Attributes:
        deadlines: When to look at which of them.
    """

    def __init__(self, loop: Loop, end: Callable[[Job, Outcome], None]):
        """Follows none yet.

        Args:
            loop: Watches descriptors.
            end: Told the outcome of a program; it calls ``forget``.
        """
        self._loop, self._end = loop, end
        self._jobs: dict[int, Job] = {}  # by the child's control descriptor
        self.deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._jobs)

    def jobs(self) -> list[Job]:
        """Returns them."""
        return list(self._jobs.values())

    def in_zygote(self, nursery: Nursery) -> list[Job]:
        """Returns those that run in the children of one zygote."""
        return [job for job in self._jobs.values() if job.child is not None and job.child.nursery is nursery]

    def job_of(self, child: Child) -> Job | None:
        """Returns the job that runs in a child."""
        return self._jobs.get(child.control.fileno())

    def follow(self, job: Job) -> None:
        """Follows a program from here on."""
        child = job.child
        assert child is not None
        self._jobs[child.control.fileno()] = job
        if not job.silent:
            self._loop.watch(child.control.fileno(), lambda: self.hear(job))
        for fd in (child.out, child.err):
            if fd not in job.ended:
                self._loop.watch(fd, lambda fd=fd: self._read(job, fd))  # type: ignore[misc]
        self.deadlines.add(job)

    def begin_fork(self, job: Job, trunk: Child, on_end: Callable[[Forking, str, bool], None]) -> None:
        """Begins a fork and follows it.

        Args:
            job: The fork.
            trunk: The session's child.
            on_end: As for ``Forking``.
        """
        job.child = trunk
        job.started = time.monotonic()
        job.deadline = job.started + _FORK_LIMIT_S
        self._jobs[trunk.control.fileno()] = job
        self.deadlines.add(job)
        job.forking = Forking(trunk, self._loop.watch, self._loop.unwatch, on_end)
        job.forking.begin()

    def hear(self, job: Job) -> None:
        """Hears what the child of a program has sent."""
        child = job.child
        assert child is not None
        outcome = job.hear()
        if outcome is not None:
            assert child.nursery is not None
            child.nursery.deaths = 0
            self._end(job, outcome)
        elif job.silent:
            self._loop.unwatch(child.control.fileno())

    def _read(self, job: Job, fd: int) -> None:
        if not job.read(fd):
            self._loop.unwatch(fd)
        if job.over_cap:
            self._end(job, job.finish(ExecutionStatus.OUTPUT_LIMIT))

    def enforce_deadlines(self, now: float) -> None:
        """Ends what has had its time, and extends what had to wait for a core."""
        while (job := self.deadlines.take_due(now)) is not None:
            if job.future.done() or job.child is None:
                continue
            if job.forking is not None:
                job.deadline = job.forking.begun + _FORK_LIMIT_S
                if job.deadline > now:  # it had to wait for another fork of its family
                    self.deadlines.add(job)
                else:
                    job.forking.abort(f"it did not fork within {_FORK_LIMIT_S:g} s")
            elif job.extend(now):
                self.deadlines.add(job)
            else:
                self._end(job, job.finish(ExecutionStatus.TIMEOUT, error_class="TimeoutError"))

    def forget(self, job: Job) -> None:
        """Follows a job no more; its child is still open."""
        child = job.child
        assert child is not None
        for fd in (child.control.fileno(), child.out, child.err):
            self._loop.unwatch(fd)
        self._jobs.pop(child.control.fileno(), None)
