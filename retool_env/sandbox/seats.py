"""Sessions as the host sees them: the child and the calls of each, and the set of those that are open.

All of it is guarded by the host's lock.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from retool_env.sandbox.api import ExecutionStatus
from retool_env.sandbox.execution import Outcome

if TYPE_CHECKING:
    from retool_env.sandbox.contained import Child
    from retool_env.sandbox.execution import Job


class Seat:
    """A session as the host sees it: its child, and the calls that wait for it. Guarded by the host's lock.

    Attributes:
        child: Where it lives; None before its first call, and once it is lost.
        calls: Calls begun so far.
        current: The call that runs, or is next in the host's queue.
        waiting: Later calls, in order.
        lost: Why there is no session any more; empty while there is.
        at_fault: Whether the code lost it (and not the sandbox).
        forkable: Whether its child is one that can be forked.
        asked: Whether a child was asked for.
        idle_since: When its last call ended, on the monotonic clock.
    """

    __slots__ = ("asked", "at_fault", "calls", "child", "current", "forkable", "idle_since", "lost", "waiting")

    def __init__(self, forkable: bool):
        self.forkable = forkable
        self.asked = False
        self.child: Child | None = None
        self.calls = 0
        self.current: Job | None = None
        self.waiting: deque[Job] = deque()
        self.lost = ""
        self.at_fault = False
        self.idle_since = time.monotonic()

    def lose(self, why: str, at_fault: bool) -> None:
        """Marks it as lost; the first reason stays."""
        if not self.lost:
            self.lost, self.at_fault = why, at_fault
        self.child = None

    def refusal(self) -> Outcome:
        """Returns the outcome of a call of a session that is lost."""
        status = ExecutionStatus.KILLED if self.at_fault else ExecutionStatus.UNAVAILABLE
        message = f"SessionLost: {self.lost}; its variables are gone, start a new session\n"
        return Outcome(status, stderr=message.encode(), error_class="SessionLost")


class Seats:
    """The sessions that are open."""

    def __init__(self) -> None:
        """Begins with none."""
        self._open: set[Seat] = set()
        self._idle: OrderedDict[Seat, None] = OrderedDict()  # the longest idle one first

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Seat]:
        """Returns them."""
        return list(self._open)

    def add(self, seat: Seat) -> None:
        """Takes in a session; it is not idle before it is put to rest."""
        self._open.add(seat)

    def discard(self, seat: Seat) -> None:
        """Frees its place."""
        self._open.discard(seat)
        self._idle.pop(seat, None)

    def occupy(self, seat: Seat, job: Job) -> None:
        """Gives it a call, which runs or is next in the queue."""
        seat.current = job
        self._idle.pop(seat, None)

    def rest(self, seat: Seat) -> None:
        """Notes that it has no call, from now on."""
        seat.current = None
        seat.idle_since = time.monotonic()
        self._idle[seat] = None

    def idle_since(self, moment: float) -> Seat | None:
        """Returns the one that has been idle for longest, if it has been since before a moment."""
        seat = next(iter(self._idle), None)
        return None if seat is None or seat.idle_since > moment else seat
