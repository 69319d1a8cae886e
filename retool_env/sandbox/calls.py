"""What a sandbox and a session have in common: the three ways to call them, and that they are closed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retool_env.errors import ConfigurationError
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.metrics import Metrics
from retool_env.sandbox.seats import Seat

if TYPE_CHECKING:
    from retool_env.sandbox.host import Host

_MAX_PROGRAM_BYTES = 16 << 20


class Calls:
    """Runs programs: and waits, or with a future, or awaited. Closed at the end of a ``with`` block."""

    config: SandboxConfig
    _metrics: Metrics
    _seat: Seat | None = None

    def run(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        """Runs a program and waits for its end.

        Args:
            code: Python source.
            timeout_s: Wall-clock limit in seconds in place of the configured one.

        Returns:
            How it ended. Never raises for anything the program does.

        Raises:
            SandboxClosedError: The sandbox, or the session, was closed.
            SandboxUnavailableError: This process was forked from the sandbox's owner, and cannot start a zygote.
            ConfigurationError: ``timeout_s`` is not a number above 0 and up to 86400 (a day).
            TypeError: ``code`` is not a str.
            SandboxError: Called in a callback of a future of this sandbox, where it would wait for itself.
        """
        host, job = self._prepare(code, timeout_s)
        if host is None:
            return self._result(job, job.future.result())
        return host.run_here(job, lambda outcome: self._result(job, outcome))

    def submit(self, code: str, timeout_s: float | None = None, *, block: bool = True) -> Future[ExecutionResult]:
        """Queues a program; the future gets its result. Cancelling the future kills the program.

        Args:
            code: Python source.
            timeout_s: Wall-clock limit in seconds in place of the configured one.
            block: Whether to wait while the queue is full (``max_queue``) rather than raise.

        Raises:
            SandboxBusyError: The queue is full, and ``block`` is false or this is a callback of one of its futures.
            SandboxClosedError, ConfigurationError: As ``run``.
        """
        host, job = self._prepare(code, timeout_s)
        job.bounded = True
        result: Future[ExecutionResult] = Future()

        def deliver(done: Future[Outcome]) -> None:
            if done.cancelled():
                result.cancel()
            elif result.set_running_or_notify_cancel():
                result.set_result(self._result(job, done.result()))

        # First: a thread that is interrupted as it takes a future's lock leaves it locked, for the host's thread, too.
        job.future.add_done_callback(deliver)
        if host is not None:
            result.add_done_callback(lambda future: host.cancel(job) if future.cancelled() else None)
            host.submit(job, block)
        return result

    async def arun(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        """Runs a program without blocking the event loop. Cancelling the task kills the program.

        Takes, returns and raises what ``run`` does. Each call holds up its own task, so ``max_queue`` does not apply.
        """
        host, job = self._prepare(code, timeout_s)
        if host is None:
            return self._result(job, job.future.result())
        future = job.future  # made here: from now on the host's thread asks for it, too, and there must be only one
        try:
            host.submit(job)
            outcome = await asyncio.wrap_future(future)
        except BaseException:  # such as CancelledError: the program must not live on unwatched
            host.cancel(job)
            raise
        return self._result(job, outcome)

    def close(self) -> None:
        """Ends it. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _host_for(self, job: Job) -> Host | None:
        """Returns the host that is to run a job; None if its future already holds the outcome."""
        raise NotImplementedError

    def _prepare(self, code: str, timeout_s: float | None) -> tuple[Host | None, Job]:
        if not isinstance(code, str):
            raise TypeError(f"code must be a str, not {type(code).__name__}")
        config = self.config
        limit = config.timeout_s if timeout_s is None else timeout_s
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 86400:
            raise ConfigurationError(
                f"timeout_s must be a number of seconds above 0 and up to 86400, got {timeout_s!r}"
            )
        data = code.encode("utf-8", "surrogatepass")
        job = Job(data, limit, config.echo, config.seed, config.max_output_bytes, seat=self._seat, chars=len(code))
        largest = min(_MAX_PROGRAM_BYTES, config.memory_mb << 17)  # an eighth of its memory
        if len(data) > largest:
            message = f"MemoryError: the program has {len(data)} bytes; {largest} are the most that is run\n".encode()
            job.future.set_result(Outcome(ExecutionStatus.ERROR, stderr=message, error_class="MemoryError"))
            return None, job
        return self._host_for(job), job

    def _result(self, job: Job, outcome: Outcome) -> ExecutionResult:
        result = outcome.result(job)
        self._metrics.record(result)
        return result
