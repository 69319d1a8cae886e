"""A zygote that is killed at a bad moment: a program that had not begun is run by the next one, at most once."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from retool_env.sandbox import ExecutionResult, Sandbox
from retool_env.sandbox.contained import Child
from retool_env.sandbox.nursery import Nursery

from .conftest import assert_at_rest, has_something_unread, is_at_rest, is_gone, nurseries, state_of, wait_until

WAYS = {
    "run": lambda sandbox: sandbox.run("print(1)"),
    "submit": lambda sandbox: sandbox.submit("print(1)").result(),
    "first-call": lambda sandbox: sandbox.session().run("print(1)"),
    "long": lambda sandbox: sandbox.run("print(1)" + " " * 100_000),  # in a memory file
}


@pytest.fixture
def sandbox(tier: str, make_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.setattr(Nursery, "warm", lambda nursery: False)  # children that wait stay where they are
    made = make_sandbox(tier=tier, preload=(), standby=2)
    wait_until(lambda: is_at_rest(made) and len(nurseries(made)[0].idle) == 2, "children wait")
    return made


def stop_idle(sandbox: Sandbox) -> list[Child]:
    """Stops the children that wait, so that they read nothing."""
    children = list(nurseries(sandbox)[0].idle)
    for child in children:
        os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: all(state_of(child.pid) == "T" for child in children), "they are stopped")
    return children


def kill_zygote(sandbox: Sandbox) -> None:
    zygote = nurseries(sandbox)[0].zygote
    if zygote is not None:
        os.kill(zygote.pid, signal.SIGKILL)


def in_thread(work: Callable[[], ExecutionResult]) -> Future[ExecutionResult]:
    thread = ThreadPoolExecutor(1)
    future = thread.submit(work)
    thread.shutdown(wait=False)
    return future


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_was_not_read_is_run_by_the_next_zygote(sandbox, way):
    children = stop_idle(sandbox)
    running = in_thread(lambda: WAYS[way](sandbox))
    wait_until(lambda: any(map(has_something_unread, children)), "the program was sent")
    kill_zygote(sandbox)
    result = running.result(30)
    assert (result.status, result.stdout) == ("ok", "1\n")
    assert sandbox.metrics().zygote_restarts == 1
    assert sandbox.metrics().calls == 1


def test_a_child_that_is_killed_before_it_read_its_program_is_not_the_programs_fault(sandbox):
    children = stop_idle(sandbox)
    running = in_thread(lambda: sandbox.run("print(1)"))
    wait_until(lambda: any(map(has_something_unread, children)), "the program was sent")
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    assert running.result(30).stdout == "1\n"


def has_printed(sandbox: Sandbox) -> bool:
    return any(job.out for job in sandbox._host.running.jobs())


def test_a_program_that_has_begun_is_not_run_again(sandbox):
    """Nobody knows how far it came."""
    running = sandbox.submit("import time\nprint(1, flush=True)\ntime.sleep(60)", timeout_s=100)
    wait_until(lambda: has_printed(sandbox), "it runs")
    kill_zygote(sandbox)
    assert (running.result(30).status, running.result().stdout) == ("unavailable", "1\n")


def test_a_later_call_is_not_run_without_its_state(sandbox):
    session = sandbox.session()
    session.run("x = 1")
    running = session.submit("import time\nprint(x, flush=True)\ntime.sleep(60)", timeout_s=100)
    wait_until(lambda: has_printed(sandbox), "it runs")
    waiting = session.submit("print(x)")
    kill_zygote(sandbox)
    assert [future.result(30).status for future in (running, waiting)] == ["unavailable", "unavailable"]
    assert session.run("print(x)").status == "unavailable"
    assert session.lost == "the sandbox failed"


def hold_up(loop):
    """Has the host's thread wait, and returns the event it waits for."""
    holds, release = threading.Event(), threading.Event()
    loop.tell(lambda: (holds.set(), release.wait(100)))
    assert holds.wait(60)
    return release


def test_a_call_that_begins_before_the_zygotes_death_is_noticed_is_not_blamed_for_it(sandbox):
    session = sandbox.session()
    session.run("x = 1")
    pid, loop = session._seat.child.pid, sandbox._host.loop
    release = hold_up(loop)  # the host's thread notices nothing
    kill_zygote(sandbox)
    wait_until(lambda: is_gone(pid), "the session's process is gone")
    running = in_thread(lambda: session.run("print(x)"))
    wait_until(lambda: bool(loop._inbox), "its thread has given up")
    release.set()
    assert running.result(30).status == "unavailable"
    assert session.lost == "the sandbox failed"


def test_a_session_whose_process_was_killed_at_rest_is_lost(sandbox):
    session = sandbox.session()
    session.run("x = 1")
    pid, loop = session._seat.child.pid, sandbox._host.loop
    release = hold_up(loop)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), "the session's process is gone")
    running = in_thread(lambda: session.run("print(x)"))
    wait_until(lambda: bool(loop._inbox), "its thread has given up")
    release.set()
    assert (running.result(30).status, running.result().error_class) == ("killed", "SessionLost")
    assert "does not answer" in session.lost
    assert sandbox.run("print(1)").stdout == "1\n"


def test_kills_at_any_moment(sandbox):
    """Whatever comes of a program, it is never blamed for it, and its output is there once."""
    random.seed(0)
    seen = []
    for number in range(12):
        killer = threading.Timer(random.uniform(0, 0.004), kill_zygote, (sandbox,))
        killer.start()
        for way in (*WAYS, "run", "run"):
            result = WAYS[way](sandbox)
            assert (result.status, result.stdout) in [("ok", "1\n"), ("unavailable", ""), ("unavailable", "1\n")]
            seen.append(result.status)
        killer.join()
        wait_until(lambda: nurseries(sandbox)[0].zygote is not None, f"there is a zygote after kill {number}")
        assert sandbox.submit("print(1)").result().status in ("ok", "unavailable")
    assert seen.count("ok") > len(seen) // 2
    assert_at_rest(sandbox)
