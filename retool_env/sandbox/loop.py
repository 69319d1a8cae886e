"""The loop of the host's thread: it waits for descriptors, and for what other threads tell it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from retool_env.errors import SandboxClosedError


class Loop:
    """What the host's thread waits for.

    Attributes:
        lock: The one lock of a host: for the inbox, for ``closed``, and for all that is shared in the scheduler. It is
            re-entrant, because a session may be collected, or a signal come whose handler submits, in the middle of
            what it guards. It is taken itself, never by way of a method or a condition: an interrupt in their
            ``__enter__`` would leave it locked.
        closed: Nobody may tell the thread anything more.
    """

    def __init__(self) -> None:
        """Opens it."""
        self.lock = threading.RLock()
        self.closed = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake, self.read_inbox)

    def tell(self, action: Callable[[], None]) -> None:
        """Has the thread do something, and wakes it. Called from any thread.

        Raises:
            SandboxClosedError: The host was closed.
        """
        with self.lock:
            if self.closed:
                raise SandboxClosedError("the sandbox is closed")
            self._inbox.append(action)
            os.eventfd_write(self._wake, 1)

    def wake(self) -> None:
        """Wakes the thread: what it sees to each time it wakes is due. Called from any thread.

        Raises:
            SandboxClosedError: The host was closed.
        """
        self.tell(_nothing)

    def tell_last(self, action: Callable[[], None]) -> bool:
        """Has the thread do a last thing, and closes; False if it is closed already. Called from any thread."""
        with self.lock:
            if self.closed:
                return False
            self._inbox.append(action)
            os.eventfd_write(self._wake, 1)
            self.closed = True  # last: after an interrupt it may be told once more
            return True

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Calls a function whenever a descriptor is readable."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Ends that, if it is watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, limit_s: float) -> None:
        """Waits until something is to be done, at most so long, and does it."""
        for fd, _ in self._poll.poll(limit_s):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def read_inbox(self) -> None:
        """Does what the thread was told."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()

    def renew_lock(self) -> None:
        """In a forked process: another thread, which is not here, may have held it."""
        self.lock = threading.RLock()

    def close(self) -> None:
        """Closes its descriptors."""
        self._poll.close()
        os.close(self._wake)


def _nothing() -> None:
    """Does nothing."""
