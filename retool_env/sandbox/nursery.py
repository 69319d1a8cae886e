"""A nursery: one zygote and the children it has made, those that wait for a program and those that run one.

Its state belongs to the host's thread, apart from ``idle``, from which any thread may take a child.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import launch, wire
from retool_env.sandbox.cgroups import Cgroup
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.execution import Child

MAX_DEATHS = 3
"""Zygotes that may die one after the other without any program having ended, before waiting programs are given up."""

_MAX_STILLBORN = 20
"""Children that may die one after the other before they are ready, before their zygote is given up."""

Watch = Callable[[int, Callable[[], None]], None]
Unwatch = Callable[[int], None]


class Nursery:
    """One zygote and its children.

    Attributes:
        idle: Children that are contained and ready for a program.
        children: All children that have not been reaped, by the zygote's pid for them.
        requested: Children that were asked for and have not arrived.
        deaths: Zygotes that died in a row.
    """

    def __init__(
        self,
        tier: str,
        config: SandboxConfig,
        slots: int,
        watch: Watch,
        unwatch: Unwatch,
        on_exit: Callable[[Child, int, float], None],
        on_death: Callable[[], None],
    ):
        """Starts the zygote.

        Args:
            tier: Tier to start it in.
            config: The sandbox's configuration.
            slots: Children it may have at the same time, with those that are being reaped.
            watch: Calls a function whenever a descriptor is readable.
            unwatch: Ends that.
            on_exit: Told of each child that has been reaped: its wait status and CPU seconds.
            on_death: Told when the zygote has died, with all children still listed.

        Raises:
            SandboxUnavailableError: It cannot run here.
        """
        self._tier, self._config, self._slots = tier, config, slots
        self._watch, self._unwatch = watch, unwatch
        self._on_exit, self._on_death = on_exit, on_death
        self.idle: deque[Child] = deque()
        self.children: dict[int, Child] = {}
        self.requested = 0
        self.deaths = 0
        self._stillborn = 0
        self._warming: Child | None = None
        self._cgroups: deque[Cgroup] = deque()  # of the children that were requested, in that order
        self._arriving: tuple[int, ...] = ()
        self.zygote: launch.ZygoteProcess | None = launch.start(tier, config, slots)
        self._adopt_zygote()

    def take(self) -> Child | None:
        """Takes an idle child, or None. For any thread."""
        try:
            return self.idle.popleft()
        except IndexError:
            return None

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
            self.idle.appendleft(child)

    def supply(self, wanted: int) -> None:
        """Asks for as many children as are missing from ``wanted`` idle ones."""
        if self.zygote is None:
            return
        missing = wanted - len(self.idle) - self.requested - (self._warming is not None)
        room = self._slots - len(self.children) - self.requested
        for _ in range(min(missing, room)):
            if not self._request(self.zygote):
                return

    def _request(self, zygote: launch.ZygoteProcess) -> bool:
        if zygote.memory is None:
            try:
                zygote.control.send(wire.SPAWN)
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
                socket.send_fds(zygote.control, [wire.SPAWN], [procs])
            except OSError:
                cgroup.release()
                return False
            finally:
                os.close(procs)
            self._cgroups.append(cgroup)
        self.requested += 1
        return True

    def _failed(self) -> None:
        """Counts a child that came to nothing; too many in a row, and the zygote is given up."""
        self._stillborn += 1
        if self._stillborn > _MAX_STILLBORN:
            self._died()

    def restart(self) -> bool:
        """Starts another zygote in place of a dead one; False if too many have died."""
        while self.deaths <= MAX_DEATHS:
            try:
                self.zygote = launch.start(self._tier, self._config, self._slots)
            except (SandboxUnavailableError, OSError):
                self.deaths += 1
            else:
                self._adopt_zygote()
                return True
        self.deaths = MAX_DEATHS  # one more try when there is something to run again
        return False

    def discard(self, child: Child) -> None:
        """Forgets a child that has ended, and closes our ends of its descriptors."""
        self.children.pop(child.zygote_pid, None)
        with contextlib.suppress(ValueError):
            self.idle.remove(child)
        if self._warming is child:
            self._warming = None
        if child.cgroup is not None:
            child.cgroup.release()
        if child.borrowed:  # its borrower closes it
            child.lost = True
            return
        for fd in (child.control.fileno(), child.out, child.err):
            self._unwatch(fd)
        child.close()

    def end(self) -> None:
        """Ends the zygote with all its children, and waits for it."""
        for child in list(self.children.values()):
            self.discard(child)
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
        if self.zygote is not None:
            self.zygote.abandon()
            if self.zygote.process is not None:
                self.zygote.process.returncode = 0  # not ours to wait for

    def _adopt_zygote(self) -> None:
        assert self.zygote is not None
        self.zygote.control.setblocking(False)
        self._watch(self.zygote.control.fileno(), self._hear)
        self._watch(self.zygote.pidfd, self._died)

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
            if not message:
                self._died()
            elif message[:1] == wire.CHILD:
                self._adopt_child(message)
            elif message[:1] == wire.EXITED:
                _, pid, status, cpu_s = wire.EXITED_HEAD.unpack(message)
                child = self.children.get(pid)
                if child is not None:
                    self._on_exit(child, status, cpu_s)
            self._arriving = ()

    def _died(self) -> None:
        if self.zygote is None:
            return
        self.deaths += 1
        zygote = self._forget_zygote()
        self.idle.clear()  # before anyone hears of it and asks for the next one
        self._on_death()
        for child in list(self.children.values()):
            child.kill()
            self.discard(child)
        self.requested = 0
        self._stillborn = 0
        self._cgroups.clear()
        zygote.end()

    def _adopt_child(self, message: bytes) -> None:
        _, zygote_pid = wire.CHILD_HEAD.unpack(message)
        self.requested -= 1
        cgroup = self._cgroups.popleft() if self._cgroups else None
        try:
            control, out, err, pidfd = self._arriving
            child = Child(zygote_pid, launch.host_pid(pidfd), socket.socket(fileno=control), out, err, pidfd)
        except (OSError, ValueError, SandboxUnavailableError):
            # This process has no descriptor left to take it with. Without our ends the child ends by itself; its cgroup
            # is not used again, since nobody tells us when it is empty.
            for fd in self._arriving:
                with contextlib.suppress(OSError):
                    os.close(fd)
            self._failed()
            return
        child.cgroup = cgroup
        self.children[zygote_pid] = child
        self._watch(control, lambda: self._child_ready(child))

    def _child_ready(self, child: Child) -> None:
        self._unwatch(child.control.fileno())
        try:
            message = child.control.recv(8)
        except OSError:
            message = b""
        if message == wire.READY:
            self._stillborn = 0
            self.idle.append(child)
        else:
            child.kill()
            self._failed()
