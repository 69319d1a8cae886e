"""Sessions of an environment end with what they are for: nothing is left open, copied or shared."""

import asyncio
import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retool_env.errors import SandboxBusyError, SandboxClosedError
from retool_env.interpreter import LazySandbox, SessionInterpreter
from retool_env.sandbox import Sandbox, Session
from retool_env.tools import Tool

from .session_env import ANSWER, MakeSandbox, call, code, last_record, run, session_env, wait_until_closed


def test_no_session_is_open_before_there_is_code_and_none_after_the_end(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), max_sessions=1)
    env = session_env(sandbox)
    env.step("<code></code>")
    assert sandbox.metrics().sessions == 0
    endings: list[Callable[[], object]] = [
        lambda: env.step(ANSWER),
        lambda: env.step("I give up"),
        env.reset,
        env.close,
    ]
    for end in endings:
        if env.episode.over:
            env.reset(options={"problem": 6})
        run(env, "x = 42")
        assert sandbox.metrics().sessions == 1
        end()
        wait_until_closed(sandbox)


def test_a_place_is_free_again_as_soon_as_an_episode_has_left_it(tier: str, make_sandbox: MakeSandbox) -> None:
    env = session_env(make_sandbox(tier=tier, preload=(), max_sessions=1))
    for _ in range(50):
        env.reset()
        assert run(env, "42") == "42"
    env.close()


async def test_a_cancelled_step_closes_the_session(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    await env.astep(code("x = 42"))
    step = asyncio.create_task(env.astep(code("while True: pass")))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert env.trajectory().ended == "aborted"
    wait_until_closed(tier_sandbox)


def test_an_error_of_ours_closes_the_session(tier_sandbox: Sandbox) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    tool = Tool("interrupt", "Interrupts.", {"type": "object"}, interrupt)
    env = session_env(tier_sandbox, protocol="tool_calls", tools=[tool])
    with pytest.raises(KeyboardInterrupt):
        env.step(call("x = 42") + '<tool_call>{"name": "interrupt", "arguments": {}}</tool_call>')
    assert env.trajectory().ended == "aborted"
    wait_until_closed(tier_sandbox)


def test_an_abandoned_environment_leaves_nothing_behind(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    run(env, "x = 42")
    del env
    gc.collect()
    wait_until_closed(tier_sandbox)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_first_block_waits_until_another_episode_gives_up_its_session(
    is_async: bool, tier: str, make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), max_sessions=1)
    first, second = session_env(sandbox), session_env(sandbox)
    run(first, "x = 42")
    turned_away, open_session = threading.Event(), sandbox.session

    def watched(**options: Any) -> Session:
        try:
            return open_session(**options)
        except SandboxBusyError:
            turned_away.set()
            raise

    monkeypatch.setattr(sandbox, "session", watched)
    step = (lambda: asyncio.run(second.astep(code("43")))) if is_async else (lambda: second.step(code("43")))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step)
        assert turned_away.wait(60)
        assert run(first, "x") == "42"
        first.close()
        assert "43" in waiting.result(60)[0]
    second.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_episode_without_a_place_for_its_session_is_a_fault_of_the_sandbox(
    is_async: bool, tier: str, make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on: the attempt is masked out, and says what to raise."""
    monkeypatch.setattr("retool_env.interpreter._PLACE_WAIT_S", 0.2)
    sandbox = make_sandbox(tier=tier, preload=(), max_sessions=1)
    first, second = session_env(sandbox), session_env(sandbox)
    run(first, "x = 42")
    turn = code("x = 43")
    _, reward, terminated, truncated, info = asyncio.run(second.astep(turn)) if is_async else second.step(turn)
    assert (reward, terminated, truncated, info["ended"]) == (0.0, False, True, "sandbox_unavailable")
    record = last_record(second)
    assert (record.status, record.error_class) == ("unavailable", "SandboxBusyError")
    assert "max_sessions" in record.stderr
    assert run(first, "x") == "42"
    first.close()
    second.reset()
    assert run(second, "43") == "43"
    second.close()


def test_closing_ends_the_wait_for_a_place(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), max_sessions=0)
    waiting = SessionInterpreter(LazySandbox(sandbox))
    with ThreadPoolExecutor(1) as pool:
        block = pool.submit(waiting.run, "1")
        waiting.close()
        with pytest.raises(SandboxClosedError, match="each attempt"):
            block.result(60)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
def test_a_copy_has_no_copy_of_the_state(copied: Any, tier: str) -> None:
    env = session_env({"tier": tier, "preload": ()})
    before = copied(env)
    run(env, "x = 42")
    after = copied(env)
    assert after.trajectory() == env.trajectory()
    assert run(env, "x") == "42"

    # What had nothing to lose goes on; what had something says so, and not with a wrong output.
    assert run(before, "x = 43") == "[no output]"
    assert run(before, "x") == "43"
    assert after.step(code("x"))[-1]["ended"] == "sandbox_unavailable"
    assert "copy" in last_record(after).stderr
    after.reset()
    assert run(after, "44") == "44"
    assert run(env, "x") == "42"
    for each in (env, before, after):
        each.close()


def test_a_copy_can_still_answer(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    run(env, "x = 42")
    other = copy.deepcopy(env)
    assert other.step(ANSWER)[1] == 1.05
    other.close()
    assert run(env, "x") == "42"
    env.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_cannot_touch_its_parents_session(tier: str, make_sandbox: MakeSandbox) -> None:
    env = session_env(make_sandbox(tier=tier, preload=()))
    run(env, "x = 42")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            lost = env.step(code("x"))[-1]["ended"] == "sandbox_unavailable"
            env.reset()
            status = 0 if lost and run(env, "43") == "43" else 2
            env.close()
            env._sandbox._shared.close()  # type: ignore[union-attr]
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run(env, "x") == "42"
    env.close()


def test_a_closed_sandbox_is_an_error_and_aborts(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    env = session_env(sandbox)
    run(env, "x = 42")
    sandbox.close()
    with pytest.raises(SandboxClosedError):
        run(env, "x")
    assert env.trajectory().ended == "aborted"
