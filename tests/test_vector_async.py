"""``ReToolVectorEnv`` in event loops and beside other threads."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from retool_env import ReToolVectorEnv
from retool_env.errors import SandboxClosedError
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox
from retool_env.tools import Tool

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"
FOREVER = "<code>while True: pass</code>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20, max_concurrency=8, preload=()) as shared:
        yield shared


@pytest.fixture
def envs(sandbox: Sandbox) -> Iterator[ReToolVectorEnv]:
    made = ReToolVectorEnv(2, PROBLEMS, sandbox=sandbox)
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
async def test_the_async_side_does_the_same(mode: str, sandbox: Sandbox) -> None:
    envs = ReToolVectorEnv(2, PROBLEMS, sandbox=sandbox, autoreset_mode=mode)
    turns = ((ANSWER, "<code>1 / 0</code>"), ("<code>7</code>", ANSWER), ("<code></code>", ANSWER))
    expected = [envs.reset(seed=3), *(envs.step(turn) for turn in turns)]
    found = [await envs.areset(seed=3), *[await envs.astep(turn) for turn in turns]]
    assert list(map(repr, found)) == list(map(repr, expected))


async def test_step_works_inside_a_running_loop_as_in_a_notebook(envs: ReToolVectorEnv) -> None:
    envs.reset(options={"problem": 6})
    assert envs.step(("<code>1</code>", ANSWER))[1].tolist() == [0.0, 1.0]


def test_the_current_event_loop_of_the_thread_stays_what_it_is(envs: ReToolVectorEnv) -> None:
    def current_after_a_step() -> bool:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        envs.reset()
        envs.step((ANSWER, "<code>1</code>"))
        try:
            return asyncio.get_event_loop() is loop and not loop.is_closed()
        finally:
            loop.close()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(current_after_a_step).result()


async def test_the_loop_goes_on_while_code_runs(envs: ReToolVectorEnv) -> None:
    await envs.areset()
    step = asyncio.create_task(envs.astep(["<code>sum(i * i for i in range(2_000_000))</code>"] * 2))
    turns_of_the_loop = 0
    while not step.done():
        turns_of_the_loop += 1
        await asyncio.sleep(0)
    assert (await step)[-1]["statuses"].tolist() == [("ok",), ("ok",)]
    assert turns_of_the_loop > 100


async def test_a_cancelled_step_aborts_all_attempts(envs: ReToolVectorEnv) -> None:
    await envs.areset()
    step = asyncio.create_task(envs.astep((FOREVER, FOREVER)))
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(AlreadyPendingCallError):
        await envs.astep((ANSWER, ANSWER))
    with pytest.raises(AlreadyPendingCallError):
        envs.reset()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert [record.ended for record in envs.call("trajectory")] == ["aborted", "aborted"]
    *_, infos = await envs.astep(("", ""))
    assert infos["action"].tolist() == ["reset", "reset"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_tools_of_all_environments_are_called_at_the_same_time(is_async: bool, sandbox: Sandbox) -> None:
    n = 3
    together = threading.Barrier(n, timeout=60)

    def meet() -> str:
        return f"met {together.wait() >= 0}"

    async def meet_later() -> str:
        return await asyncio.to_thread(meet)

    schema = {"type": "object", "properties": {}}
    tool = Tool("meet", "Waits for the others.", schema, meet_later if is_async else meet)
    envs = ReToolVectorEnv(n, PROBLEMS, sandbox=sandbox, protocol="tool_calls", tools=[tool])
    envs.reset()
    observations, *_ = envs.step(['<tool_call>\n{"name": "meet", "arguments": {}}\n</tool_call>'] * n)
    assert all("met True" in observation for observation in observations)


@pytest.mark.parametrize("interpreter", ["fresh", "session"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_it_can_be_closed_while_another_thread_waits_for_a_step(is_shared: bool, interpreter: Any) -> None:
    options: dict[str, Any] = {"preload": (), "timeout_s": 300}
    given = Sandbox(**options) if is_shared else options
    envs = ReToolVectorEnv(3, PROBLEMS, sandbox=given, interpreter=interpreter)
    envs.reset()
    envs.step(["<code>1</code>"] * 3)
    own = given if isinstance(given, Sandbox) else envs.envs[0]._sandbox.own
    assert own is not None
    with ThreadPoolExecutor(1) as thread:
        step = thread.submit(envs.step, [FOREVER] * 3)
        while own.metrics().running < 3:
            time.sleep(0.01)
        envs.close()
        if is_shared and interpreter == "fresh":
            own.close()  # a program in a shared sandbox is nobody else's to kill
        with pytest.raises((SandboxClosedError, ClosedEnvironmentError)):
            step.result(timeout=60)
    with pytest.raises(ClosedEnvironmentError):
        envs.step(["<code>1</code>"] * 3)
    assert is_shared or own.closed
    own.close()


INTERRUPTED = """
import os, signal, threading
from retool_env import ReToolVectorEnv
envs = ReToolVectorEnv(2, [{"question": "6 * 7?", "answer": "42"}], sandbox={"preload": (), "timeout_s": 300})
envs.reset()
envs.step(["<code>1</code>"] * 2)
own = envs.envs[0]._sandbox.own
def interrupt():
    while own.metrics().running < 2:
        pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    envs.step(["<code>while True: pass</code>"] * 2)
except KeyboardInterrupt:
    print([str(record.ended) for record in envs.call("trajectory")])
envs.step(["", ""])
print(envs.step(["<code>1</code>"] * 2)[-1]["statuses"].tolist())
envs.close()
"""


def test_an_interrupt_aborts_the_attempts_at_once_and_the_next_step_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['aborted', 'aborted']", "[('ok',), ('ok',)]"]


def test_a_wrapped_one_is_stepped_asynchronously_through_unwrapped(sandbox: Sandbox) -> None:
    envs: Any = gymnasium.wrappers.vector.RecordEpisodeStatistics(ReToolVectorEnv(2, PROBLEMS, sandbox=sandbox))
    envs.reset(options={"problem": 6})
    assert asyncio.run(envs.unwrapped.astep((ANSWER, "<code>1</code>")))[1].tolist() == [1.0, 0.0]
