"""``interpreter="session"``: the blocks of an episode share one interpreter, with real sandboxes of both tiers."""

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from retool_env.env import ReToolEnv
from retool_env.sandbox import Sandbox
from retool_env.tools import Tool
from retool_env.trajectory import Trajectory

from .session_env import (
    ANSWER,
    ENDINGS,
    PROBLEMS,
    RESTARTED,
    MakeSandbox,
    call,
    code,
    fence,
    has_printed,
    kill_zygotes,
    last_record,
    run,
    session_env,
    wait_until,
    wait_until_closed,
)

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
