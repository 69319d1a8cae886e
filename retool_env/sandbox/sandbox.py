"""``Sandbox``: the place where programs run. See ``SandboxConfig`` for what it can be told."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from retool_env.errors import ConfigurationError, SandboxClosedError, SandboxUnavailableError
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.host import Host

_TIERS = ("nsjail", "landlock")
"""Best first: what ``auto`` tries, in this order."""

_MAX_PROGRAM_BYTES = 16 << 20

_forked: weakref.WeakSet[Sandbox]


class Sandbox:
    r"""Runs Python programs that nobody has read, each in a fresh, contained interpreter.

    Safe to use from many threads and event loops. In a process forked from the one that made it, it starts a zygote
    of its own at its first use there. ``copy.deepcopy`` shares it (a copy of an environment uses the same sandbox);
    pickling keeps only its configuration, and the copy starts its own zygote.

    Example:
        >>> with Sandbox() as sandbox:
        ...     sandbox.run("print(6 * 7)").stdout
        '42\n'
    """

    def __init__(self, config: SandboxConfig | None = None, **options: Any):
        """Starts the sandbox, which takes as long as importing the preloaded libraries (about a second).

        Args:
            config: The configuration, or None for the default one.
            **options: Fields of ``SandboxConfig`` that replace those of ``config``.

        Raises:
            ConfigurationError: An option does not exist or has an impossible value.
            SandboxUnavailableError: The tier that was asked for cannot run here; a weaker one is never taken instead.
        """
        self.config = _configure(config, options)
        self._lock = threading.Lock()
        self._closed = False
        self._host: Host | None = None
        self._pid = os.getpid()
        self._start()
        _forked.add(self)

    @property
    def tier(self) -> str:
        """The tier that programs run in: "nsjail" or "landlock"."""
        return self._tier

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def run(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        """Runs a program and waits for its end.

        Args:
            code: Python source.
            timeout_s: Wall-clock limit in seconds in place of the configured one.

        Returns:
            How it ended. Never raises for anything the program does.

        Raises:
            SandboxClosedError: The sandbox was closed.
            ConfigurationError: ``timeout_s`` is not above 0 and up to 86400 (a day).
            SandboxError: Called in a callback of a future of this sandbox, where it would wait for itself.
        """
        job = self._job(code, timeout_s)
        if job.future.done():
            return job.future.result().result()
        return self._current_host().run_here(job).result()

    def submit(self, code: str, timeout_s: float | None = None) -> Future[ExecutionResult]:
        """Queues a program; the future gets its result. Cancelling the future kills the program."""
        job = self._submit(code, timeout_s)
        result: Future[ExecutionResult] = Future()

        def deliver(done: Future[Outcome]) -> None:
            if done.cancelled():
                result.cancel()
            elif result.set_running_or_notify_cancel():
                result.set_result(done.result().result())

        job.future.add_done_callback(deliver)
        result.add_done_callback(lambda future: self._cancel(job) if future.cancelled() else None)
        return result

    async def arun(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        """Runs a program without blocking the event loop. Cancelling the task kills the program."""
        job = self._submit(code, timeout_s)
        try:
            return (await asyncio.wrap_future(job.future)).result()
        except asyncio.CancelledError:
            self._cancel(job)
            raise

    def close(self) -> None:
        """Kills what runs and ends the zygote. May be called twice."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        if host is not None:
            self._finalizer.detach()
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.config,))

    def __repr__(self) -> str:
        return f"<Sandbox tier={self._tier!r} {'closed' if self._closed else 'open'}>"

    def _submit(self, code: str, timeout_s: float | None) -> Job:
        job = self._job(code, timeout_s)
        if not job.future.done():
            self._current_host().submit(job)
        return job

    def _job(self, code: str, timeout_s: float | None) -> Job:
        if not isinstance(code, str):
            raise TypeError(f"code must be a str, not {type(code).__name__}")
        limit = self.config.timeout_s if timeout_s is None else timeout_s
        if not 0 < limit <= 86400:
            raise ConfigurationError(
                f"timeout_s must be a number of seconds above 0 and up to 86400, got {timeout_s!r}"
            )
        config = self.config
        data = code.encode("utf-8", "surrogatepass")
        job = Job(data, limit, config.echo, config.seed, config.max_output_bytes)
        largest = min(_MAX_PROGRAM_BYTES, config.memory_mb << 17)  # an eighth of its memory
        if len(data) > largest:
            message = f"MemoryError: the program has {len(data)} bytes; {largest} are the most that is run\n".encode()
            job.future.set_result(Outcome(ExecutionStatus.ERROR, stderr=message, error_class="MemoryError"))
        return job

    def _cancel(self, job: Job) -> None:
        host = self._host
        if host is not None:
            host.cancel(job)

    def _current_host(self) -> Host:
        host = self._host
        if host is None or host.broken:
            with self._lock:
                if self._closed:
                    raise SandboxClosedError("the sandbox is closed: make a new one")
                if self._host is None or self._host.broken:
                    self._start()
                host = self._host
        assert host is not None
        return host

    def _start(self) -> None:
        self._tier, self._host = _start_host(self.config)
        self._finalizer = weakref.finalize(self, self._host.close)

    def _after_fork(self) -> None:
        """In a forked process: forgets the parent's zygote; the next use starts an own one."""
        self._lock = threading.Lock()
        host, self._host = self._host, None
        if host is not None:
            self._finalizer.detach()
            host.abandon()


def _configure(config: SandboxConfig | None, options: dict[str, Any]) -> SandboxConfig:
    from pydantic import ValidationError

    try:
        base = {} if config is None else config.model_dump(exclude_unset=True)
        return SandboxConfig(**{**base, **options})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r})" for item in error.errors()
        )
        raise ConfigurationError(f"sandbox options: {problems}") from None


def _start_host(config: SandboxConfig) -> tuple[str, Host]:
    if config.tier == "none":
        warnings.warn(
            "sandbox tier 'none' only limits resources: a program can read, change and send whatever this user can. "
            "Use it in throw-away containers only.",
            RuntimeWarning,
            stacklevel=4,
        )
    if config.tier != "auto":
        return config.tier, Host(config.tier, config)
    problems = []
    for tier in _TIERS:
        try:
            return tier, Host(tier, config)
        except SandboxUnavailableError as error:
            problems.append(str(error))
    raise SandboxUnavailableError("no sandbox tier runs here (see `retool doctor`): " + "; ".join(problems))


def _forget_after_fork() -> None:
    for sandbox in list(_forked):
        sandbox._after_fork()


_forked = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_after_fork)
