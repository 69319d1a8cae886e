"""Sessions: state from call to call, and what is left of it when a call goes wrong."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import resource
import signal
import threading
import time

import pytest

from retool_env.errors import SandboxBusyError, SandboxClosedError
from retool_env.sandbox import ExecutionStatus

from .conftest import assert_at_rest, n_begun, state_of, wait_until

ENDLESS = "while True: pass"


@pytest.fixture
def session(tier_sandbox):
    with tier_sandbox.session() as session:
        yield session


class TestState:
    def test_names_and_imports_last(self, session):
        session.run("import sympy as sp\nx = sp.symbols('x')\ndef f(n): return n * x")
        assert session.run("print(f(3))").stdout == "3*x\n"
        assert session.run("f(4)").stdout == "4*x\n"  # a last expression is shown

    def test_an_error_keeps_the_session(self, session):
        session.run("y = 5")
        failed = session.run("1/0")
        assert (failed.status, failed.error_class) == ("error", "ZeroDivisionError")
        assert session.run("print(y)").stdout == "5\n"

    @pytest.mark.parametrize("code", [0, 3])
    def test_exit_ends_the_call_only(self, session, code):
        session.run("y = 5")
        assert session.run(f"import sys; print('a'); sys.exit({code})").exit_code == code
        assert session.run("print(y)").stdout == "5\n"

    def test_a_traceback_shows_the_lines_of_the_call_that_defined_them(self, session):
        session.run("def f():\n    return 1 / 0  # here")
        trace = session.run("# nothing\nf()").stderr
        assert 'File "cell_2.py", line 2' in trace
        assert 'File "cell_1.py", line 2' in trace
        assert "return 1 / 0  # here" in trace

    def test_sessions_do_not_see_each_other(self, tier_sandbox, session):
        with tier_sandbox.session() as other:
            session.run("import math; math.pi = 3; z = 1")
            assert other.run("import math; print(math.pi > 3.1, 'z' in globals())").stdout == "True False\n"
        assert tier_sandbox.run("import math; print(math.pi > 3.1)").stdout == "True\n"

    def test_files_last_where_there_is_a_folder(self, tier, session):
        if tier != "nsjail":
            assert session.run("open('a.txt', 'w')").error_class == "PermissionError"
            return
        session.run("open('a.txt', 'w').write('kept')")
        assert session.run("print(open('a.txt').read())").stdout == "kept\n"

    def test_random_goes_on(self, session):
        first, second = session.run("import random; print(random.random())"), session.run("print(random.random())")
        assert first.stdout != second.stdout

    def test_a_long_program(self, session):
        session.run("x = '" + "a" * 200_000 + "'")
        assert session.run("print(len(x))").stdout == "200000\n"

    def test_annotations_and_main(self, session):
        session.run("from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int = 1")
        assert session.run("import __main__; print(P(), __main__.P is P, __name__)").stdout == "P(a=1) True __main__\n"

    def test_numbers_of_a_call(self, session):
        result = session.run("sum(range(10**7))")
        assert 0 < result.cpu_s <= result.wall_s * 2
        assert result.queue_s >= 0
        assert result.code_chars == 17
        assert session.run("pass").cpu_s < result.cpu_s


class TestOrder:
    def test_calls_of_many_threads_run_one_by_one(self, session):
        session.run("n = 0")
        threads = [threading.Thread(target=session.run, args=("n += 1",)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run("print(n)").stdout == "20\n"

    def test_submitted_calls_keep_their_order(self, session):
        session.run("seen = []")
        futures = [session.submit(f"seen.append({i})") for i in range(30)]
        assert all(future.result().status == "ok" for future in futures)
        assert session.run("print(seen == list(range(30)))").stdout == "True\n"

    def test_many_sessions_at_once(self, tier_sandbox):
        async def count(i):
            with await tier_sandbox.asession() as session:
                await session.arun(f"total = {i}")
                for _ in range(3):
                    await session.arun("total += 1")
                return (await session.arun("print(total)")).stdout

        async def all_of_them():
            return await asyncio.gather(*(count(i) for i in range(24)))

        assert asyncio.run(all_of_them()) == [f"{i + 3}\n" for i in range(24)]

    def test_a_cancelled_call_that_waits_leaves_the_session_alone(self, session):
        running = session.submit("import time; time.sleep(0.3); x = 1")
        waiting = session.submit("x = 2")
        assert waiting.cancel()
        assert running.result().status == "ok"
        assert session.run("print(x)").stdout == "1\n"

    def test_cancelling_a_call_that_runs_ends_the_session(self, tier_sandbox, session):
        async def give_up():
            task = asyncio.ensure_future(session.arun(ENDLESS, timeout_s=60))
            while n_begun(tier_sandbox) == 0:
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(give_up())
        assert session.run("1").error_class == "SessionLost"


DEADLY = {
    "timeout": (ENDLESS, "timeout", "time limit"),
    "output": ("while True: print('x' * 1000)", "output_limit", "wrote more than"),
    "crash": ("import ctypes; ctypes.string_at(0)", "killed", "SIGSEGV"),
    "end": ("import os; os._exit(0)", "ok", "its process ended"),
    "failure": ("import os; os._exit(4)", "error", "its process ended"),
}


class TestLoss:
    @pytest.mark.parametrize("how", DEADLY)
    def test_the_call_says_how_and_the_next_one_that_it_is_gone(self, session, how):
        code, status, why = DEADLY[how]
        assert session.run("x = 1").status == "ok"
        assert session.run(code, timeout_s=1.0 if how == "timeout" else 10).status == status
        assert not session.alive
        assert why in session.lost
        for result in (session.run("print(x)"), session.submit("print(x)").result(), asyncio.run(session.arun("1"))):
            assert (result.status, result.error_class) == ("killed", "SessionLost")
            assert result.stderr.startswith("SessionLost: its ")
            assert "start a new session" in result.stderr

    def test_memory(self, tier, tier_sandbox, session):
        result = session.run("x = bytearray(3 * 10**9)\nfor i in range(0, len(x), 4096): x[i] = 1")
        if tier_sandbox._host.nurseries[0].zygote.memory is None:
            assert result.error_class == "MemoryError"
            assert session.alive
        else:
            assert result.status in ("memory", "error")
            assert session.alive is (result.status == "error")

    def test_memory_that_grows(self, tier_sandbox, session):
        result = session.run("x = []\nwhile True: x.append(bytearray(10**6))")
        if tier_sandbox._host.nurseries[0].zygote.memory is not None:
            assert result.status == "memory"
            assert "ran out of memory" in session.lost

    def test_calls_that_wait_are_refused(self, session):
        session.run("x = 1")
        futures = [session.submit(ENDLESS, timeout_s=0.5)] + [session.submit("print(x)") for _ in range(3)]
        statuses = [future.result().status for future in futures]
        assert statuses == ["timeout", "killed", "killed", "killed"]

    def test_a_zygote_that_dies_is_not_the_codes_fault(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        idle, busy = sandbox.session(), sandbox.session()
        idle.run("x = 1")
        running = busy.submit(ENDLESS, timeout_s=60)
        wait_until(lambda: n_begun(sandbox) == 1, "it runs")
        os.kill(sandbox._host.nurseries[0].zygote.pid, signal.SIGKILL)
        assert running.result().status is ExecutionStatus.UNAVAILABLE
        for session in (idle, busy):
            wait_until(lambda session=session: not session.alive, "it is lost")
            assert session.run("1").status is ExecutionStatus.UNAVAILABLE
            assert session.run("1").error_class == "SessionLost"
        with sandbox.session() as new:
            assert new.run("print(1)").stdout == "1\n"

    def test_a_session_is_evicted_when_idle(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, session_idle_s=0.4)
        with sandbox.session() as session:
            assert session.run("import time; time.sleep(1); x = 1").status == "ok"  # a call that runs is not idle
            wait_until(lambda: not session.alive, "it is evicted")
            result = session.run("print(x)")
            assert (result.status, result.error_class) == ("unavailable", "SessionLost")
            assert "was idle for 0.4 s and evicted" in result.stderr
        assert_at_rest(sandbox)

    def test_idle_sessions_are_evicted_without_any_call(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, session_idle_s=0.3)
        session = sandbox.session()
        wait_until(lambda: not session.alive, "it is evicted")
        assert sandbox.metrics().sessions == 0


class TestBetweenCalls:
    def test_nothing_runs(self, session):
        session.run(
            "import threading\nticks = 0\ndef tick():\n    global ticks\n    while True: ticks += 1\n"
            "threading.Thread(target=tick, daemon=True).start()"
        )
        child = session._seat.child
        wait_until(lambda: state_of(child.pid) == "T", "it is stopped")
        before = child.cpu_s()
        time.sleep(0.3)
        assert child.cpu_s() < before + 0.05  # its threads may stop a moment after the first one
        assert session.run("before = ticks\nwhile ticks == before: pass\nprint(ticks > before)").stdout == "True\n"

    def test_cpu_time_of_threads_is_limited(self, session):
        burn = "import threading\ndef f():\n    import hashlib\n    while True: hashlib.sha256(bytes(10**6))\n"
        burn += "for _ in range(8): threading.Thread(target=f, daemon=True).start()\nimport time; time.sleep(250)"
        start = time.monotonic()
        result = session.run(burn, timeout_s=2.0)
        assert result.status == "timeout"
        assert result.cpu_s < 2 * 2.0 + 1.5
        assert time.monotonic() - start < 200  # and not when the program would have ended

    def test_messages_sent_in_between_are_not_answers(self, session):
        forge = (
            "import os, socket, struct, threading, time\n"
            "s = socket.socket(fileno=os.dup(3))\n"
            "def lie():\n"
            "    for n in range(1, 40): s.send(struct.pack('!cIi', b'd', n, 0))\n"
            "threading.Thread(target=lie).start()\ntime.sleep(0.2)"
        )
        session.run(forge)
        result = session.run("import time; time.sleep(0.2); print('real')")
        assert result.status in ("ok", "error", "killed")  # it harms itself alone

    def test_output_in_between_comes_with_the_next_call_and_is_limited(self, session):
        session.run("import os")
        result = session.run("print('next')")
        assert result.stdout == "next\n"

    def test_a_session_that_does_not_listen_is_lost_without_holding_anyone_up(self, session):
        session.run("import os; os.close(3)")
        result = session.run("print(1)", timeout_s=2)
        assert result.status in ("killed", "ok", "error")
        assert not session.alive
        assert session.run("1").error_class == "SessionLost"


class TestEnds:
    def test_close_kills_the_process(self, tier_sandbox):
        session = tier_sandbox.session()
        session.run("1")
        pid = session._seat.child.pid
        session.close()
        session.close()
        wait_until(lambda: state_of(pid) == "", "its process is gone")
        with pytest.raises(SandboxClosedError):
            session.run("1")
        assert session.closed

    def test_a_dropped_session_is_closed(self, tier_sandbox):
        session = tier_sandbox.session()
        session.run("1")
        pid = session._seat.child.pid
        del session
        gc.collect()
        wait_until(lambda: state_of(pid) == "", "its process is gone")

    def test_the_sandboxs_end_is_its_end(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        session = sandbox.session()
        session.run("1")
        pid = session._seat.child.pid
        sandbox.close()
        assert state_of(pid) == ""
        assert not session.alive
        with pytest.raises(SandboxClosedError):
            session.run("1")

    def test_as_many_as_may_be(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_sessions=3)
        sessions = [sandbox.session() for _ in range(3)]
        with pytest.raises(SandboxBusyError, match="raise max_sessions"):
            sandbox.session()
        sessions[0].close()
        wait_until(lambda: sandbox.metrics().sessions == 2, "one is closed")
        sandbox.session().close()
        sessions[1].run("import os; os._exit(1)")
        sandbox.session().close()  # a lost one does not count

    def test_no_copies(self, session):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="running process"):
                attempt(session)

    def test_in_a_forked_process_it_is_lost(self, session):
        session.run("x = 1")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, f"{session.alive} {session.run('x').status}".encode())
            finally:
                os._exit(0)
        os.close(write)
        answer = os.read(read, 100)
        os.close(read)
        os.waitpid(pid, 0)
        assert answer == b"False unavailable"
        assert session.run("print(x)").stdout == "1\n"

    def test_nothing_is_left(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        for how in (*DEADLY, "close"):
            session = sandbox.session()
            session.run("x = 1")
            if how != "close":
                session.run(DEADLY[how][0], timeout_s=0.5)
            session.close()
        assert_at_rest(sandbox)


@pytest.mark.slow
def test_five_hundred_live_sessions(tier, make_sandbox):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.fail(f"needs 4096 open files; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        sandbox = make_sandbox(tier=tier, max_sessions=500)
        sessions = [sandbox.session() for _ in range(500)]
        for i, future in enumerate([session.submit(f"x = {i}") for i, session in enumerate(sessions)]):
            assert future.result().status == "ok", i
        results = [session.submit("print(x)") for session in sessions]
        assert [int(future.result().stdout) for future in results] == list(range(500))
        for session in sessions:
            session.close()
        assert_at_rest(sandbox)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
