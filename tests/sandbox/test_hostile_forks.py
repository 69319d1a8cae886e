"""What a hostile program does while its session is forked, to the host, to its neighbours and to what is left of it.

``HOOK`` gives a program what its own process holds: the interpreter that serves the host, and the socket to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from retool_env.errors import ForkError, SandboxClosedError
from retool_env.sandbox import Sandbox, launch, running
from retool_env.sandbox.nursery import Nursery

from .conftest import assert_at_rest, is_gone, memory_cgroups_of, nurseries, state_of, wait_until, zygotes_of
from .test_unprivileged import run_as_nobody

pytestmark = pytest.mark.skipif(launch.fork_obstacle("landlock") != "", reason=launch.fork_obstacle("landlock"))

HOOK = """
import ctypes, os, platform, signal, sys, time
frame = sys._getframe()
while frame.f_code.co_name != 'serve':
    frame = frame.f_back
control, Interpreter, wire = frame.f_locals['control'], frame.f_globals['Interpreter'], frame.f_globals['wire']
del frame

def clone():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
    return ctypes.PyDLL(None).syscall(number, ctypes.c_ulong(0x8011), None, None, None, None)
"""

STALLS = HOOK + "Interpreter.fork = lambda self, branch: time.sleep(100)"


@contextlib.contextmanager
def fork_under_way(session) -> Iterator[None]:
    """Has a session forked, in another thread, for as long as the context lasts, which ends with a ``ForkError``."""
    with ThreadPoolExecutor(1) as pool:
        fork = pool.submit(session.fork)
        family = session._seat.child.family
        wait_until(lambda: family.forking is not None, "the fork has begun")
        yield
        with pytest.raises(ForkError):
            fork.result(60)


def family_of(number: int) -> list[int]:
    """Lists the living processes of a family, by its session id."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry)
            if os.getsid(pid) == number and not is_gone(pid):
                found.append(pid)
    return found


def is_well(sandbox: Sandbox) -> bool:
    """Whether the host's thread is the one of the beginning, and runs programs.

    The first may still get a child of a zygote that was killed, which is nobody's fault.
    """
    living = sandbox._host
    assert living is not None
    runs = any(sandbox.run("print(1)").stdout == "1\n" for _ in range(2))
    return living._thread.is_alive() and not living.broken and runs


ENDS_EARLY = {
    "after-it-said-ready": "control.send(wire.READY); os._exit(0)",
    "without-a-word": "os._exit(0)",
    "by-a-crash": "control.send(wire.READY); ctypes.string_at(0)",
}


class TestTheHostLivesOn:
    @pytest.mark.parametrize("how", ENDS_EARLY)
    def test_a_branch_that_ends_before_its_trunk_has_answered(self, tier, make_sandbox, how):
        sandbox = make_sandbox(tier=tier, preload=())
        bystander, trunk = sandbox.session(), sandbox.session(forkable=True)
        bystander.run("x = 1")
        attack = "def fork(self, branch):\n    if branch():\n        time.sleep(0.3)\n        return wire.FORKED\n"
        assert trunk.run(f"{HOOK}{attack}    {ENDS_EARLY[how]}\nInterpreter.fork = fork").status == "ok"
        with pytest.raises(ForkError, match=r"ended at once|does not answer"):
            trunk.fork()
        assert bystander.run("print(x)").stdout == "1\n"
        assert trunk.run("print(2)").stdout == "2\n"
        assert is_well(sandbox)
        for session in (bystander, trunk):
            session.close()
        assert_at_rest(sandbox)

    def test_a_zygote_that_dies_while_a_hundred_forks_wait_for_one(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=(), max_concurrency=128, standby=2, max_sessions=256)
        trunk = sandbox.session(forkable=True)
        branches = [trunk.fork() for _ in range(100)]
        trunk.run(STALLS)
        family = trunk._seat.child.family

        async def fork_all_and_kill():
            forks = [asyncio.ensure_future(session.afork()) for session in (trunk, *branches)]
            while len(family.waiting) < 100:
                await asyncio.sleep(0.005)
            before = sys.getrecursionlimit()
            sys.setrecursionlimit(350)
            try:
                os.kill(zygotes_of(sandbox)[0].pid, signal.SIGKILL)
                return await asyncio.wait_for(asyncio.gather(*forks, return_exceptions=True), 60)
            finally:
                sys.setrecursionlimit(before)

        ends = asyncio.run(fork_all_and_kill())
        assert [type(end) for end in ends] == [ForkError] * 101
        assert is_well(sandbox)


