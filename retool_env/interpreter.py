"""``Interpreter``: what runs the code of one attempt, a fresh interpreter for each block or one session for them all.

A driver makes one for each attempt and hands it to ``drive`` or ``adrive``, which close it at the attempt's end:

    interpreter = make_interpreter(config.interpreter, sandbox)
    while not episode.over:
        action = episode.read(...)
        done = await adrive(episode, action, interpreter)
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from retool_env.errors import SandboxBusyError, SandboxClosedError
from retool_env.protocol.base import InterpreterMode
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus

if TYPE_CHECKING:
    from retool_env.sandbox import Sandbox, SandboxConfig, Session


class LazySandbox:
    """A sandbox for those who may not need one: an own one, made when it is first asked for, or a shared one.

    A copy or an unpickled one shares the sandbox that was given, and makes its own where this one does. Safe to use
    from many threads.
    """

    def __init__(self, sandbox: Sandbox | LazySandbox | None = None, config: SandboxConfig | None = None):
        """Starts nothing.

        Args:
            sandbox: A sandbox to share, perhaps somebody else's lazy one, which stays open when this is closed.
            config: Without one to share, the configuration of the own one.
        """
        self._shared = sandbox
        self._config = config
        self._own: Sandbox | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def own(self) -> Sandbox | None:
        """The own sandbox; None as long as there is none."""
        return self._own

    def get(self) -> Sandbox:
        """Returns the sandbox; a new one takes about a second to start.

        Raises:
            SandboxUnavailableError: Its tier cannot run here.
            SandboxClosedError: This was closed, and the sandbox would be its own.
        """
        if self._shared is not None:
            return self._shared.get() if isinstance(self._shared, LazySandbox) else self._shared
        with self._lock:
            sandbox = self._own
            if sandbox is None:
                from retool_env.sandbox import Sandbox

                if self._closed:
                    raise SandboxClosedError("the sandbox is closed: make a new environment")
                sandbox = self._own = Sandbox(self._config)
                if self._closed:  # while it was being made, in a thread, for somebody who no longer waits
                    self.close()
            return sandbox

    async def aget(self) -> Sandbox:
        """Does what ``get`` does, without blocking the event loop."""
        if isinstance(self._shared, LazySandbox):
            return await self._shared.aget()
        if self._shared is None and self._own is None:
            return await asyncio.to_thread(self.get)
        return self.get()

    def close(self) -> None:
        """Closes the own sandbox. May be called again."""
        self._closed = True
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


class Interpreter(ABC):
    """Runs the code of one attempt, one block at a time. A copy or an unpickled one shares nothing that is open.

    Attributes:
        tier: The tier that ran code; None before any was run.
        restarted: The latest block ended the interpreter that blocks share: what was defined in it is lost, and the
            next block gets a new one.
    """

    tier: str | None = None
    restarted: bool = False

    @property
    @abstractmethod
    def can_retry(self) -> bool:
        """Whether a block that was ``UNAVAILABLE`` may be run again as if nothing had happened."""

    @abstractmethod
    def run(self, code: str) -> ExecutionResult:
        """Runs a block and waits for its end.

        Raises:
            SandboxError: The sandbox cannot be made, is closed, or this is closed.
        """

    @abstractmethod
    async def arun(self, code: str) -> ExecutionResult:
        """Does what ``run`` does, without blocking the event loop."""

    @abstractmethod
    def close(self) -> None:
        """Ends what was opened for this attempt; the sandbox stays open. May be called again."""


class FreshInterpreter(Interpreter):
    """Every block runs in a fresh interpreter."""

    can_retry = True

    def __init__(self, sandbox: LazySandbox):
        """Makes one that starts the sandbox, where need be, at the first block."""
        self._sandbox = sandbox

    def run(self, code: str) -> ExecutionResult:
        """Runs a block and waits for its end."""
        sandbox = self._sandbox.get()
        self.tier = sandbox.tier
        return sandbox.run(code)

    async def arun(self, code: str) -> ExecutionResult:
        """Does what ``run`` does, without blocking the event loop."""
        sandbox = await self._sandbox.aget()
        self.tier = sandbox.tier
        return await sandbox.arun(code)

    def close(self) -> None:
        """Does nothing: no interpreter outlives its block."""


_SURVIVED: Final = (ExecutionStatus.OK, ExecutionStatus.ERROR)

_STATE_IS_GONE: Final = ExecutionResult(
    ExecutionStatus.UNAVAILABLE,
    stderr="SessionLost: the session with what earlier blocks defined is gone (a fault, or this is a copy)\n",
    error_class="SessionLost",
)

_PLACE_WAIT_S: Final = 10.0
"""How long a first block waits where as many sessions are open as there may be: other attempts end meanwhile."""
_PLACE_LOOK_S: Final = 0.1


class SessionInterpreter(Interpreter):
    """All blocks run in one session of the sandbox, which is opened at the first one.

    A block that ends its session (a limit, a crash, ``os._exit``) sets ``restarted``; the next one gets a new session.
    A session that is lost through no fault of the code makes the block ``UNAVAILABLE``. If no block has run in it
    before, a new one is as good (``can_retry``); otherwise the attempt cannot go on, and every later block is
    ``UNAVAILABLE`` too. So is every block of a copy that is made when there is something to lose: a session cannot be
    copied. Where the sandbox has as many sessions as it may have, the first block waits for a place, at most some
    seconds; it is ``UNAVAILABLE`` if there is none, with the error class ``SandboxBusyError`` and what to do about it.
    """

    def __init__(self, sandbox: LazySandbox):
        """Makes one that starts the sandbox, where need be, and opens the session at the first block."""
        self._sandbox = sandbox
        self._session: Session | None = None
        self._has_state = False
        self._turned_away = False
        self._closed = False

    @property
    def can_retry(self) -> bool:
        """Whether no block has run in the session, and none has waited for one in vain."""
        return not self._has_state and not self._turned_away

    def run(self, code: str) -> ExecutionResult:
        """Runs a block and waits for its end."""
        self._check_open()
        session = self._session
        if session is None:
            if self._has_state:
                return _STATE_IS_GONE
            sandbox = self._sandbox.get()
            deadline = time.monotonic() + _PLACE_WAIT_S
            while session is None:
                try:
                    session = self._opened(sandbox, sandbox.session())
                except SandboxBusyError as error:
                    if time.monotonic() > deadline:
                        return self._no_place(error)
                    time.sleep(_PLACE_LOOK_S)
                    self._check_open()
        return self._ran(session, session.run(code))

    async def arun(self, code: str) -> ExecutionResult:
        """Does what ``run`` does, without blocking the event loop."""
        self._check_open()
        session = self._session
        if session is None:
            if self._has_state:
                return _STATE_IS_GONE
            sandbox = await self._sandbox.aget()
            deadline = time.monotonic() + _PLACE_WAIT_S
            while session is None:
                try:
                    session = self._opened(sandbox, await sandbox.asession())
                except SandboxBusyError as error:
                    if time.monotonic() > deadline:
                        return self._no_place(error)
                    await asyncio.sleep(_PLACE_LOOK_S)
                    self._check_open()
        return self._ran(session, await session.arun(code))

    def close(self) -> None:
        """Closes the session."""
        self._closed = True
        self._drop()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def _opened(self, sandbox: Sandbox, session: Session) -> Session:
        if self._closed:  # by another thread or task, while it was being opened
            session.close()
        self._check_open()
        self.tier = sandbox.tier
        self._session = session
        return session

    def _no_place(self, error: SandboxBusyError) -> ExecutionResult:
        self._turned_away = True
        message = f"SandboxBusyError: {error}\n"
        return ExecutionResult(ExecutionStatus.UNAVAILABLE, stderr=message, error_class="SandboxBusyError")

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError("the interpreter of this attempt was closed: make one for each attempt")

    def _ran(self, session: Session, result: ExecutionResult) -> ExecutionResult:
        """Notes what became of the session: its end is a matter of the verdict, or of a program that left for good."""
        survived = result.status in _SURVIVED and session.alive
        if result.status.ran:
            self._has_state = survived
        self.restarted = result.status.ran and not survived
        if not survived:
            self._drop()
        return result

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


_KINDS: Final[dict[InterpreterMode, Callable[[LazySandbox], Interpreter]]] = {
    "fresh": FreshInterpreter,
    "session": SessionInterpreter,
}


def make_interpreter(mode: InterpreterMode, sandbox: Sandbox | LazySandbox) -> Interpreter:
    """Returns the interpreter for one attempt. Nothing is opened before there is code to run.

    Args:
        mode: As in ``EpisodeConfig.interpreter``.
        sandbox: Where code runs; stays open.
    """
    return _KINDS[mode](sandbox if isinstance(sandbox, LazySandbox) else LazySandbox(sandbox))
