"""``interpreter="session"``: the blocks of an episode share one interpreter, with real sandboxes of both tiers."""

import asyncio
import copy
import gc
import json
import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from retool_env.env import ReToolEnv
from retool_env.errors import SandboxBusyError, SandboxClosedError
from retool_env.interpreter import LazySandbox, SessionInterpreter
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox, Session
from retool_env.tools import Tool
from retool_env.trajectory import ExecutionRecord, Trajectory

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"
RESTARTED = "[the interpreter was restarted: everything defined before is lost]"
ENDINGS = {
    "timeout": ("while True: pass", "timeout"),
    "output": ("while True: print('x' * 10_000)", "output_limit"),
    "crash": ("import ctypes; ctypes.string_at(0)", "killed"),
    "exit": ("import os; os._exit(0)", "ok"),
    "exit with an error": ("import os; os._exit(3)", "error"),
}
"""Blocks that end the interpreter, each with the status it gets."""

MakeSandbox = Callable[..., Sandbox]


def code(source: str) -> str:
    return f"<code>\n```python\n{source}\n```\n</code>"


def fence(source: str) -> str:
    return f"```python\n{source}\n```"


def call(*sources: str) -> str:
    calls = ({"name": "code_interpreter", "arguments": {"code": source}} for source in sources)
    return "\n".join(f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in calls)


def session_env(sandbox: Any, **options: Any) -> ReToolEnv:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, interpreter="session", **options)
    env.reset(options={"problem": 6})
    return env


def run(env: ReToolEnv, source: str) -> str:
    """Has the policy run a block; returns what it sees of it."""
    observation = env.step(code(source))[0]
    return observation.removeprefix("\n<interpreter>\n").removesuffix("\n</interpreter>\n")


def last_record(env: ReToolEnv) -> ExecutionRecord:
    result = env.trajectory().turns[-1].results[-1]
    assert isinstance(result, ExecutionRecord)
    return result


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not in time: {what}")
        select.select([], [], [], 0.005)


def wait_until_closed(sandbox: Sandbox) -> None:
    wait_until(lambda: sandbox.metrics().sessions == 0, "no session is open")


def kill_zygotes(sandbox: Sandbox) -> None:
    assert sandbox._host is not None
    for nursery in sandbox._host.nurseries:
        if nursery.zygote is not None:
            os.kill(nursery.zygote.pid, signal.SIGKILL)


def has_printed(sandbox: Sandbox) -> bool:
    """Whether a call of a session has written something: it has begun, and is lost with its zygote."""
    assert sandbox._host is not None
    seats = [child.seat for child in list(sandbox._host.scheduler.busy)]
    return any(seat.current.out for seat in seats if seat is not None and seat.current is not None)


# State


@pytest.mark.parametrize(("protocol", "write"), [("code_tags", code), ("markdown", fence), ("tool_calls", call)])
def test_what_one_block_defines_the_next_can_use(
    protocol: str, write: Callable[[str], str], tier_sandbox: Sandbox
) -> None:
    env = session_env(tier_sandbox, protocol=protocol)
    env.step(write("import math\ndef f(x):\n    return math.isqrt(x)"))
    observation, _, _, _, info = env.step(write("f(1764)"))
    assert "\n42\n" in observation
    assert info["statuses"] == ("ok",)
    assert env.trajectory().rules.interpreter == "session"
    assert env.trajectory().sandbox_tier == tier_sandbox.tier
    env.close()


def test_by_default_blocks_share_nothing(tier_sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=tier_sandbox)
    env.reset()
    env.step(code("x = 1"))
    assert "NameError" in env.step(code("x"))[0]
    assert env.trajectory().rules.interpreter == "fresh"


