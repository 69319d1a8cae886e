"""What a branch is, and what is left when it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from retool_env.sandbox import branching, launch
from tests.sandbox.conftest import is_gone, wait_until

pytestmark = [
    pytest.mark.landlock,
    pytest.mark.skipif(branching.obstacle() != "", reason=branching.obstacle()),
]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
