"""What hostile code does with its one clone."""

from __future__ import annotations

import os
import signal

import pytest

from retool_env.sandbox import branching
from tests.sandbox.conftest import children_of, is_gone, wait_until

pytestmark = [
    pytest.mark.landlock,
    pytest.mark.skipif(branching.obstacle() != "", reason=branching.obstacle()),
]


def living_children(pid: int) -> list[int]:
    return sorted(child for child in children_of(pid) if not is_gone(child))


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
