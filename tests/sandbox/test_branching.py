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
from pathlib import Path

import pytest

from retool_env.sandbox import branching, launch, seccomp
from tests.sandbox.conftest import children_of, is_gone, wait_until

pytestmark = [
    pytest.mark.landlock,
    pytest.mark.skipif(branching.obstacle() != "", reason=branching.obstacle()),
]

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

MAKE_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()"


@dataclass
class Member:
    """A trunk or a branch, as the host sees it."""

    family: Family
    pid: int
    pidfd: int
    link: socket.socket
    out: int
    err: int

    def run(self, code: str, limit_s: float = 20.0) -> str:
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

    def fork(self, request: bytes = b"fork", limit_s: float = 10.0) -> branching.Fork:
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
        zygote.wait(10)


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


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def living_children(pid: int) -> list[int]:
    return sorted(child for child in children_of(pid) if not is_gone(child))


# What a branch is.


def test_a_branch_has_the_state_and_goes_its_own_way(trunk):
    trunk.run("import random\nrandom.seed(3)\nstate = {'n': 1}")
    branch = trunk.branch()
    assert branch.run("state['n'] += 10\nanswer = state, random.random()") == "({'n': 11}, 0.23796462709189137)"
    assert trunk.run("answer = state, random.random()") == "({'n': 1}, 0.23796462709189137)"
    pids = {int(member.run("answer = os.getpid()")) for member in (trunk, branch)}
    assert pids == {trunk.pid, branch.pid}


def test_the_zygote_is_the_parent_of_a_branch(trunk):
    assert parent_of(trunk.branch().pid) == parent_of(trunk.pid) == trunk.family.zygote.pid


def test_each_writes_to_its_own_output(trunk):
    trunk.run("os.write(1, b'before')")
    assert trunk.printed() == b"before"
    branch = trunk.branch()
    branch.run("os.write(1, b'branch')")
    trunk.run("os.write(1, b'trunk')")
    assert (branch.printed(), trunk.printed()) == (b"branch", b"trunk")


def test_a_branch_outlives_its_trunk(trunk):
    branch = trunk.branch()
    signal.pidfd_send_signal(trunk.pidfd, signal.SIGKILL)
    wait_until(lambda: is_gone(trunk.pid), "the trunk has gone")
    assert branch.run("answer = 1 + 1") == "2"
    assert branch.branch().run("answer = 2 + 2") == "4"


def test_a_tree_of_branches(trunk):
    trunk.run("path = []")
    level = [trunk]
    for depth in range(4):
        level += [member.branch() for member in list(level)]
        for number, member in enumerate(level):
            member.run(f"path.append(({depth}, {number}))")
    assert len(level) == 16
    paths = {member.run("answer = path") for member in level}
    assert len(paths) == 16


def test_thirty_branches_of_one_trunk(trunk):
    branches = [trunk.branch() for _ in range(30)]
    for number, branch in enumerate(branches):
        branch.run(f"mine = {number}")
    assert [branch.run("answer = mine") for branch in branches] == [str(number) for number in range(30)]


def test_threads_and_numpy_work_on_both_sides(make_family):
    trunk = make_family("numpy")
    code = """
import numpy, threading
found = []
threads = [threading.Thread(target=lambda: found.append(float(numpy.linalg.det(numpy.eye(3))))) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
answer = found
"""
    assert trunk.run(code) == str([1.0] * 4)
    branch = trunk.branch()
    assert branch.run(code) == trunk.run(code) == str([1.0] * 4)


def test_asyncio_works_and_a_closed_loop_does_not_hinder_a_fork(trunk):
    code = "import asyncio\nanswer = asyncio.run(asyncio.sleep(0, 'slept'))"
    assert trunk.run(code) == "'slept'"
    assert trunk.branch().run(code) == "'slept'"


def test_the_main_thread_of_a_branch_knows_its_id(trunk):
    """Glibc keeps it for its recursive locks, and the bare system call does not renew it."""
    code = """
lock, kind = ctypes.create_string_buffer(64), ctypes.create_string_buffer(16)
kernel.libc.pthread_mutexattr_settype(kind, 1)
kernel.libc.pthread_mutex_init(lock, kind)
kernel.libc.pthread_mutex_lock(lock)
answer = int.from_bytes(lock.raw[8:12], "little") - os.getpid()
"""
    assert trunk.run(code) == trunk.branch().run(code) == "0"


# What is refused.


@pytest.mark.parametrize(
    ("code", "reason"),
    [(MAKE_THREAD, "1 threads"), ("held = open('/dev/null')", "1 open files"), ("held = os.pipe()", "2 open files")],
)
def test_what_cannot_be_branched_is_refused_with_the_reason(trunk, code, reason):
    trunk.run(code)
    fork = trunk.fork()
    assert fork.branch is None
    assert reason in fork.failure
    assert trunk.link.recv(100).startswith(b"no")
    assert trunk.run("answer = 1") == "1"


def test_after_a_refusal_a_fork_can_succeed(trunk):
    trunk.run("held = open('/dev/null')")
    assert trunk.fork().branch is None
    trunk.link.recv(100)
    trunk.run("held.close()")
    assert trunk.branch().run("answer = 1") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "os.fork()",
        "os.setsid()",
        "os.setpgid(0, 0)",
        "os.kill(os.getpid(), 0)",
        "os.kill(os.getppid(), 0)",
        "os.killpg(0, 0)",
        "import mmap; mmap.mmap(-1, 4096)",
        "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
        "import fcntl; fcntl.flock(os.open('/dev/null', os.O_RDONLY), fcntl.LOCK_EX)",
        "import fcntl; fcntl.lockf(os.open('/dev/null', os.O_RDWR), fcntl.LOCK_EX)",
        "os.pidfd_open(os.getpid())",
        "os.memfd_create('x')",
        "kernel._prctl(1, 0)",
        "kernel._prctl(1, 15)",
        "kernel.set_no_new_privs()",
    ],
)
def test_ties_between_trunk_and_branch_are_denied(trunk, code):
    branch = trunk.branch()
    for member in (trunk, branch):
        assert member.run(code).startswith("PermissionError")