async def test_the_async_side_does_the_same(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    turns = (code("x = 41"), code("x + 1"), code("1 / 0"), code("x"), code("import os; os._exit(0)"), code("x"), ANSWER)
    expected = [env.step(turn) for turn in turns]
    await env.areset(options={"problem": 6})
    assert [await env.astep(turn) for turn in turns] == expected


def test_an_error_of_the_code_loses_nothing(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    run(env, "x = 42")
    for failure in ("x = 1 / 0", "import sys; sys.exit(3)", "x = ("):
        assert RESTARTED not in run(env, failure)
        assert not last_record(env).restarted
    assert run(env, "x") == "42"
    env.close()


def test_the_calls_of_one_turn_share_it_too(tier_sandbox: Sandbox) -> None:
    double = Tool("double", "Doubles.", {"type": "object"}, lambda: "2")
    env = session_env(tier_sandbox, protocol="tool_calls", tools=[double])
    other = '\n<tool_call>{"name": "double", "arguments": {}}</tool_call>\n'
    observation, _, _, _, info = env.step(call("x = 41") + other + call("x + 1", "import os; os._exit(0)", "x"))
    assert "\n42\n" in observation
    assert observation.count(RESTARTED) == 1
    assert observation.index(RESTARTED) < observation.index("NameError")
    assert info["statuses"] == ("ok", "ok", "ok", "ok", "error")
    results = env.trajectory().turns[0].results
    assert [getattr(result, "restarted", None) for result in results] == [False, None, False, True, False]
    env.close()


def test_files_last_as_long_as_the_session_where_there_can_be_any(tier: str, tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    written = run(env, "with open('notes.txt', 'w') as file: print(42, file=file)")
    if tier == "nsjail":
        assert run(env, "print(open('notes.txt').read())").strip() == "42"
        run(env, "import os; os._exit(0)")
        assert "FileNotFoundError" in run(env, "open('notes.txt')")
    else:
        assert "PermissionError" in written
    env.close()


def test_every_episode_begins_with_nothing(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    run(env, "x = 42")
    env.reset()
    assert "NameError" in run(env, "x")
    other = session_env(tier_sandbox)
    run(other, "x = 1")
    assert "NameError" in run(env, "x")
    env.close()
    other.close()


# A block that ends the interpreter


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_policy_is_told_when_everything_is_lost(ending: str, tier: str, make_sandbox: MakeSandbox) -> None:
    source, status = ENDINGS[ending]
    env = session_env(make_sandbox(tier=tier, preload=(), timeout_s=1.0))
    run(env, "x = 42")
    for _ in range(2):
        shown = run(env, source)
        assert shown.endswith(RESTARTED)
        assert (last_record(env).status, last_record(env).restarted) == (status, True)
        assert "NameError" in run(env, "x")
        assert not last_record(env).restarted
        run(env, "x = 43")
        assert run(env, "x") == "43"
    assert env.trajectory().turns[-1].retries == 0
    env.close()


async def test_a_program_that_leaves_is_noticed_at_once_on_a_busy_machine(tier_sandbox: Sandbox) -> None:
    """That it is lost must be known when the result is, whatever thread gets to run first."""
    env = session_env(tier_sandbox, max_turns=100, max_tool_calls=100)
    stop = False

    def spin() -> None:
        while not stop:
            pass

    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            threads.submit(spin)
        try:
            for _ in range(10):
                assert RESTARTED in (await env.astep(code("import os; os._exit(0)")))[0]
                assert "NameError" in (await env.astep(code("x = x")))[0]
        finally:
            stop = True
    env.close()


def test_an_interpreter_that_dies_after_its_block_is_told_with_the_next(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    run(env, "x = 42")
    source = (
        "import os, threading\nthreading.Thread(target=lambda: (sleeping.wait(), os._exit(3))).start()\nsleeping.set()"
    )
    shown = run(env, f"import threading\nsleeping = threading.Event()\n{source}")
    if RESTARTED not in shown:  # it had no time to die before its block was over
        assert RESTARTED in run(env, "import time; time.sleep(1)")
    assert "NameError" in run(env, "x")
    env.close()


# A session that is lost through no fault of the code


def test_the_attempt_ends_as_a_fault_where_state_is_lost(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    env = session_env(sandbox, reward="paper")
    run(env, "x = 42")
    kill_zygotes(sandbox)
    wait_until_closed(sandbox)
    observation, reward, terminated, truncated, info = env.step(code("x"))
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert (info["ended"], info["fault"], info["statuses"]) == ("sandbox_unavailable", True, ("unavailable",))
    assert (info["interpreter_calls"], env.trajectory().turns[-1].retries) == (1, 0)
    env.reset()
    assert run(env, "42") == "42"
    env.close()


def test_so_it_does_where_the_session_was_evicted(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), session_idle_s=0.05)
    env = session_env(sandbox)
    run(env, "x = 42")
    wait_until_closed(sandbox)
    assert env.step(code("x"))[-1]["ended"] == "sandbox_unavailable"
    assert "evicted" in last_record(env).stderr
    env.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_first_block_is_tried_again(is_async: bool, tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    env = session_env(sandbox)
    turn = code("import time; print(1, flush=True); time.sleep(1); x = 42")

    def step() -> Any:
        return asyncio.run(env.astep(turn)) if is_async else env.step(turn)

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(step)
        wait_until(lambda: has_printed(sandbox), "the block runs")
        kill_zygotes(sandbox)
        assert going.result()[-1]["statuses"] == ("ok",)
    assert env.trajectory().turns[-1].retries == 1
    assert run(env, "x") == "42"
    env.close()


def test_a_first_block_after_a_restart_is_tried_again_too(tier: str, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    env = session_env(sandbox)
    run(env, "x = 42")
    run(env, "import os; os._exit(0)")
    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(run, env, "import time; print(42, flush=True); time.sleep(1); 43")
        wait_until(lambda: has_printed(sandbox), "the block runs")
        kill_zygotes(sandbox)
        assert going.result() == "42\n43"
    env.close()


# Nothing leaks


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
        assert turned_away.wait(20)
        assert run(first, "x") == "42"
        first.close()
        assert "43" in waiting.result(20)[0]
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
            block.result(5)


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


# gymnasium's rules, and the record


@pytest.mark.parametrize("interpreter", ["fresh", "session"])
def test_gymnasiums_checker_finds_nothing_to_warn_of(interpreter: str, tier_sandbox: Sandbox) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("ReTool-v0", problems=PROBLEMS, sandbox=tier_sandbox, interpreter=interpreter)
        check_env(env.unwrapped, skip_render_check=False)
    env.close()


def test_the_same_actions_give_the_same_everything(tier_sandbox: Sandbox) -> None:
    env = session_env(tier_sandbox)
    sources = (
        "import random; random.random()",
        "random.random(), hash('a'), {'b', 'a', 'c'}",
        "1 / 0",
        "import os; os._exit(1)",
    )
    turns = [*map(code, sources), code("import random; random.random()"), ANSWER]
    runs = [[env.reset(seed=5), *(env.step(turn) for turn in turns)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_what_a_call_cost_is_recorded(tier_sandbox: Sandbox) -> None:
    for interpreter in ("fresh", "session"):
        env = ReToolEnv(PROBLEMS, sandbox=tier_sandbox, interpreter=interpreter)  # type: ignore[arg-type]
        env.reset()
        for source in ("1 / 0", "print('é' * 1000)"):
            run(env, source)
            record = last_record(env)
            assert record.code_chars == len(source)
            assert 0 < record.queue_s < env.trajectory().turns[-1].elapsed_s
            assert record.wall_s > 0
        assert Trajectory.from_json(env.trajectory().to_json()) == env.trajectory()
        env.close()