class TestNeighbours:
    def test_a_trunk_that_stalls_its_fork_costs_its_siblings_only_time(self, tier, make_sandbox, monkeypatch):
        monkeypatch.setattr(running, "_FORK_LIMIT_S", 1.0)
        sandbox = make_sandbox(tier=tier, preload=())
        trunk = sandbox.session(forkable=True)
        trunk.run("x = 1")
        hostile, sibling = trunk.fork(), trunk.fork()
        hostile.run(STALLS)
        with fork_under_way(hostile), sibling.fork() as twig:
            assert twig.run("print(x)").stdout == "1\n"
        assert not hostile.alive
        for session in (sibling, trunk):
            assert session.run("print(x)").stdout == "1\n"

    def test_memory_that_a_branch_still_uses_is_charged_to_no_other_program(self, tier, make_sandbox):
        """A cgroup is handed on when its process ends; what a branch has in common with it stays charged there."""
        sandbox = make_sandbox(tier=tier, preload=(), memory_mb=256, max_concurrency=1, standby=1)
        if zygotes_of(sandbox)[0].memory is None:
            return
        fill = "x = bytearray({} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"
        trunk = sandbox.session(forkable=True)
        assert trunk.run(fill.format(200)).status == "ok"
        with trunk.fork() as branch:
            pid = trunk._seat.child.pid
            trunk.close()
            wait_until(lambda: state_of(pid) == "", "the trunk is gone")
            statuses = [sandbox.run(fill.format(150)).status for _ in range(6)]
            assert statuses == ["ok"] * 6
            assert branch.run("print(len(x) >> 20)").stdout == "200\n"

    def test_cgroups_of_trunks_are_used_again(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=(), standby=1)

        def a_trunk_with_a_branch() -> None:
            trunk = sandbox.session(forkable=True)
            trunk.run("x = bytearray(30 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1")
            branch = trunk.fork()
            trunk.close()
            branch.close()
            assert_at_rest(sandbox)

        for _ in range(3):
            a_trunk_with_a_branch()
        before = memory_cgroups_of(sandbox)
        for _ in range(8):
            a_trunk_with_a_branch()
        assert memory_cgroups_of(sandbox) <= before + 2

    def test_descriptors_in_flight(self, start_sandbox):
        """They are counted for a user, and with one user for all, held against each one's limit on open files."""
        code = """
import os, socket
pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
fd = os.open('/dev/null', os.O_RDONLY)
for here, _ in pairs:
    here.setblocking(False)
    try:
        while True: socket.send_fds(here, [b'x'], [fd] * 20)
    except OSError: pass
"""
        with start_sandbox(tier="landlock", preload=()) as sandbox:
            bystander, hostile = sandbox.session(), sandbox.session()
            bystander.run("x = 1")
            hostile.run(code)
            with sandbox.session(forkable=True) as trunk:
                assert trunk.submit("print(1)").result(60).stdout == "1\n"
            assert bystander.run("print(x)").stdout == "1\n"
            assert sandbox.metrics().zygote_restarts == 0

    @pytest.mark.landlock
    def test_descriptors_in_flight_as_nobody(self):
        path = "tests/sandbox/test_hostile_forks.py::TestNeighbours::test_descriptors_in_flight"
        assert run_as_nobody("--require-tiers=landlock", path) == {"passed": 1}


class TestNothingIsLeft:
    def test_a_process_that_never_came_forward_dies_with_the_zygote(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=())
        trunk = sandbox.session(forkable=True)
        attack = "def fork(self, branch):\n    if clone() == 0:\n        while True: pass\n    time.sleep(100)\n"
        assert trunk.run(f"{HOOK}{attack}Interpreter.fork = fork").status == "ok"
        number = trunk._seat.child.pid
        with fork_under_way(trunk):
            wait_until(lambda: len(family_of(number)) == 2, "there is a second process")
            os.kill(zygotes_of(sandbox)[0].pid, signal.SIGKILL)
        try:
            wait_until(lambda: family_of(number) == [], "both are gone")
        finally:
            for pid in family_of(number):
                os.kill(pid, signal.SIGKILL)
        assert is_well(sandbox)

    def test_a_trunk_that_dies_as_its_branch_is_taken_in(self, tier, make_sandbox, monkeypatch):
        """The zygote reaps the trunk, and with it ends the family, before it hears of the branch."""
        sandbox = make_sandbox(tier=tier, preload=())
        trunk = sandbox.session(forkable=True)
        trunk.run("x = 1")
        pid = trunk._seat.child.pid
        adopt = Nursery.adopt

        def late(nursery, child, family, then):
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while state_of(pid) and time.monotonic() < deadline:
                select.select([], [], [], 0.002)
            return adopt(nursery, child, family, then)

        monkeypatch.setattr(Nursery, "adopt", late)
        with pytest.raises(ForkError):
            trunk.fork()
        assert_at_rest(sandbox)
        assert [nursery._families for nursery in nurseries(sandbox)] == [set()] * len(nurseries(sandbox))
        assert is_well(sandbox)

    def test_trunks_that_are_closed_at_any_moment_of_their_fork(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=())
        with ThreadPoolExecutor(1) as pool:
            for i in range(40):
                trunk = sandbox.session(forkable=True)
                trunk.run("x = 1")
                fork = pool.submit(trunk.fork)
                select.select([], [], [], i * 1e-4)
                trunk.close()
                with contextlib.suppress(ForkError, SandboxClosedError):
                    fork.result(60).close()
        assert_at_rest(sandbox)
        assert not nurseries(sandbox)[0]._families
        assert sandbox.metrics().sessions == 0
