"""``Session``: an interpreter that keeps its state from one call to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from retool_env.errors import ForkError, SandboxClosedError
from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.calls import Calls
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.finalizer import Finalizer
from retool_env.sandbox.seats import Seat

if TYPE_CHECKING:
    from retool_env.sandbox.host import Host
    from retool_env.sandbox.sandbox import Sandbox


class Session(Calls):
    r"""One contained interpreter, whose variables, imports and (nsjail tier) files in /tmp last from call to call.

    Made by ``Sandbox.session``. Safe to use from many threads and event loops; calls of one session run one after the
    other, in the order they were made. Each has its own deadline, and is a file of its own in tracebacks
    (``cell_1.py``, ``cell_2.py``, ...). An uncaught exception or ``sys.exit`` ends the call, not the session.

    A call that is killed (``timeout``, ``memory``, ``output_limit``, ``killed``), or that ends its process, ends the
    session. Every later call returns at once: ``killed`` with the error class ``SessionLost`` and the reason, or
    ``unavailable`` if the code was not at fault (the sandbox failed, or the session was idle for too long). Cancelling
    a call that runs ends the session, too.

    Between calls its process is stopped: threads and timers it has started run only while a call does. A session needs
    the memory of its process; close it when it is done. One that is dropped is closed when it is collected.

    Example:
        >>> with Sandbox() as sandbox, sandbox.session() as session:
        ...     session.run("x = 20")
        ...     session.run("print(x + 1)").stdout
        '21\n'
    """

    def __init__(self, sandbox: Sandbox, host: Host, seat: Seat):
        self.config = sandbox.config
        self._metrics = sandbox._metrics
        self._sandbox = sandbox
        self._host = host
        self._seat: Seat = seat
        self._closed = False
        self._finalizer = Finalizer(self, lambda: host.close_seat(seat))

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def alive(self) -> bool:
        """Whether it still has its state and can be called."""
        return not self._closed and not self.lost

    @property
    def lost(self) -> str:
        """Why it has no state any more; empty while it has."""
        if self._host is not self._sandbox._host and not self._seat.lost:
            return "its sandbox was closed, or this process was forked from the one that made it"
        return self._seat.lost

    def fork(self) -> Session:
        """Branches it: a second session with the same state, which goes its own way from here.

        For a session opened with ``forkable=True``. It waits for the calls before it. After the first fork the files in
        the working folder (nsjail tier) can be read by all branches, and written by none.

        Raises:
            ForkError: This session is not forkable, is lost, or has something open that trunk and branch would have in
                common: a thread that runs, a file, pipe or socket.
            SandboxBusyError: ``max_sessions`` are open.
            SandboxClosedError: The session or its sandbox is closed.
            SandboxError: Called in a callback of a future of this sandbox, where it would wait for itself.
        """
        self._host.forbid_waiting("fork()", "another thread for it")
        host, job = self._fork_job()
        assert job.branch is not None
        try:
            return self._branch(job, host.wait_for(job))
        except BaseException:  # such as KeyboardInterrupt: nobody has the branch
            host.close_seat(job.branch)
            raise

    async def afork(self) -> Session:
        """Does the same as ``fork`` without blocking the event loop."""
        host, job = self._fork_job()
        assert job.branch is not None
        try:
            future = job.future  # made here: from now on the host's thread asks for it, too
            host.submit(job)
            return self._branch(job, await asyncio.shield(asyncio.wrap_future(future)))
        except BaseException:  # such as CancelledError: nobody has the branch
            host.close_seat(job.branch)
            raise

    def _fork_job(self) -> tuple[Host, Job]:
        if not self._seat.forkable:
            raise ForkError("this session cannot be forked: open it with session(forkable=True)")
        job = Job(b"", 0.0, False, 0, 0, seat=self._seat)
        host = self._host_for(job)
        if host is None:
            raise ForkError(f"the session is lost: {self.lost}")
        job.branch = host.open_seat(forkable=True, rest=False)
        return host, job

    def _branch(self, job: Job, outcome: Outcome) -> Session:
        assert job.branch is not None
        if outcome.status is not ExecutionStatus.OK:
            reason = outcome.stderr.decode("utf-8", "replace").strip() or "the sandbox failed"
            raise ForkError(f"the session was not forked: {reason}")
        return Session(self._sandbox, self._host, job.branch)

    def close(self) -> None:
        """Ends it. May be called twice."""
        self._closed = True
        self._host.close_seat(self._seat)
        self._finalizer.detach()  # last: after an interrupt it does the rest

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session cannot be copied or pickled: it is a running process")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce__()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"lost: {self.lost}" if self.lost else "alive"
        return f"<Session calls={self._seat.calls} {state}>"

    def _host_for(self, job: Job) -> Host | None:
        if self._closed:
            raise SandboxClosedError("the session is closed: make a new one")
        if self._sandbox.closed:
            raise SandboxClosedError("the sandbox of this session is closed: make a new one")
        if self._host is not self._sandbox._host:
            self._seat.lose(self.lost, at_fault=False)
        if self._seat.lost:
            job.future.set_result(self._seat.refusal())
            return None
        return self._host
