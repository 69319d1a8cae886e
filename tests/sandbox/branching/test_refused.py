"""What a session may not have when it is forked, and what its processes are denied."""

from __future__ import annotations

import pytest

from retool_env.sandbox import branching

pytestmark = [
    pytest.mark.landlock,
    pytest.mark.skipif(branching.obstacle() != "", reason=branching.obstacle()),
]


MAKE_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()"


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
