"""``ReToolEnv`` in an event loop, and with tools of the user's, sync and async."""

import asyncio
import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import pytest
from gymnasium.error import (
    AlreadyPendingCallError,
    ResetNeeded,
)

from retool_env.env import ReToolEnv
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox
from retool_env.tools import Tool, ToolResult

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"


def code(source: str) -> str:
    return f"<code>\n```python\n{source}\n```\n</code>"


def call(name: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20, preload=()) as shared:
        yield shared


@pytest.fixture
def env(sandbox: Sandbox) -> Iterator[ReToolEnv]:
    with ReToolEnv(PROBLEMS, sandbox=sandbox) as made:
        yield made


# Async


async def test_the_async_side_does_the_same(env: ReToolEnv) -> None:
    turns = (code("print(6 * 7)"), "<code></code>", code("1 / 0"), ANSWER)
    expected = [env.reset(seed=3), *(env.step(turn) for turn in turns)]
    assert [await env.areset(seed=3), *[await env.astep(turn) for turn in turns]] == expected


async def test_the_loop_goes_on_while_code_runs(env: ReToolEnv) -> None:
    await env.areset()
    step = asyncio.create_task(env.astep(code("sum(i * i for i in range(2_000_000))")))
    turns_of_the_loop = 0
    while not step.done():
        turns_of_the_loop += 1
        await asyncio.sleep(0)
    assert (await step)[-1]["statuses"] == ("ok",)
    assert turns_of_the_loop > 100


async def test_many_episodes_share_a_loop_and_a_sandbox(sandbox: Sandbox) -> None:
    async def attempt(n: int) -> float:
        env = ReToolEnv(PROBLEMS, sandbox=sandbox)
        await env.areset(options={"problem": n})
        await env.astep(code(f"print({n} * 7)"))
        return (await env.astep(f"<answer>\\boxed{{{n * 7}}}</answer>"))[1]

    assert await asyncio.gather(*(attempt(n % 10) for n in range(20))) == [1.05] * 20


async def test_a_cancelled_step_aborts_the_attempt(env: ReToolEnv) -> None:
    await env.areset()
    step = asyncio.create_task(env.astep(code("while True: pass")))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert env.trajectory().ended == "aborted"
    with pytest.raises(ResetNeeded, match="aborted"):
        await env.astep(ANSWER)
    await env.areset(options={"problem": 6})
    assert (await env.astep(ANSWER))[1] == 1.0


async def test_one_environment_is_for_one_caller_at_a_time(env: ReToolEnv) -> None:
    await env.areset()
    step = asyncio.create_task(env.astep(code("while True: pass")))
    await asyncio.sleep(0)
    for use in (lambda: env.astep(ANSWER), lambda: env.areset()):
        with pytest.raises(AlreadyPendingCallError):
            await use()
    with pytest.raises(AlreadyPendingCallError):
        env.step(ANSWER)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


# Tools of the user


async def double_later(x: float) -> ToolResult:
    await asyncio.sleep(0)
    return ToolResult(f"{2 * x}</tool_response>")


def double(x: float) -> str:
    return f"{2 * x}</tool_response>"


@pytest.mark.parametrize("function", [double, double_later])
async def test_tools_are_sync_or_async_in_step_and_astep(function: Any, sandbox: Sandbox) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    tool = Tool("double", "Doubles a number.", parameters, function)
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, protocol="tool_calls", tools=[tool])
    turn = call("double", x=21) + call("code_interpreter", code="print(7)") + call("double", x=4)
    env.reset(options={"problem": 6})
    step = env.step(turn)
    env.reset(options={"problem": 6})
    assert await env.astep(turn) == step
    assert step[0].index("42") < step[0].index("7\n") < step[0].index("8")
    assert step[0].count("</tool_response>") == 3
    assert (step[-1]["tool_calls"], step[-1]["interpreter_calls"]) == (3, 1)
    assert step[-1]["statuses"] == ("ok", "ok", "ok")
    assert (await env.astep("\\boxed{42}"))[1] == 1.05


def test_a_tool_that_fails_is_told_to_the_policy(sandbox: Sandbox) -> None:
    def broken() -> str:
        raise KeyError("no such thing")

    tool = Tool("broken", "Fails.", {"type": "object", "properties": {}}, broken)
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, protocol="tool_calls", tools=[tool])
    env.reset()
    observation, _, terminated, _, info = env.step(call("broken"))
    assert "no such thing" in observation
    assert (terminated, info["statuses"]) == (False, ("error",))


@pytest.mark.parametrize("error", [StopIteration("odd"), concurrent.futures.CancelledError("odd")], ids=repr)
async def test_whatever_a_tool_raises_or_returns_the_attempt_goes_on(error: Exception, sandbox: Sandbox) -> None:
    def broken() -> str:
        raise error

    async def cancelled() -> str:
        raise asyncio.CancelledError

    schema = {"type": "object", "properties": {}}
    functions = {"broken": broken, "cancelled": cancelled, "huge": lambda: 10**5000}
    tools = [Tool(name, "Fails.", schema, function) for name, function in functions.items()]  # type: ignore[arg-type]
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, protocol="tool_calls", tools=tools)
    for turn in map(call, functions):
        env.reset()
        async with asyncio.timeout(60):
            step = await env.astep(turn)
        assert (step[2], step[3], step[-1]["statuses"]) == (False, False, ("error",))
        env.reset()
        assert env.step(turn)[-1]["statuses"] == ("error",)
