"""What callers do at odd moments: in callbacks and signal handlers, interrupted, forked, and with few descriptors.

What hangs when it goes wrong runs in a process of its own, which a time limit ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from retool_env.sandbox import host, launch
from retool_env.sandbox.nursery import Nursery

from ..interrupts import interrupted_when  # noqa: TID252 - `tests` is on no path
from .conftest import assert_at_rest, is_at_rest, wait_until

needs_forks = pytest.mark.skipif(launch.fork_obstacle("landlock") != "", reason=launch.fork_obstacle("landlock"))


def run_script(script: str, *arguments: str, limit_s: float = 200.0) -> object:
    """Runs a script in a process of its own; returns what it prints, as JSON."""
    command = [sys.executable, "-c", script, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it hangs: {(error.stderr or b'').decode()[-4000:]}")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


CALLBACK = """
import json, sys
from retool_env.errors import SandboxError
from retool_env.sandbox import Sandbox

with Sandbox(tier=sys.argv[1], preload=()) as sandbox:
    trunk = sandbox.session(forkable=True)
    trunk.run("x = 1")
    ends = []

    def fork(future):
        try:
            ends.append(str(trunk.fork()))
        except SandboxError as error:
            ends.append(str(error))

    running = trunk.submit("import time; time.sleep(0.1)")
    running.add_done_callback(fork)
    running.result()
    print(json.dumps([sandbox.submit("print(1)").result().stdout, trunk.run("print(x)").stdout, ends]))
"""

SIGNAL = """
import faulthandler, json, os, signal, sys, threading, time
faulthandler.dump_traceback_later(20)
from retool_env.sandbox import Sandbox

with Sandbox(tier=sys.argv[1], preload=()) as sandbox:
    sessions = [sandbox.session() for _ in range(60)]
    signal.signal(signal.SIGUSR1, lambda *_: sessions and sessions.pop().close())
    write, main, in_handler = os.eventfd_write, threading.current_thread(), False

    def interrupted(fd, number):
        # The host is woken while the inbox is locked: a handler that runs now finds it so.
        global in_handler
        write(fd, number)
        if threading.current_thread() is main and not in_handler:
            in_handler = True
            time.sleep(0.002)
            signal.raise_signal(signal.SIGUSR1)
            in_handler = False

    os.eventfd_write = interrupted
    futures = [sandbox.submit("1") for _ in range(50)]
    print(json.dumps(sorted({future.result().status for future in futures})))
"""

INTERRUPT = """
import faulthandler, json, os, sys, time
faulthandler.dump_traceback_later(40)
from retool_env.errors import ForkError
from retool_env.sandbox import Sandbox

