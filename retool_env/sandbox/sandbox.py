"""``Sandbox``: the place where programs run. See ``SandboxConfig`` for what it can be told."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
from typing import Any, Self

from retool_env.errors import ConfigurationError, ForkError, SandboxClosedError, SandboxUnavailableError
from retool_env.sandbox.calls import Calls
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Job
from retool_env.sandbox.finalizer import Finalizer, Living
from retool_env.sandbox.host import Host
from retool_env.sandbox.launch import fork_obstacle
from retool_env.sandbox.metrics import Metrics, SandboxMetrics
from retool_env.sandbox.session import Session

_TIERS = ("nsjail", "landlock")
"""Best first: what ``auto`` tries, in this order."""

_living: Living[Sandbox] = Living()


class Sandbox(Calls):
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
        self._metrics = Metrics()
        self._closed = False
        self._host: Host | None = None
        self._pid = os.getpid()
        self._finalizer: Finalizer | None = None
        _living.add(self)
        self._start()

    @property
    def tier(self) -> str:
        """The tier that programs run in: "nsjail" or "landlock"."""
        return self._tier

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def session(self, *, forkable: bool = False) -> Session:
        """Opens a session: an interpreter that keeps its state from one call to the next.

        Args:
            forkable: Whether it can be branched with ``Session.fork``. Such a session is a little more restricted:
                no shared memory, no signals (also to itself), no file locks.

        Raises:
            ForkError: ``forkable``, and this tier or machine cannot do it safely; says why.
            SandboxBusyError: ``max_sessions`` are open.
            SandboxClosedError: The sandbox was closed.
            SandboxUnavailableError: The sandbox has to be started here (after a fork), and cannot run.
        """
        host = self._current_host()
        if forkable and (obstacle := fork_obstacle(host.tier)):
            raise ForkError(f"sessions cannot be forked here: {obstacle}")
        seat = host.open_seat(forkable)
        try:
            return Session(self, host, seat)
        except BaseException:  # such as KeyboardInterrupt: nobody has it
            host.close_seat(seat)
            raise

    async def asession(self, *, forkable: bool = False) -> Session:
        """Opens a session without blocking the event loop. Takes and raises what ``session`` does."""
        if self._host is None or self._host.broken:
            return await asyncio.to_thread(self.session, forkable=forkable)
        return self.session(forkable=forkable)

    def metrics(self) -> SandboxMetrics:
        """Returns what has been counted and measured of all calls so far, sessions included.

        Calls that were cancelled, and forks, are not counted.
        """
        host = self._host
        return self._metrics.snapshot(**({} if host is None else host.gauges()))

    def close(self) -> None:
        """Kills what runs and ends the zygote. May be called twice, and again after an interrupt."""
        with self._lock:
            self._closed = True
            host = self._host
        if host is not None:
            host.close()
            self._forget_host()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.config,))

    def __repr__(self) -> str:
        return f"<Sandbox tier={self._tier!r} {'closed' if self._closed else 'open'}>"

    def _host_for(self, job: Job) -> Host:
        host = self._current_host()
        job.light = host.is_light(job.code)
        return host

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
        problems = []
        for tier in _tiers(self.config):
            host = Host(tier, self.config)
            try:
                host.start()
                self._forget_host()  # one that has ended by a bug of ours
                self._finalizer = Finalizer(self, host.close)
                self._tier, self._host = tier, host
                return
            except BaseException as error:  # it cannot run here, or an interrupt: nothing is left open
                host.close()
                if self.config.tier != "auto" or not isinstance(error, SandboxUnavailableError):
                    raise
                problems.append(str(error))
        raise SandboxUnavailableError("no sandbox tier runs here (see `retool doctor`): " + "; ".join(problems))

    def _forget_host(self) -> None:
        finalizer, self._finalizer, self._host = self._finalizer, None, None
        if finalizer is not None:
            finalizer.detach()

    def _after_fork(self) -> None:
        """In a forked process: forgets the parent's zygote; the next use starts an own one."""
        self._lock = threading.Lock()
        host = self._host
        if host is not None:
            self._forget_host()
            host.abandon()


def _configure(config: SandboxConfig | None, options: dict[str, Any]) -> SandboxConfig:
    from pydantic import ValidationError

    if config is not None and not isinstance(config, SandboxConfig):
        raise ConfigurationError(
            f"config: must be a SandboxConfig, got {config!r:.100}; give single options by name, as in tier='nsjail'"
        )
    try:
        base = {} if config is None else config.model_dump(exclude_unset=True)
        return SandboxConfig(**{**base, **options})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r})" for item in error.errors()
        )
        raise ConfigurationError(f"sandbox options: {problems}") from None


def _tiers(config: SandboxConfig) -> tuple[str, ...]:
    """Returns the tiers to try, in order."""
    if config.tier == "none":
        warnings.warn(
            "sandbox tier 'none' only limits resources: a program can read, change and send whatever this user can. "
            "Use it in throw-away containers only.",
            RuntimeWarning,
            stacklevel=4,
        )
    return _TIERS if config.tier == "auto" else (config.tier,)


def _forget_after_fork() -> None:
    for sandbox in _living.all():
        sandbox._after_fork()


def _close_at_exit() -> None:
    for sandbox in _living.all():
        sandbox.close()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_close_at_exit)
