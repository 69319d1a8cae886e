"""Environments whose blocks share an interpreter: what their tests have in common."""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from retool_env.env import ReToolEnv
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox
from retool_env.trajectory import ExecutionRecord

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
    deadline = time.monotonic() + 60
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