def interrupt_at(moment):
    # A signal's handler runs where a function begins and where a call of a built-in one has ended.
    left = moment
    def look(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
    sys.setprofile(look)

ways = {
    "run": lambda session: session.run("x = 1"),
    "end": lambda session: session.run("import os; os._exit(0)"),
    "submit": lambda session: session.submit("x = 1"),
    "fork": lambda session: session.fork(),
    "open": lambda session: sandbox.session(),
    "close": lambda session: session.close(),
    "fresh": lambda session: sandbox.run("x = 1"),
}
tier, way = sys.argv[1:]
with Sandbox(tier=tier, preload=()) as sandbox:
    host = sandbox._host
    moment, stuck, done = 0, [], False
    while not done and not stuck:
        session = sandbox.session(forkable=way == "fork")
        session.run("x = 0")
        try:
            interrupt_at(moment)
            end = ways[way](session)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        try:
            after = None if session.closed else session.submit("print(x)").result(50)
            if after and after.stdout.strip() not in ("0", "1") and after.error_class != "SessionLost":
                stuck.append([moment, after.stderr])
        except TimeoutError:
            stuck.append(moment)
        session.close()
        moment += 1
    if way in ("fork", "open"):
        end.close()
    end = None
    deadline = time.monotonic() + 60
    while (host.scheduler.busy or host.scheduler.seats) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [len(host.scheduler.busy), len(host.scheduler.seats), host.scheduler.waiting]
    print(json.dumps([moment > 10, stuck, left, sandbox.run("print(1)").stdout]), flush=True)
    sys.stderr.write(f"{moment} moments")
    if stuck:
        os._exit(0)
"""


START = """
import json, os, sys, threading, time
from retool_env.sandbox import Sandbox

def moments(work, last):
    # Does it, counting the moments at which a handler may run; raises KeyboardInterrupt at the last one.
    n = 0
    def look(frame, event, argument):
        nonlocal n
        if event in ("call", "c_return"):
            n += 1
            if n == last:
                sys.setprofile(None)
                raise KeyboardInterrupt
    sys.setprofile(look)
    try:
        work()
    except (KeyboardInterrupt, RuntimeError):  # the latter from one of Python's own locks, interrupted as it was taken
        return last
    finally:
        sys.setprofile(None)
    return n

def left():
    others = [entry for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
    return [pid for pid in others if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid())]

def start():
    global sandbox
    sandbox = Sandbox(tier=sys.argv[1], preload=(), light=False)

def check(what):
    deadline = time.monotonic() + 10
    while True:
        try:
            processes = left()
        except OSError:  # one ended while it was looked at
            continue
        if not processes:
            return
        if time.monotonic() > deadline:
            bad.append([what, processes])
            return
        time.sleep(0.01)

bad, sandbox = [], None
start()
sandbox.close()
n_start = moments(start, 0)
n_close = moments(lambda: sandbox.close(), 0)
for last in sorted({*range(1, n_start, n_start // 12), *range(n_start - 12, n_start)}):
    sandbox = None
    moments(start, last)
    if sandbox is not None:  # the interrupt came after it
        sandbox.close()
    check(["start", last])
for last in range(1, n_close + 1):
    start()
    moments(lambda: sandbox.close(), last)
    sandbox.close()
    check(["close", last])
start()
print(json.dumps([sandbox.run("print(1)").stdout, bad, n_close > 5]))
"""


class TestWhereNobodyExpectsACall:
    @needs_forks
    def test_a_fork_in_a_callback_is_refused(self, tier, make_sandbox):
        make_sandbox(tier=tier, preload=()).close()
        first, second, (end,) = run_script(CALLBACK, tier)
        assert (first, second) == ("1\n", "1\n")
        assert "another thread" in end

    def test_a_signal_handler_that_closes_sessions_while_the_host_is_being_told(self, tier, make_sandbox):
        make_sandbox(tier=tier, preload=()).close()
        assert run_script(SIGNAL, tier) == ["ok"]


class TestInterrupts:
    @pytest.mark.parametrize(
        "way", ["run", "fresh", "end", "submit", "open", "close", pytest.param("fork", marks=needs_forks)]
    )
    def test_at_each_moment_of_a_call(self, tier, make_sandbox, way):
        """The session has its state or is lost, and no place is taken for ever."""
        make_sandbox(tier=tier, preload=()).close()
        assert run_script(INTERRUPT, tier, way) == [True, [], [0, 0, 0], "1\n"]

    @pytest.mark.slow
    def test_as_a_sandbox_starts_and_ends(self, tier, make_sandbox):
        """Nothing is left of one that nobody has; one that was not closed can be closed again."""
        make_sandbox(tier=tier, preload=()).close()
        assert run_script(START, tier, limit_s=200) == ["1\n", [], True]

    def test_before_an_awaited_call_is_awaited(self, tier_sandbox, monkeypatch):
        def interrupt(future):
            raise KeyboardInterrupt

        monkeypatch.setattr(asyncio, "wrap_future", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tier_sandbox.arun("while True: pass", timeout_s=60).send(None)
        assert_at_rest(tier_sandbox)

    def test_callbacks_of_refused_calls_do_not_run_in_the_thread_of_another(self, tier, make_sandbox):
        """It may be the main thread, and what a signal's handler raises in a callback is swallowed."""
        sandbox = make_sandbox(tier=tier, preload=(), max_output_bytes=1024)
        session = sandbox.session()
        session.run("x = 1")
        threads, answered = [], threading.Event()

        def note(future):
            threads.append(threading.current_thread())
            answered.set()

        def submit():
            wait_until(lambda: session._seat.current is not None, "the call runs")
            session.submit("x").add_done_callback(note)

        other = threading.Thread(target=submit)
        other.start()
        result = session.run("import time; time.sleep(0.3); print('-' * 3000)")
        assert (result.status, session.alive) == ("output_limit", False)
        other.join()
        assert answered.wait(30)
        assert threading.current_thread() not in threads
        assert_at_rest(sandbox)

    def test_while_a_call_waits_for_another(self, tier_sandbox):
        """It is not run any more."""
        with tier_sandbox.session() as session:
            session.run("x = 0")
            running = session.submit("import time; time.sleep(1)")
            with interrupted_when(lambda: bool(session._seat.waiting), "it waits"):
                session.run("x = 1")
            assert running.result().status == "ok"
            assert session.run("print(x)").stdout == "0\n"

    @needs_forks
    def test_while_a_fork_waits(self, tier_sandbox):
        """No branch is left that nobody has."""
        with tier_sandbox.session(forkable=True) as trunk:
            trunk.run("x = 0")
            before = tier_sandbox.metrics().sessions
            running = trunk.submit("import time; time.sleep(1)")
            with interrupted_when(lambda: bool(trunk._seat.waiting), "it waits"):
                trunk.fork()
            assert running.result().status == "ok"
            assert trunk.run("print(x)").stdout == "0\n"
            assert tier_sandbox.metrics().sessions == before
            wait_until(lambda: is_at_rest(tier_sandbox, sessions=1), "the branch is gone")
        assert_at_rest(tier_sandbox)


class TestForkedWorkers:
    @pytest.mark.parametrize("how", ["close", "collect", "use"])
    def test_while_another_thread_holds_the_hosts_locks(self, tier_sandbox, how):
        session = tier_sandbox.session()
        session.run("x = 1")
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with tier_sandbox._host.loop.lock:
                held.set()
                release.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(30)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends it if it hangs
            status = 1
            try:
                if how == "close":
                    session.close()
                    status = 0 if session.closed else 1
                elif how == "collect":
                    del session
                    gc.collect()
                    status = 0
                else:
                    status = 0 if session.run("x").error_class == "SessionLost" else 1
            finally:
                os._exit(status)
        release.set()
        holder.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert session.run("print(x)").stdout == "1\n"
        session.close()


class TestOrder:
    def test_run_does_not_overtake_what_was_submitted_before(self, tier_sandbox, monkeypatch):
        """Not even one that the host's thread has just taken out of its inbox."""
        hopeless = Nursery.hopeless.fget

        def slowly(nursery):
            time.sleep(0.0005)
            return hopeless(nursery)

        monkeypatch.setattr(Nursery, "hopeless", property(slowly))
        with tier_sandbox.session() as session:
            session.run("seen = []")
            for i in range(50):
                future = session.submit(f"seen.append({2 * i})")
                time.sleep(i * 2e-5)
                session.run(f"seen.append({2 * i + 1})")
                future.result()
            assert session.run("print(seen == sorted(seen), len(seen))").stdout == "True 100\n"

    def test_a_call_that_begins_as_its_session_is_evicted(self, tier, make_sandbox, monkeypatch):
        """It runs to its end, or is refused as a whole."""
        chosen, end_seat = threading.Event(), host.Host.end_seat

        def slowly(self, seat, why, at_fault):
            if "evicted" in why:
                chosen.set()
                time.sleep(0.3)
            end_seat(self, seat, why, at_fault)

        monkeypatch.setattr(host.Host, "end_seat", slowly)
        sandbox = make_sandbox(tier=tier, preload=(), session_idle_s=0.3)
        session = sandbox.session()
        session.run("x = 1")
        assert chosen.wait(30)
        result = session.run("import time; time.sleep(0.6); print(x)")
        assert (result.stdout, result.error_class) in [("1\n", ""), ("", "SessionLost")]
        assert "evicted" in session.lost


class TestVerdicts:
    def test_a_kill_after_much_cpu_time_in_earlier_calls_is_no_timeout(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=(), timeout_s=1.0)
        session = sandbox.session()
        for _ in range(4):
            session.run("import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass")
        running = session.submit("time.sleep(0.7)")
        wait_until(lambda: bool(sandbox._host.running), "it runs")
        os.kill(session._seat.child.pid, signal.SIGKILL)
        result = running.result()
        assert (result.status, result.error_class) == ("killed", "SIGKILL")
        assert "SIGKILL" in session.lost


class TestFewDescriptors:
    @needs_forks
    def test_as_many_forkable_sessions_as_there_may_be_leave_room_for_others(self, tier, make_sandbox):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = len(os.listdir("/proc/self/fd")) + 220
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            sandbox = make_sandbox(tier=tier, preload=(), max_concurrency=4, standby=2)
            assert sandbox._host.max_sessions < 60  # the limit says how many
            sessions = [sandbox.session(forkable=True) for _ in range(sandbox._host.max_sessions)]
            assert {session.run("1").status for session in sessions} == {"ok"}
            assert limit - len(os.listdir("/proc/self/fd")) >= 32
            assert sandbox.metrics().zygote_restarts == 0
            sandbox.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
