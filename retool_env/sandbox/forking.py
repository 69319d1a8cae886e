"""The fork of a session as the host goes through it: who is asked for what, and when it is over.

    host -> zygote   SEAL: make the trunk's folder read-only (nsjail tier, first fork of a family)
    host -> trunk    FORK; its clone and its branch's first call wait for our word: see ``branching``
    host -> zygote   ADOPT: watch over the branch, and put it in a memory cgroup of its own
    trunk -> host    FORKED, or FORK_FAILED with the error
    branch -> host   READY, on its own socket

All of it happens in the host's thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from retool_env.sandbox import wire
from retool_env.sandbox.branching import Fork, Listener
from retool_env.sandbox.contained import Child, drain, hung_up

if TYPE_CHECKING:
    from retool_env.sandbox.nursery import Nursery, Unwatch, Watch


class Family:
    """A forkable child with all that came from it. They share a filter, a folder and a user id.

    Attributes:
        listener: Where its notified calls are heard.
        folder: An O_PATH descriptor of the folder that its first trunk may write to; -1 where there is none.
        session: Session id of all of them: the pid of the first trunk, in our pid namespace.
        inner_session: The same as the zygote knows it.
        members: Those that have not been reaped.
        sealed: Whether the folder is read-only by now.
        forking: The fork that is under way.
        waiting: Forks that are due after it.
    """

    def __init__(self, listener: int, folder: int, trunk: Child):
        self.listener = Listener(listener)
        self.folder = folder
        self.session = trunk.pid
        self.inner_session = trunk.zygote_pid
        self.members: set[Child] = {trunk}
        self.sealed = folder < 0
        self.forking: Forking | None = None
        self.waiting: deque[Forking] = deque()
        self._turning = False

    def begin_next(self) -> None:
        """Begins the fork that is due, if none is under way; in a loop, since each may end at once."""
        if self._turning:
            return
        self._turning = True
        try:
            while self.forking is None and self.waiting:
                self.waiting.popleft().start()
        finally:
            self._turning = False

    def close(self) -> None:
        """Closes our descriptors."""
        self.listener.close()
        folder, self.folder = self.folder, -1
        if folder >= 0:
            os.close(folder)


class Forking:
    """One fork.

    Attributes:
        branch: The branch, once it has come forward.
        begun: When it began, on the monotonic clock; 0.0 while it waits for another fork of its family.
    """

    def __init__(
        self, trunk: Child, watch: Watch, unwatch: Unwatch, on_end: Callable[[Forking, str, bool], None]
    ) -> None:
        """Prepares it.

        Args:
            trunk: The session's child, at rest.
            watch: Calls a function whenever a descriptor is readable.
            unwatch: Ends that.
            on_end: Told once, at the end: why there is no branch (or an empty string), and whether the trunk lives on.
        """
        assert trunk.family is not None
        assert trunk.nursery is not None
        self._trunk, self._watch, self._unwatch, self._on_end = trunk, watch, unwatch, on_end
        self._family: Family = trunk.family
        self._nursery: Nursery = trunk.nursery
        self._fork: Fork | None = None
        self._answered = False  # the trunk is back from its clone
        self._adopted = self._ready = False
        self._failure = ""
        self._over = False
        self.branch: Child | None = None
        self.begun = 0.0

    def begin(self) -> None:
        """Starts, or waits for the family's other forks."""
        self._family.waiting.append(self)
        self._family.begin_next()

    def start(self) -> None:
        """Starts: no other fork of the family is under way."""
        family = self._family
        family.forking = self
        self.begun = time.monotonic()
        if family.sealed:
            self._ask()
        elif not self._nursery.seal(family.folder, self._sealed):
            self._end("the sandbox failed", trunk_lives=True)

    def abort(self, reason: str) -> None:
        """Ends it without a branch: its time is up, or the trunk has died. Kills the trunk, which might still fork."""
        if self._over:
            return
        if not self.begun:  # nothing was asked of the trunk: another of the family kept it waiting
            self._end(reason, trunk_lives=True)
            return
        if self._fork is not None:
            self._fork.give_up(reason)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._trunk.pidfd, signal.SIGKILL)
        self._end(self._failure or reason, trunk_lives=False)

    def branch_ended(self, child: Child) -> None:
        """A process of the family has ended: if it is the branch, there is none."""
        if child is self.branch and not self._over:
            self._fail("the branch ended at once")
            self._go_on()

    def abandon(self) -> None:
        """Closes what a forked owner must not keep."""
        if self._fork is not None:
            self._fork.abandon()

    def _sealed(self, error: int) -> None:
        if self._over:
            return
        if error == errno.EBUSY:
            self._end("files are open for writing in its folder: close them first", trunk_lives=True)
        elif error:
            self._end(f"its folder could not be made read-only: {os.strerror(error)}", trunk_lives=True)
        else:
            self._family.sealed = True
            self._ask()

    def _ask(self) -> None:
        trunk, family = self._trunk, self._family
        zygote = self._nursery.zygote
        if zygote is None:
            self.abort("the sandbox failed")
            return
        known = {member.pid: member.pidfd for member in family.members}
        try:
            self._fork = Fork(family.listener, trunk.pid, trunk.pidfd, family.session, zygote.pid, known)
        except OSError as error:
            self._end(f"there are no descriptors for a branch: {error}", trunk_lives=True)
            return
        try:
            drain(trunk.control)
            trunk.control.send(wire.FORK)
        except OSError:
            self.abort("its process does not answer")
            return
        self._watch(family.listener.fileno(), self._hear_listener)
        self._watch(trunk.control.fileno(), self._hear_trunk)
        trunk.thaw()

    def _hear_listener(self) -> None:
        assert self._fork is not None
        self._fork.hear()
        self._go_on()

    def _hear_trunk(self) -> None:
        assert self._fork is not None
        message = _receive(self._trunk.control)
        if message is None:
            return
        self._unwatch(self._trunk.control.fileno())
        if message == wire.FORKED:
            self._answered = True
        elif message[:1] == wire.FORK_FAILED and len(message) == wire.FORK_FAILED_HEAD.size:
            self._answered = True
            self._fork.trunk_says_no(wire.FORK_FAILED_HEAD.unpack(message)[1] & 0xFFF)
        else:
            self.abort("its process does not answer")
            return
        self._go_on()

    def _hear_branch(self) -> None:
        assert self.branch is not None
        message = _receive(self.branch.control)
        if message is None:
            return
        self._unwatch(self.branch.control.fileno())
        self._ready = message == wire.READY
        if not self._ready:
            self._fail("the branch does not answer")
        self._go_on()

    def _taken(self, error: int) -> None:
        """The zygote watches over the branch, or could not."""
        if error:
            self._forget_branch()
        if self._over:
            return
        self._adopted = not error
        if error:
            self._fail(f"the branch could not be taken in: {os.strerror(error)}")
        self._go_on()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        if self.branch is not None:
            self.branch.kill()

    def _forget_branch(self) -> None:
        """Lets go of a branch that the zygote does not watch over: nobody will tell of its end."""
        branch = self.branch
        assert branch is not None
        branch.kill()
        if self._nursery.children.get(branch.zygote_pid) is branch:
            self._nursery.discard(branch)

    def _go_on(self) -> None:
        fork = self._fork
        if self._over or fork is None or not fork.is_done:
            return
        if fork.failure:
            self._failure = self._failure or fork.failure
        elif self.branch is None and not self._failure:
            self._unwatch(self._family.listener.fileno())
            self._take_in(fork)
        if self._answered and (self._failure or (self._ready and self._adopted)):
            self._end(self._failure, trunk_lives=True)

    def _take_in(self, fork: Fork) -> None:
        made = fork.branch
        assert made is not None
        child = Child(made.inner_pid, made.pid, made.control, made.out, made.err, made.pidfd)
        child.family, child.nursery = self._family, self._nursery
        self._family.members.add(child)
        self._nursery.children[child.zygote_pid] = child
        self.branch = child
        self._watch(child.control.fileno(), self._hear_branch)
        if not self._nursery.adopt(child, self._family.inner_session, self._taken):
            self._fail("the sandbox failed")
            self._forget_branch()

    def _end(self, failure: str, trunk_lives: bool) -> None:
        self._over = True
        family, trunk = self._family, self._trunk
        if family.listener.fileno() >= 0:
            self._unwatch(family.listener.fileno())
        self._unwatch(trunk.control.fileno())
        branch = self.branch
        if branch is not None:
            self._unwatch(branch.control.fileno())
            if failure:
                branch.kill()
            else:
                branch.freeze()
                branch.mark()
        if trunk_lives:
            trunk.empty()  # before it came forward the branch could write there, too
        if family.forking is self:
            family.forking = None
        else:
            with contextlib.suppress(ValueError):
                family.waiting.remove(self)
        self._on_end(self, failure, trunk_lives)
        family.begin_next()


def _receive(sock: socket.socket) -> bytes | None:
    """Receives a packet; None if there is none after all, an empty one at the end."""
    try:
        message = sock.recv(64)
    except BlockingIOError:
        return None
    except OSError:
        return b""
    return None if not message and not hung_up(sock) else message