def test_a_futex_on_a_shared_page_wakes_nobody(trunk):
    """Futexes on a page of a file are the same for everybody who has it mapped, also privately."""
    code = """
kernel.libc.syscall.argtypes = None
number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
word = ctypes.cast(kernel.libc.getenv, ctypes.c_void_p).value & ~3
answer = kernel.libc.syscall(number, ctypes.c_void_p(word), 1, 1, None, None, 0), ctypes.get_errno()
"""
    assert trunk.run(code) == "(-1, 1)"


# What hostile code does with its one clone.


def test_a_clone_that_nobody_asked_for_is_never_made(trunk):
    sibling = trunk.branch()
    sibling.link.send(b"answer = TAKE()")
    wait_until(trunk.family.listener.waits, "the clone waits")
    branch = trunk.branch()
    assert branch.run("answer = 1") == "1"
    assert not trunk.family.listener.waits()
    assert living_children(trunk.family.zygote.pid) == sorted(member.pid for member in trunk.family.members)
    sibling.link.setblocking(False)
    with pytest.raises(BlockingIOError):
        sibling.link.recv(100)


def test_a_second_clone_is_never_made(trunk):
    fork = trunk.fork(b"if TAKE(): TAKE()\nelse: kernel.die_with_parent()")
    assert fork.branch is not None
    trunk.link.setblocking(False)
    with pytest.raises(BlockingIOError):
        trunk.link.recv(100)
    assert living_children(trunk.family.zygote.pid) == sorted([trunk.pid, fork.branch.pid])


def test_a_branch_that_does_not_come_forward_is_killed_with_its_trunk(trunk):
    fork = trunk.fork(b"if not TAKE():\n    while True: pass\nanswer = 1", limit_s=0.3)
    assert (fork.branch, fork.failure) == (None, "too late")
    wait_until(trunk.family.listener.is_over, "nobody is left")


def test_a_trunk_that_lies_about_its_clone_is_killed(trunk):
    code = b"if not TAKE():\n    while True: pass\nlink.send(b'no11')\nos._exit(0)"
    fork = trunk.fork(code)
    assert fork.branch is None
    wait_until(trunk.family.listener.is_over, "nobody is left")


def test_a_trunk_without_room_for_a_process_lives_on(trunk):
    trunk.run("import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))")
    fork = trunk.fork()
    if os.geteuid() == 0:
        assert "no process could be made" in fork.failure
        assert trunk.link.recv(100) == b"no11"
        assert trunk.run("answer = 1") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "os.dup(3)",
        "os.dup2(3, 9); os.close(0)",
        "os.pipe()",
        "import threading, time; threading.Thread(target=time.sleep, args=(30,)).start()",
        "kernel._syscall({'x86_64': 14, 'aarch64': 135}[os.uname().machine], 2, b'\\0' * 8, None, ctypes.c_size_t(8))",
    ],
)
def test_a_branch_that_keeps_something_is_killed(trunk, code):
    body = f"import signal; signal.signal(signal.SIGUSR1, print)\nif not TAKE():\n    {code}; kernel.die_with_parent()"
    fork = trunk.fork(body.encode() + b"\n    while True: pass")
    assert fork.branch is None
    assert "held on" in fork.failure
    signal.pidfd_send_signal(trunk.pidfd, signal.SIGKILL)
    wait_until(trunk.family.listener.is_over, "nobody is left")


def test_nobody_comes_forward_in_place_of_the_branch(trunk):
    """A sibling and a thread of it make the branch's call while the trunk forks."""
    sibling = trunk.branch()
    sibling.link.send(b"""
import threading
threading.Thread(target=kernel.die_with_parent).start()
kernel.die_with_parent()
""")
    wait_until(trunk.family.listener.waits, "they wait")
    branch = trunk.branch()
    assert branch.pid not in (sibling.pid, trunk.pid)
    assert branch.run("answer = 1") == "1"
    sibling.link.setblocking(False)
    with pytest.raises(BlockingIOError):
        sibling.link.recv(100)


# What is left behind.


def test_all_die_with_the_zygote(trunk):
    branches = [trunk.branch(), trunk.branch()]
    branches.append(branches[0].branch())
    os.kill(trunk.family.zygote.pid, signal.SIGKILL)
    for member in (trunk, *branches):
        wait_until(lambda member=member: is_gone(member.pid), "it died with the zygote")


def test_forks_leave_no_descriptor_behind(trunk):
    def one_of_each() -> None:
        branch = trunk.branch()
        branch.family.members.remove(branch)
        signal.pidfd_send_signal(branch.pidfd, signal.SIGKILL)
        wait_until(lambda: is_gone(branch.pid), "it has gone")
        branch.link.close()
        for fd in (branch.out, branch.err, branch.pidfd):
            os.close(fd)
        fork = trunk.fork(b"if not TAKE():\n    os.dup(3); kernel.die_with_parent()\n    os._exit(0)")
        assert fork.branch is None
        trunk.link.recv(100)

    one_of_each()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        one_of_each()
    assert len(os.listdir("/proc/self/fd")) == before


def test_host_pid_of_a_branch_is_the_kernels_word(trunk):
    fork = trunk.fork()
    assert fork.branch is not None
    assert launch.host_pid(fork.branch.pidfd) == fork.branch.pid
    assert fork.branch.inner_pid == fork.branch.pid
