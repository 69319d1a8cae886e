"""Branching a live, contained process from outside: the mechanics under ``Session.fork``.

The filter of a forkable child denies every fork. Two calls, told apart by their registers alone, wait for the host's
word instead (seccomp user notification, which needs no privilege):

    clone(CLONE_PARENT | SIGCHLD)       in the trunk: granted once for each fork that the host has asked for
    prctl(PR_SET_PDEATHSIG, SIGKILL)    in the branch: the host puts fresh descriptors in the place of all that the
                                        branch has inherited, looks that none is left over, and lets the call go on

Nothing rests on what the code does in between, it may be hostile. A process that waits for the host's word, has one
thread and has every signal that it catches blocked cannot do anything until it has its answer, so what the kernel says
about it then (``Stillness``) holds. No argument is a pointer, so nothing can be changed behind the host's back, and the
answer "go on" is safe. After the second call the branch shares no descriptor with anyone (shared mappings are denied
throughout), and the kernel kills it when the zygote ends. Both calls inherit the caller's process group and session,
which the filter does not let it leave: by these a process that did not come forward is found.

Needs Linux 5.9; without CAP_SYS_PTRACE 6.2, which tells everybody the number of a process's descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLONE_FLAGS = 0x00008000 | signal.SIGCHLD
"""CLONE_PARENT | SIGCHLD: the branch becomes a child of the trunk's parent, the zygote, which reaps it."""

PR_SET_PDEATHSIG = 1
STANDARD_FDS = 4
"""Descriptors of a child between calls: standard input, output and error, and the control socket."""

# struct seccomp_notif: id, pid, flags, then struct seccomp_data: number, architecture, instruction pointer, arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")  # id, return value, error, flags
_ADD_FD = struct.Struct("=QIIII")  # id, flags, source descriptor, descriptor there, its flags
_CONTINUE = 1
_SETFD = 1
_WRITE, _READ = 1, 2
_KILL_WAIT_MS = 1000
_PATIENCE = 20
_AT_ONCE = 64


def _request(direction: int, number: int, size: int) -> int:
    """Builds an ioctl number of seccomp's listener, as x86_64 and aarch64 encode them."""
    return direction << 30 | size << 16 | ord("!") << 8 | number


_RECV = _request(_READ | _WRITE, 0, _NOTIFICATION.size)
_SEND = _request(_READ | _WRITE, 1, _RESPONSE.size)
_ID_VALID = _request(_WRITE, 2, 8)
_ADDFD = _request(_WRITE, 3, _ADD_FD.size)


@dataclass(frozen=True, slots=True)
class Notification:
    """A call that waits for our answer.

    Attributes:
        id: The kernel's name for it.
        pid: The calling thread, in our pid namespace.
        is_clone: Whether it asks for the clone; else it is the branch's first call.
    """

    id: int
    pid: int
    is_clone: bool


