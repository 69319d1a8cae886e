"""``Session.fork`` in the real sandbox: branches that share a past and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from retool_env.errors import ForkError, SandboxBusyError
from retool_env.sandbox import Sandbox, launch

from .conftest import assert_at_rest, is_gone, n_begun, state_of, wait_until

pytestmark = pytest.mark.skipif(launch.fork_obstacle("landlock") != "", reason=launch.fork_obstacle("landlock"))


@pytest.fixture
def trunk(tier_sandbox):
    with tier_sandbox.session(forkable=True) as session:
        yield session


class TestBranches:
    def test_share_a_past_and_go_their_own_ways(self, trunk):
        trunk.run("import sympy as sp\nx = sp.symbols('x')\nseen = [1]")
        with trunk.fork() as left, trunk.fork() as right:
            left.run("seen.append('left')")
            right.run("seen.append('right')")
            assert left.run("print(seen, x + 1)").stdout == "[1, 'left'] x + 1\n"
            assert right.run("print(seen)").stdout == "[1, 'right']\n"
            assert trunk.run("print(seen)").stdout == "[1]\n"

    def test_a_tree(self, trunk):
        trunk.run("path = ''")
        level = [trunk]
        made = []
        for _ in range(3):
            following = []
            for session in level:
                for letter in "ab":
                    branch = session.fork()
                    branch.run(f"path += {letter!r}")
                    following.append(branch)
            made += following
            level = following
        paths = [session.run("print(path)").stdout.strip() for session in level]
        assert paths == ["aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb"]
        for session in made:
            session.close()

    def test_thirty_of_one_trunk_at_once(self, trunk):
        trunk.run("import random; n = 7")

        async def branch(i):
            async with asyncio.timeout(60):
                session = await trunk.afork()
                with session:
                    return (await session.arun(f"print(n * {i})")).stdout

        async def all_of_them():
            return await asyncio.gather(*(branch(i) for i in range(30)))

        assert asyncio.run(all_of_them()) == [f"{7 * i}\n" for i in range(30)]

    def test_before_the_first_call(self, trunk):
        with trunk.fork() as branch:
            assert branch.run("a = 1; print(a)").stdout == "1\n"
            assert trunk.run("print('a' in globals())").stdout == "False\n"

    def test_cells_are_numbered_on(self, trunk):
        trunk.run("def f():\n    return 1 / 0  # here")
        with trunk.fork() as branch:
            trace = branch.run("f()").stderr
            assert 'File "cell_2.py"' in trace
            assert "return 1 / 0  # here" in trace

    def test_outlive_their_trunk(self, trunk):
        trunk.run("n = 5")
        with trunk.fork() as branch:
            trunk.close()
            assert branch.run("print(n)").stdout == "5\n"
            with branch.fork() as twig:
                assert twig.run("print(n)").stdout == "5\n"

    def test_threads_numbers_and_time_limits_work_in_a_branch(self, trunk):
        with trunk.fork() as branch:
            code = "import threading, numpy\nt = threading.Thread(target=print, args=('in',)); t.start(); t.join()"
            assert branch.run(code).stdout == "in\n"
            assert branch.run("print('before')\nwhile True: pass", timeout_s=0.5).status == "timeout"
            assert branch.run("1").error_class == "SessionLost"
            assert trunk.run("print(1)").stdout == "1\n"

    def test_a_branch_of_a_branch_that_crashes_harms_nobody(self, trunk):
        with trunk.fork() as branch, branch.fork() as twig:
            assert twig.run("import ctypes; ctypes.string_at(0)").status == "killed"
            assert branch.run("print(1)").stdout == "1\n"
            assert trunk.run("print(2)").stdout == "2\n"

    def test_memory_is_each_branchs_own(self, tier_sandbox, trunk):
        if tier_sandbox._host.nurseries[0].zygote.memory is None:
            return
        with trunk.fork() as branch:
            assert branch.run("x = []\nwhile True: x.append(bytearray(10**6))").status == "memory"
            assert trunk.run("print(1)").stdout == "1\n"

    def test_files_can_be_read_by_all_and_written_by_none(self, tier, trunk):
        if tier != "nsjail":
            return
        trunk.run("open('a', 'w').write('kept')")
        with trunk.fork() as branch:
            for session in (trunk, branch):
                assert session.run("print(open('a').read())").stdout == "kept\n"
                assert session.run("open('b', 'w')").error_class == "OSError"
                assert session.run("import os; os.unlink('a')").error_class == "OSError"


class TestRefusals:
    def test_a_session_that_is_not_forkable(self, tier_sandbox):
        with tier_sandbox.session() as session, pytest.raises(ForkError, match="forkable=True"):
            session.fork()

    @pytest.mark.parametrize(
        ("code", "mend", "reason"),
        [
            ("f = open('/dev/null')", "f.close()", "1 open files"),
            ("import os; r, w = os.pipe()", "os.close(r); os.close(w)", "2 open files"),
            (
                "import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()",
                "e.set(); t.join()",
                "1 threads",
            ),
        ],
    )
    def test_what_trunk_and_branch_would_share(self, trunk, code, mend, reason):
        trunk.run(code)
        with pytest.raises(ForkError, match=reason):
            trunk.fork()
        assert trunk.run(mend).status == "ok"  # it lives on
        trunk.fork().close()

    def test_a_file_that_is_being_written(self, tier, trunk):
        if tier != "nsjail":
            return
        trunk.run("f = open('a', 'w')")
        with pytest.raises(ForkError, match="open for writing"):
            trunk.fork()
        trunk.run("f.close()")
        trunk.fork().close()

    def test_a_lost_session(self, trunk):
        trunk.run("import os; os._exit(1)")
        with pytest.raises(ForkError, match="lost"):
            trunk.fork()

    def test_too_many(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_sessions=2)
        trunk = sandbox.session(forkable=True)
        trunk.run("x = 1")
        branch = trunk.fork()
        with pytest.raises(SandboxBusyError):
            trunk.fork()
        assert branch.run("print(x)").stdout == "1\n"

    def test_the_tier_none_says_so(self):
        with pytest.warns(RuntimeWarning, match="only limits"):
            sandbox = Sandbox(tier="none")
        with sandbox, pytest.raises(ForkError, match="none"):
            sandbox.session(forkable=True)


HOSTILE = {
    "clone-alone": "answer = clone()",
    "clone-twice": "clone(); answer = clone()",
    "plain-fork": "import os; os.fork()",
    "claims": "import socket, os\ns = socket.socket(fileno=os.dup(3)); s.send(b'y'); s.send(b'r'); s.close()",
}
_CLONE = """
import ctypes
libc = ctypes.PyDLL(None, use_errno=True)
import platform
number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
def clone():
    return libc.syscall(number, ctypes.c_ulong(0x8011), None, None, None, None)
