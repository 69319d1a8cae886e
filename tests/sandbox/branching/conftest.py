"""The mechanics of forking a session, with real processes under the real filter of a forkable child.

A small zygote of the test's own makes trunks that run whatever code they are sent, in the place of the real one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from retool_env.sandbox import branching, seccomp
from tests.sandbox.conftest import wait_until

ZYGOTE = """
import asyncio, ctypes, fcntl, mmap, os, random, resource, select, signal, socket, struct, sys, threading, time
from retool_env.sandbox import kernel

control, program = socket.socket(fileno=int(sys.argv[1])), bytes.fromhex(sys.argv[2])
clone, sigprocmask, seccomp_number, uid = map(int, sys.argv[3:7])
for name in sys.argv[7:]:
    __import__(name)
thread_id = kernel.find_own_thread_id()

def serve(link):
    names = {"kernel": kernel, "os": os, "ctypes": ctypes, "CLONE": clone, "TAKE": take, "link": link}
    while True:
        packet = link.recv(65536)
        if packet == b"fork":
            try:
                pid = kernel.branch(clone, sigprocmask, thread_id)
            except OSError as error:
                link.send(b"no%d" % error.errno)
            else:
                link.send(b"forked" if pid else b"ready")
        elif packet:
            try:
                exec(packet, names)
                link.send(repr(names.pop("answer", None)).encode())
            except Exception as error:
                link.send(f"{type(error).__name__}: {error}".encode())
        else:
            os._exit(0)

def take():  # a clone without anything after it, as hostile code might do it
    kernel._syscall(sigprocmask, 2, b"\\xff" * 8, None, ctypes.c_size_t(8))
    none = ctypes.c_ulong(0)
    return kernel._syscall(clone, ctypes.c_ulong(0x8011), none, none, none, none)

def become_trunk(link, out, err):
    null = os.open("/dev/null", os.O_RDWR)
    high = [os.dup(fd) for fd in (null, out, err, link)]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=False)
    os.closerange(4, 4096)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    if uid:
        os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)
    kernel.set_caps()
    kernel.die_with_parent()
    kernel.set_not_dumpable()
    kernel.set_no_new_privs()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=3)
    listener = kernel.load_seccomp_listening(program, seccomp_number)
    socket.send_fds(link, [b"ready"], [listener])
    os.close(listener)
    serve(link)

poll = select.poll()
poll.register(control, select.POLLIN)
while True:
    for fd, _ in poll.poll(20):
        packet, fds, _, _ = socket.recv_fds(control, 64, 3)
        if not packet:
            os._exit(0)
        pid = kernel.fork()
        if pid == 0:
            become_trunk(*fds)
        for fd in fds:
            os.close(fd)
        control.send(struct.pack("=I", pid))
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
"""


@dataclass
class Member:
    """A trunk or a branch, as the host sees it."""

    family: Family
    pid: int
    pidfd: int
    link: socket.socket
    out: int
    err: int

    def run(self, code: str, limit_s: float = 60.0) -> str:
        """Runs code and returns the repr of ``answer``."""
        self.link.settimeout(limit_s)
        self.link.send(code.encode())
        return self.link.recv(65536).decode()

    def printed(self) -> bytes:
        """Returns what it has written on standard output."""
        os.set_blocking(self.out, False)
        with suppress(BlockingIOError):
            return os.read(self.out, 65536)
        return b""

    def begin_fork(self) -> branching.Fork:
        """Begins a fork without asking the member for it."""
        family = self.family
        known = {member.pid: member.pidfd for member in family.members}
        return branching.Fork(family.listener, self.pid, self.pidfd, family.session, family.zygote.pid, known)

    def fork(self, request: bytes = b"fork", limit_s: float = 60.0) -> branching.Fork:
        """Asks it for a branch and goes through with it, as the host does."""
        fork = self.begin_fork()
        self.link.send(request)
        follow(fork, self, limit_s)
        if fork.branch is not None:
            branch = fork.branch
            self.family.members.append(
                Member(self.family, branch.pid, branch.pidfd, branch.control, branch.out, branch.err)
            )
        return fork

    def branch(self) -> Member:
        """Forks it; returns the branch once both are at rest."""
        fork = self.fork()
        assert fork.branch is not None, fork.failure
        branch = self.family.members[-1]
        for member, word in ((self, b"forked"), (branch, b"ready")):
            member.link.settimeout(20)
            assert member.link.recv(100) == word
        return branch


def follow(fork: branching.Fork, member: Member, limit_s: float) -> None:
    """Answers calls until the fork is over or its time is."""
    poll = select.poll()
    listener = member.family.listener.fileno()
    poll.register(listener, select.POLLIN)
    poll.register(member.link, select.POLLIN)
    deadline = time.monotonic() + limit_s
    while not fork.is_done:
        events = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if listener in events:
            fork.hear()
        elif events:
            message = member.link.recv(100, socket.MSG_PEEK)
            if message.startswith(b"no"):
                fork.trunk_says_no(int(message[2:]))
            poll.unregister(member.link)
        else:
            fork.give_up("too late")


@dataclass
class Family:
    """A trunk with all that came from it."""

    zygote: subprocess.Popen[bytes]
    listener: branching.Listener
    session: int
    members: list[Member] = field(default_factory=list)

    def end(self) -> None:
        """Kills all members, and waits until the kernel says that nobody is left."""
        for member in self.members:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        wait_until(self.listener.is_over, "the family has died out")
        for member in self.members:
            member.link.close()
            for fd in (member.out, member.err, member.pidfd):
                os.close(fd)
        self.listener.close()


Zygotes = dict[tuple[str, ...], tuple["subprocess.Popen[bytes]", socket.socket]]


@pytest.fixture(scope="module")
def zygotes() -> Iterator[Zygotes]:
    """Zygotes by what they have imported."""
    running: Zygotes = {}
    yield running
    for zygote, control in running.values():
        control.close()
        zygote.wait(60)


def start_zygote(modules: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a zygote that imports some modules."""
    program = seccomp.compile_policy(seccomp.Policy(writable_folder=True, forkable=True)).hex()
    numbers = [str(seccomp.number_of(name)) for name in ("clone", "rt_sigprocmask", "seccomp")]
    uid = "64001" if os.geteuid() == 0 else "0"
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", ZYGOTE, str(there.fileno()), program, *numbers, uid, *modules]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    zygote = subprocess.Popen(command, pass_fds=[there.fileno()], env=environment)
    there.close()
    return zygote, here


@pytest.fixture
def make_family(zygotes: Zygotes) -> Iterator[Callable[..., Member]]:
    """Makes families with one trunk each."""
    families: list[Family] = []

    def make(*modules: str) -> Member:
        if modules not in zygotes:
            zygotes[modules] = start_zygote(modules)
        zygote, control = zygotes[modules]
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        socket.send_fds(control, [b"spawn"], [theirs.fileno(), out_write, err_write])
        theirs.close()
        os.close(out_write)
        os.close(err_write)
        (pid,) = struct.unpack("=I", control.recv(4))
        link.settimeout(30)
        message, (listener,), _, _ = socket.recv_fds(link, 64, 1)
        assert message == b"ready"
        family = Family(zygote, branching.Listener(listener), pid)
        families.append(family)
        family.members.append(Member(family, pid, os.pidfd_open(pid), link, out, err))
        return family.members[0]

    yield make
    for family in families:
        family.end()
    for modules, (zygote, control) in list(zygotes.items()):
        if zygote.poll() is not None:
            control.close()
            del zygotes[modules]


@pytest.fixture
def trunk(make_family) -> Member:
    """A fresh trunk with the standard library."""
    return make_family()