class Listener:
    """The listener of one family's filter: a trunk, its branches and theirs.

    It is readable while a call waits. ``receive`` only then: it blocks otherwise. Between forks nobody should poll it,
    so that a program that makes such calls on its own waits until its deadline, at no cost to us.
    """

    def __init__(self, fd: int):
        self._fd = fd

    def fileno(self) -> int:
        """Returns the descriptor, to be polled."""
        return self._fd

    def waits(self) -> bool:
        """Whether a call waits for an answer."""
        return bool(self._events() & select.POLLIN)

    def is_over(self) -> bool:
        """Whether no process of the family is left; the kernel's own word."""
        return bool(self._events() & select.POLLHUP)

    def receive(self) -> Notification | None:
        """Takes the next call that waits; None if its process is gone by now."""
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._fd, _RECV, buffer)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        ident, pid, _, _, _, _, first, *_ = _NOTIFICATION.unpack(buffer)
        return Notification(ident, pid, is_clone=first == CLONE_FLAGS)

    def is_valid(self, call: Notification) -> bool:
        """Whether the call still waits: what was read about its pid before this was about its process."""
        try:
            fcntl.ioctl(self._fd, _ID_VALID, struct.pack("=Q", call.id))
        except OSError:
            return False
        return True

    def place(self, call: Notification, fd: int, target: int) -> None:
        """Puts a copy of our descriptor ``fd`` in the place of the caller's descriptor ``target``.

        Raises:
            OSError: The call waits no more.
        """
        fcntl.ioctl(self._fd, _ADDFD, _ADD_FD.pack(call.id, _SETFD, fd, target, os.O_CLOEXEC))

    def let_go_on(self, call: Notification) -> bool:
        """Has the kernel carry the call out; False if it waits no more."""
        return self._send(_RESPONSE.pack(call.id, 0, 0, _CONTINUE))

    def refuse(self, call: Notification, error: int = errno.EPERM) -> bool:
        """Has the call fail; False if it waits no more."""
        return self._send(_RESPONSE.pack(call.id, 0, -error, 0))

    def close(self) -> None:
        """Closes it; calls that wait, and later ones, fail with ENOSYS."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _send(self, response: bytes) -> bool:
        try:
            fcntl.ioctl(self._fd, _SEND, response)
        except OSError:
            return False
        return True

    def _events(self) -> int:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return sum(event for _, event in poll.poll(0))


@dataclass(frozen=True, slots=True)
class Stillness:
    """What the kernel says about a process that waits for our answer.

    Attributes:
        parent: Its parent's pid, in our pid namespace.
        session: Its session id, in our pid namespace: the pid of the family's first trunk.
        inner_pid: Its pid in its own pid namespace.
        threads: Its threads.
        interruptible: Whether a signal could have it run a handler now, before or in place of the call.
        descriptors: Its open descriptors.
    """

    parent: int
    session: int
    inner_pid: int
    threads: int
    interruptible: bool
    descriptors: int

    @property
    def holds(self) -> bool:
        """Whether it can do nothing until it is answered."""
        return self.threads == 1 and not self.interruptible


def look(pid: int) -> Stillness:
    """Looks at a process.

    Raises:
        OSError: It is gone, or may not be looked at here.
    """
    with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
        text = file.read(8192)
    # A process may call itself what it likes, but the kernel escapes a line break in its name.
    fields = dict(line.split(b":", 1) for line in text.splitlines())
    blocked, caught = int(fields[b"SigBlk"], 16), int(fields[b"SigCgt"], 16)
    return Stillness(
        parent=int(fields[b"PPid"]),
        session=int(fields[b"NSsid"].split()[0]),
        inner_pid=int(fields[b"NSpid"].split()[-1]),
        threads=int(fields[b"Threads"]),
        interruptible=bool(caught & ~blocked),
        descriptors=_count_descriptors(pid),
    )


def _count_descriptors(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    try:
        return len(os.listdir(folder))
    except PermissionError:  # the child is not dumpable, and we are not root; since Linux 6.2 the size tells
        return os.stat(folder).st_size


def obstacle() -> str:
    """Says why no session can be forked on this machine, or ''."""
    release = os.uname().release.split("-")[0].split(".")
    if (int(release[0]), int(release[1])) < (5, 9):
        return "forking a session needs Linux 5.9"
    if os.geteuid() != 0 and os.stat("/proc/self/fd").st_size == 0:
        return "forking a session without root needs Linux 6.2"
    return ""


@dataclass(slots=True)
class Branch:
    """A new branch, with the host's ends of its own descriptors.

    Attributes:
        pid: Its pid, in our pid namespace.
        inner_pid: Its pid as the zygote knows it.
        pidfd: A pidfd of it.
        control: Our end of its control socket.
        out: Our end of its standard output.
        err: Our end of its standard error.
    """

    pid: int
    inner_pid: int
    pidfd: int
    control: socket.socket
    out: int
    err: int

    def close(self) -> None:
        """Closes our descriptors."""
        self.control.close()
        for fd in (self.out, self.err, self.pidfd):
            os.close(fd)


class Fork:
    """One fork of a trunk, from the host's request until there is a branch or none can come any more.

    The host makes it, sends the trunk its request, calls ``hear`` whenever the listener is readable, ``trunk_says_no``
    when the trunk reports an error, and ``give_up`` when the deadline has passed or the trunk has died. One fork of a
    family at a time: what is new in the family is then this fork's.

    Attributes:
        branch: The branch, once it has its own descriptors; the caller's to close.
        failure: Why there is none and none will come, or ''.
        granted: Whether the trunk was allowed its one clone.
    """

    def __init__(
        self, listener: Listener, trunk: int, trunk_pidfd: int, family: int, zygote: int, known: Mapping[int, int]
    ):
        """Begins a fork.

        Args:
            listener: The family's listener.
            trunk: Pid of the process to be forked.
            trunk_pidfd: A pidfd of it; stays the caller's.
            family: Session id of the family: the pid of its first trunk.
            zygote: Pid of the zygote.
            known: Pidfds of the family's processes by their pids. All pids are those of our pid namespace.

        Raises:
            OSError: There are no descriptors left for a branch.
        """
        self._listener, self._trunk, self._trunk_pidfd = listener, trunk, trunk_pidfd
        self._family, self._zygote, self._known = family, zygote, known
        self.branch: Branch | None = None
        self.failure = ""
        self.granted = False
        self._reason = ""
        self._turned_away = 0
        self._fresh = _Fresh()

    @property
    def is_done(self) -> bool:
        """Whether there is a branch or none can come."""
        return self.branch is not None or self.failure != ""

    def hear(self) -> None:
        """Answers the calls that wait, and leaves unanswered what was not asked for: its caller waits for ever.

        Such is the call of another member or thread, and a second one of the trunk. An answer would let it call again,
        as fast as we answer.
        """
        for _ in range(_AT_ONCE):
            if self.is_done or not self._listener.waits():
                return
            call = self._listener.receive()
            if call is None:
                continue
            if call.is_clone and call.pid == self._trunk and not self.granted:
                self._grant(call)
            elif not call.is_clone and self.granted and not self._is_known(call.pid):
                self._take_in(call)

    def abandon(self) -> None:
        """Closes its descriptors in a forked process, to which the branch does not belong."""
        self._fresh.close()

    def give_up(self, reason: str) -> None:
        """Ends the fork without a branch, and kills the trunk: it might still make one."""
        if self.is_done:
            return
        self._fail(reason)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._trunk_pidfd, signal.SIGKILL)
        _has_ended(self._trunk_pidfd, _KILL_WAIT_MS)
        self._kill_strangers()

    def trunk_says_no(self, error: int) -> None:
        """Ends the fork after the trunk's own word that its clone has failed: it is back from it, whatever it says."""
        if self.is_done:
            return
        if not self.granted:
            self._fail(self._reason or os.strerror(error))
        elif self._kill_strangers():
            self.give_up("the session's process lied about its branch")
        else:
            self._fail(f"no process could be made for the branch: {os.strerror(error)}")

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._fresh.close()

    def _is_known(self, pid: int) -> bool:
        pidfd = self._known.get(pid)
        return pidfd is not None and not _has_ended(pidfd)

    def _grant(self, call: Notification) -> None:
        try:
            still = look(call.pid)
        except (OSError, KeyError, ValueError) as error:
            self._refuse(call, f"its process cannot be looked at: {error}")
            return
        if still.threads > 1:
            self._turned_away += 1
            self._reason = f"{still.threads - 1} threads of its program are running; join them first"
            if self._turned_away < _PATIENCE:
                self._listener.refuse(call, errno.EBUSY)  # it asks again: a thread that was joined may still be ending
            else:
                self._refuse(call, self._reason)
        elif still.interruptible:
            self._refuse(call, "its process did not block signals")
        elif still.descriptors != STANDARD_FDS:
            count = still.descriptors - STANDARD_FDS
            self._refuse(call, f"its program has {count} open files, pipes or sockets; close them first")
        else:
            self.granted = self._listener.let_go_on(call)

    def _refuse(self, call: Notification, failure: str) -> None:
        if self._listener.refuse(call):  # else it was interrupted and may ask again
            self._fail(failure)

    def _take_in(self, call: Notification) -> None:
        """Gives the branch descriptors of its own and lets it live, or kills it."""
        try:
            pidfd = os.pidfd_open(call.pid)
        except OSError:  # a thread, or gone
            return
        branch: Branch | None = None
        reason = "the branch ended at once"
        try:
            if not self._listener.is_valid(call):  # else the pidfd is the caller's
                os.close(pidfd)
                return
            branch = self._equip(call, pidfd)
            if branch is None:
                reason = "the branch held on to what it shared with its trunk"
            elif self._listener.let_go_on(call):
                self.branch = branch
                self._fresh.close()
                return
        except (OSError, KeyError, ValueError) as error:
            reason = f"the branch could not be set up: {error}"
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if branch is None:
            os.close(pidfd)
        else:
            branch.close()
        self._fail(reason)

    def _equip(self, call: Notification, pidfd: int) -> Branch | None:
        """Puts fresh descriptors into the branch; None if that does not make it a stranger to all."""
        for target, fd in enumerate(self._fresh.theirs):
            self._listener.place(call, fd, target)
        still = look(call.pid)
        related = still.session == self._family and still.parent == self._zygote
        if not (still.holds and related and still.descriptors == STANDARD_FDS):
            return None
        control, out, err = self._fresh.take()
        return Branch(call.pid, still.inner_pid, pidfd, socket.socket(fileno=control), out, err)

    def _kill_strangers(self) -> int:
        """Kills the zygote's children of this family that nobody knows; returns how many there were.

        Only for a moment at which no clone can be under way.
        """
        orphaned = _parent_and_session(self._zygote) is None
        count = 0
        for pid in _children(0 if orphaned else self._zygote):
            if self._is_known(pid) or not self._is_kin(pid, orphaned):
                continue
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            with contextlib.suppress(ProcessLookupError):
                if self._is_kin(pid, orphaned):  # so the pidfd is that child's
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    count += 1
            os.close(pidfd)
        return count

    def _is_kin(self, pid: int, orphaned: bool) -> bool:
        """Whether a process is one of the family; once the zygote has died, its children have another parent."""
        found = _parent_and_session(pid)
        if found is None or found[1] != self._family:
            return False
        return _is_filtered(pid) if orphaned else found[0] == self._zygote


class _Fresh:
    """Descriptors for a branch: its standard files and control socket, and our ends of them.

    Attributes:
        theirs: What goes in the place of its descriptors 0 to 3.
    """

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self._ours: list[int] = []
        try:
            self.theirs.append(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
            for _ in range(2):
                read, write = os.pipe()
                self._ours.append(read)
                self.theirs.append(write)
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ours.insert(0, here.detach())
            self.theirs.append(there.detach())
        except OSError:
            self.close()
            raise

    def take(self) -> list[int]:
        """Hands over our ends: control socket, output, error."""
        ours, self._ours = self._ours, []
        return ours

    def close(self) -> None:
        """Closes what has not been handed over."""
        fds = self.theirs + self._ours
        self.theirs, self._ours = [], []
        for fd in fds:
            os.close(fd)


def _has_ended(pidfd: int, wait_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_ms))


def _is_filtered(pid: int) -> bool:
    """Whether a process runs under a seccomp filter, as all of a family do."""
    try:
        return b"\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    """Lists the children of a process; of 0: all processes."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_and_session(pid: int) -> tuple[int, int] | None:
    """Returns the two of a process that lives; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[3]))