"""


class TestHostile:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_no_process_that_nobody_asked_for(self, tier, make_sandbox, name):
        sandbox = make_sandbox(tier=tier)
        session = sandbox.session(forkable=True)
        session.run(_CLONE)
        session.run(HOSTILE[name], timeout_s=1.0)
        with contextlib.suppress(ForkError):
            session.fork().close()
        session.close()
        assert_at_rest(sandbox)
        assert sandbox.run("print(1)").stdout == "1\n"

    def test_nobody_can_signal_anyone(self, tier_sandbox, trunk):
        with trunk.fork() as branch:
            pids = [trunk._seat.child.zygote_pid, tier_sandbox._host.nurseries[0].zygote.pid, 1, -1, 0]
            for pid in pids:
                assert branch.run(f"import os; os.kill({pid}, 9)").error_class == "PermissionError"
            assert branch.run("import os; os.killpg(0, 9)").error_class == "PermissionError"
            assert trunk.run("print(1)").stdout == "1\n"

    def test_no_shared_memory(self, trunk):
        assert trunk.run("import mmap; mmap.mmap(-1, 4096)").error_class == "PermissionError"
        assert trunk.run("import mmap; mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)").status == "ok"

    def test_output_goes_to_the_one_that_wrote_it(self, trunk):
        trunk.run("import os\nkeep = 1")
        with trunk.fork() as branch:
            assert branch.run("import os; _ = os.write(1, b'branch')").stdout == "branch"
            assert trunk.run("print('trunk')").stdout == "trunk\n"


OWNER = """
import json, sys, time
from retool_env.sandbox import Sandbox

