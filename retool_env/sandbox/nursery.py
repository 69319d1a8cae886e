"""A nursery: one zygote and the children it has made, those that wait for a program and those that run one.

Its state belongs to the host's thread, apart from ``idle``, from which any thread may take a child under the host's
lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import launch, wire
from retool_env.sandbox.cgroups import Cgroup
from retool_env.sandbox.contained import Child
from retool_env.sandbox.forking import Family
from retool_env.sandbox.seats import Seat

MAX_DEATHS = 3
"""Zygotes that may die one after the other without any program having ended, before waiting programs are given up."""

_MAX_STILLBORN = 20
"""Children that may die one after the other before they are ready, before their zygote is given up."""

Watch = Callable[[int, Callable[[], None]], None]
Unwatch = Callable[[int], None]

_log = logging.getLogger("retool_env.sandbox")


class Nursery:
    """One zygote and its children.

    Attributes:
        light: Whether its zygote has the standard library only.
        zygote: The zygote; None while there is none.
        idle: Children that are contained and ready for a program, warm ones first.
        children: All children that have not been reaped, by the zygote's pid for them.
        requested: Children that were asked for and have not arrived; those for a session not counted.
        deaths: Zygotes that died in a row.
        restarts: Zygotes that took the place of another.
    """

    def __init__(
        self,
        plan: launch.Plan,
        watch: Watch,
        unwatch: Unwatch,
        on_exit: Callable[[Child, int, float], None],
        on_death: Callable[[Nursery], None],
        on_start: Callable[[Nursery], None],
        on_seat: Callable[[Seat, Child], None],
    ):
        """Makes a nursery without a zygote: see ``start`` and ``start_here``.

        Args:
            plan: What its zygotes are started with.
            watch: Calls a function whenever a descriptor is readable.
            unwatch: Ends that.
            on_exit: Told of each child that has been reaped: its wait status and CPU seconds.
            on_death: Told when the zygote has died, with all children still listed.
            on_seat: Told when the child for a session is ready.
            on_start: Told, in another thread, that a start has ended: ``settle`` is to be called in the host's.
        """
        self.plan = plan
        self.light = plan.light
        self._watch, self._unwatch = watch, unwatch
        self._on_exit, self._on_death, self._on_start, self._on_seat = on_exit, on_death, on_start, on_seat
        self.idle: deque[Child] = deque()
        self.children: dict[int, Child] = {}
        self.requested = 0
        self.deaths = 0
        self.restarts = 0
        self._stillborn = 0
        self._raw: set[Child] = set()  # that have arrived and are not yet contained
        self._warming: Child | None = None
        self._requests: deque[tuple[Cgroup | None, Seat | None]] = deque()  # in their order
        self._jobs: deque[Callable[[int], None]] = deque()  # who waits for a DONE, in that order
        self._families: set[Family] = set()
        self._arriving: tuple[int, ...] = ()
        self.zygote: launch.ZygoteProcess | None = None
        self._starting: threading.Thread | None = None
        self._started: launch.ZygoteProcess | None = None
        self._holding: list[int] = []  # descriptors of a start that is under way

    @property
    def room(self) -> int:
        """How many more children it may have."""
        return self.plan.slots - len(self.children) - len(self._requests)

    @property
    def starting(self) -> bool:
        """Whether a zygote is on its way."""
        return self._starting is not None

    @property
    def hopeless(self) -> bool:
        """Whether it has no zygote and too many have died to try another."""
        return self.zygote is None and self._starting is None and self.deaths > MAX_DEATHS

    def start_here(self) -> None:
        """Starts the zygote and waits for it.

        Raises:
            SandboxUnavailableError: It cannot run here.
        """
        self.zygote = launch.start(self.plan)  # no call between: an interrupt would leave a zygote that nobody has
        self._watch_zygote(self.zygote)

    def start(self) -> None:
        """Starts the zygote in a thread of its own."""
        thread = threading.Thread(target=self._start, name="retool-sandbox-start", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at the end of the owner, or without room for a thread
            self.deaths += 1
        else:
            self._starting = thread

    def _start(self) -> None:
        try:
            self._started = launch.start(self.plan, self._holding)
        except (SandboxUnavailableError, OSError) as error:
            _log.warning("a sandbox zygote could not be started: %s", error)
        finally:
            self._holding.clear()
            self._on_start(self)

    def settle(self) -> None:
        """Takes on the zygote that a start has made, or counts the failure."""
        if self._starting is None:
            return
        self._starting.join()
        self._starting = None
        started, self._started = self._started, None
        if started is None:
            self.deaths += 1
        else:
            self.zygote = started
            self._watch_zygote(started)

    def take(self, cold: bool = False) -> Child | None:
        """Takes an idle child, or None.

        Args:
            cold: Only one that has copied no memory in advance: a session holds its memory for long.
        """
        try:
            if cold and self.idle[-1].warm:
                return None
            return self.idle.pop() if cold else self.idle.popleft()
        except IndexError:
            return None

    def put_back(self, child: Child) -> None:
        """Puts back a child that was taken and not used."""
        if child.warm:
            self.idle.appendleft(child)
        else:
            self.idle.append(child)

    def warm(self) -> bool:
        """Has one idle child copy memory in advance, if none is at it; False if there is none left to warm."""
        if self._warming is not None:
            return True
        try:
            child = self.idle.pop()  # warm ones are at the other end, and taken first
        except IndexError:
            return False
        if child.warm:
            self.idle.append(child)
            return False
        try:
            child.control.send(wire.WARM)
        except OSError:  # it died: noticed when its exit is reported
            return False
        self._warming = child
        self._watch(child.control.fileno(), lambda: self._warmed(child))
        return True

    def _warmed(self, child: Child) -> None:
        self._unwatch(child.control.fileno())
        self._warming = None
        try:
            answer = child.control.recv(8)
        except OSError:
            answer = b""
        if answer == wire.WARM and child.zygote_pid in self.children:
            child.warm = True
            child.mark()
            self.idle.appendleft(child)

    def supply(self, wanted: int) -> None:
        """Asks for as many children as are missing from ``wanted`` idle ones."""
        if self.zygote is None:
            return
        missing = wanted - len(self.idle) - self.requested - len(self._raw) - (self._warming is not None)
        for _ in range(min(missing, self.room)):
            if not self._request(self.zygote):
                return

    def supply_seat(self, seat: Seat) -> bool:
        """Asks for a child for a session; False if that cannot be done now."""
        if self.zygote is None or self.room < 1:
            return False
        seat.asked = self._request(self.zygote, seat)
        return seat.asked

    def seal(self, folder: int, then: Callable[[int], None]) -> bool:
        """Has the zygote make a folder read-only, and passes on its error number; False if it cannot be asked."""
        return self._order(wire.SEAL, [folder], then)

    def adopt(self, child: Child, family: int, then: Callable[[int], None]) -> bool:
        """Has the zygote watch over a branch, in a memory cgroup of its own; as ``seal``."""
        fds: list[int] = []
        zygote = self.zygote
        try:
            if zygote is not None and zygote.memory is not None:
                child.cgroup = zygote.memory.take()
                fds.append(os.open(child.cgroup.procs, os.O_WRONLY | os.O_CLOEXEC))
            return self._order(wire.ADOPT_HEAD.pack(wire.ADOPT, family, child.zygote_pid), fds, then)
        except OSError:
            return False
        finally:
            for fd in fds:
                os.close(fd)

    def _order(self, message: bytes, fds: list[int], then: Callable[[int], None]) -> bool:
        if self.zygote is None:
            return False
        try:
            if fds:
                socket.send_fds(self.zygote.control, [message], fds)
            else:
                self.zygote.control.send(message)
        except OSError:
            return False
        self._jobs.append(then)
        return True

    def _request(self, zygote: launch.ZygoteProcess, seat: Seat | None = None) -> bool:
        message = wire.SPAWN_FORKABLE if seat is not None and seat.forkable else wire.SPAWN
        cgroup = None
        if zygote.memory is None:
            try:
                zygote.control.send(message)
            except OSError:  # full, or dead: its death is noticed by its pidfd
                return False
        else:
            try:
                cgroup = zygote.memory.take()
            except OSError:
                self._failed()
                return False
            try:
                procs = os.open(cgroup.procs, os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                cgroup.release()
                self._failed()
                return False
            try:
                socket.send_fds(zygote.control, [message], [procs])
            except OSError:
                cgroup.release()
                return False
            finally:
                os.close(procs)
        self._requests.append((cgroup, seat))
        if seat is None:
            self.requested += 1
        return True

    def _failed(self) -> None:
        """Counts a child that came to nothing; too many in a row, and the zygote is given up."""
        self._stillborn += 1
        if self._stillborn > _MAX_STILLBORN:
            self._died()

    def discard(self, child: Child) -> None:
        """Forgets a child that has ended, and closes our ends of its descriptors."""
        self.children.pop(child.zygote_pid, None)
        with contextlib.suppress(ValueError):
            self.idle.remove(child)
        self._raw.discard(child)
        if self._warming is child:
            self._warming = None
        family = child.family
        if family is not None:
            family.members.discard(child)
            if not family.members:
                self._unwatch(family.listener.fileno())
                family.close()
                self._families.discard(family)
        if child.cgroup is not None:
            child.cgroup.release(shared=family is not None)
        if child.borrowed:  # its borrower closes it
            child.lost = True
            return
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        child.close()

    def quit(self) -> None:
        """Tells the zygote to end, without waiting for it."""
        if self.zygote is not None:
            with contextlib.suppress(OSError):
                self.zygote.control.send(wire.QUIT)

    def end(self) -> None:
        """Ends the zygote with all its children, and waits for it; also for one that is on its way."""
        for child in list(self.children.values()):
            self.discard(child)
        if self._starting is not None:
            self._starting.join()
            if self._started is not None:
                self._started.end()
        if self.zygote is not None:
            self._forget_zygote().end()

    def abandon(self) -> None:
        """Closes our descriptors in a forked process, to which the zygote does not belong."""
        for fd in self._arriving:
            with contextlib.suppress(OSError):
                os.close(fd)
        for child in self.children.values():
            with contextlib.suppress(OSError):  # the parent's thread was closing it as we were forked
                child.close()
        for family in self._families:
            if family.forking is not None:
                family.forking.abandon()
            with contextlib.suppress(OSError):
                family.close()
        for zygote in (self.zygote, self._started):
            if zygote is not None:
                zygote.abandon()
                if zygote.process is not None:
                    zygote.process.returncode = 0  # not ours to wait for
        for fd in self._holding:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _watch_zygote(self, zygote: launch.ZygoteProcess) -> None:
        zygote.control.setblocking(False)
        self._watch(zygote.control.fileno(), self._hear)
        self._watch(zygote.pidfd, self._died)

    def _forget_zygote(self) -> launch.ZygoteProcess:
        assert self.zygote is not None
        zygote, self.zygote = self.zygote, None
        self._unwatch(zygote.control.fileno())
        self._unwatch(zygote.pidfd)
        return zygote

    def _hear(self) -> None:
        while self.zygote is not None:
            try:
                message, fds, _, _ = socket.recv_fds(self.zygote.control, 64, 4)
            except BlockingIOError:
                return
            except OSError:
                message, fds = b"", []
            self._arriving = tuple(fds)  # closed by a worker that is forked at this moment
            if message[:1] == wire.CHILD and len(message) == wire.CHILD_HEAD.size and self._requests:
                self._adopt_child(message)
            elif message[:1] == wire.EXITED and len(message) == wire.EXITED_HEAD.size:
                _, pid, status, cpu_s = wire.EXITED_HEAD.unpack(message)
                child = self.children.get(pid)
                if child is not None:
                    self._on_exit(child, status, cpu_s)
            elif message[:1] == wire.DONE and len(message) == wire.DONE_HEAD.size and self._jobs:
                self._jobs.popleft()(wire.DONE_HEAD.unpack(message)[1])
            else:
                for fd in fds:
                    os.close(fd)
                self._arriving = ()
                if not message or message[:1] in (wire.CHILD, wire.EXITED, wire.DONE):  # its end, or out of its mind
                    self._died()
            self._arriving = ()

    def _died(self) -> None:
        if self.zygote is None:
            return
        self.deaths += 1
        self.restarts += 1
        zygote = self._forget_zygote()
        self.idle.clear()  # before anyone hears of it and asks for the next one
        self._on_death(self)
        for child in list(self.children.values()):
            child.kill()
            self.discard(child)
        self.requested = 0
        self._stillborn = 0
        for _, seat in self._requests:
            if seat is not None:
                seat.asked = False
        self._requests.clear()
        self._jobs.clear()
        zygote.end()

    def _adopt_child(self, message: bytes) -> None:
        _, zygote_pid = wire.CHILD_HEAD.unpack(message)
        cgroup, seat = self._requests.popleft()
        if seat is None:
            self.requested -= 1
        try:
            control, out, err, pidfd = self._arriving
            child = Child(zygote_pid, launch.host_pid(pidfd), socket.socket(fileno=control), out, err, pidfd)
        except (OSError, ValueError, SandboxUnavailableError):
            # This process has no descriptor left to take it with. Without our ends the child ends by itself; its cgroup
            # is not used again, since nobody tells us when it is empty.
            for fd in self._arriving:
                with contextlib.suppress(OSError):
                    os.close(fd)
            if seat is not None:
                seat.asked = False
            self._failed()
            return
        child.cgroup = cgroup
        child.nursery = self
        self.children[zygote_pid] = child
        if seat is None:
            self._raw.add(child)
            self._watch(control, lambda: self._child_ready(child))
        else:
            self._watch(control, lambda: self._ready_for(seat, child))

    def _child_ready(self, child: Child) -> None:
        try:
            message = child.control.recv(8)
        except BlockingIOError:  # the event was that of an earlier descriptor of this number
            return
        except OSError:
            message = b""
        self._unwatch(child.control.fileno())
        self._raw.discard(child)
        if message == wire.READY:
            self._stillborn = 0
            child.mark()
            self.idle.append(child)
        else:
            child.kill()
            self._failed()

    def _ready_for(self, seat: Seat, child: Child) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(child.control, 8, 2)
        except BlockingIOError:  # as above
            return
        except OSError:
            message, fds = b"", []
        self._unwatch(child.control.fileno())
        if message != wire.READY or bool(fds) is not seat.forkable:
            for fd in fds:
                os.close(fd)
            child.kill()
            seat.asked = False
            self._failed()
            return
        self._stillborn = 0
        child.mark()
        if fds:
            child.family = Family(fds[0], fds[1] if len(fds) > 1 else -1, child)
            self._families.add(child.family)
        self._on_seat(seat, child)