sandbox = Sandbox(tier=sys.argv[1], preload=())
trunk = sandbox.session(forkable=True)
busy, idle = trunk.fork(), trunk.fork()
busy.submit("while True: pass", timeout_s=600)
pids = [session._seat.child.pid for session in (trunk, busy, idle)]
def states():
    return "".join(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] for pid in pids)
while states() != "TRT":
    time.sleep(0.001)
print(json.dumps(pids), flush=True)
sys.stdin.read()
"""


class TestEnds:
    def test_a_zygote_that_dies_takes_all_with_it(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        trunk = sandbox.session(forkable=True)
        branch = trunk.fork()
        running = branch.submit("while True: pass", timeout_s=60)
        wait_until(lambda: n_begun(sandbox) == 1, "it runs")
        pids = [session._seat.child.pid for session in (trunk, branch)]
        os.kill(sandbox._host.nurseries[0].zygote.pid, signal.SIGKILL)
        assert running.result().status == "unavailable"
        for pid in pids:
            wait_until(lambda pid=pid: is_gone(pid), "it is gone")

    def test_an_owner_that_dies_takes_all_with_it(self, tier, make_sandbox):
        make_sandbox(tier=tier, preload=()).close()  # the tier runs here
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, tier], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with owner:
            pids = json.loads(owner.stdout.readline())
            assert [state_of(pid) for pid in pids] == ["T", "R", "T"]
            owner.kill()
            # How soon, the benchmark measures.
            wait_until(lambda: all(map(is_gone, pids)), "user code is gone")
            owner.wait()

    def test_closing_the_sandbox_in_the_middle(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        trunk = sandbox.session(forkable=True)
        trunk.run("x = 1")
        pid = trunk._seat.child.pid

        async def fork_and_close():
            forks = [asyncio.ensure_future(trunk.afork()) for _ in range(10)]
            await asyncio.sleep(0.005)
            await asyncio.to_thread(sandbox.close)
            return await asyncio.wait_for(asyncio.gather(*forks, return_exceptions=True), 60)

        for end in asyncio.run(fork_and_close()):
            assert isinstance(end, ForkError) or not end.alive
        assert is_gone(pid)

    def test_nothing_is_left(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        for _ in range(5):
            trunk = sandbox.session(forkable=True)
            branches = [trunk.fork() for _ in range(3)]
            branches[0].run("import os; os._exit(3)")
            for session in (trunk, *branches[1:]):
                session.close()
        assert_at_rest(sandbox)
        assert not sandbox._host.nurseries[0]._families

    def test_a_cancelled_fork_leaves_no_session(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        trunk = sandbox.session(forkable=True)
        trunk.run("x = 1")

        async def give_up():
            busy = asyncio.ensure_future(trunk.arun("import time; time.sleep(1)"))
            await asyncio.sleep(0)
            fork = asyncio.ensure_future(trunk.afork())
            while not trunk._seat.waiting:
                await asyncio.sleep(0.005)
            fork.cancel()
            await asyncio.gather(busy, fork, return_exceptions=True)

        asyncio.run(give_up())
        wait_until(lambda: sandbox.metrics().sessions == 1, "only the trunk is left")
        time.sleep(0.1)
        assert trunk.run("print(x)").stdout == "1\n"
        trunk.close()
        assert_at_rest(sandbox)
