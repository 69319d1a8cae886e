"""How attempts of one executor live beside each other in vLLM's event loop, and what is left of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from retool_env.errors import SandboxUnavailableError

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .engines import ScriptedEngine
from .test_executor import ANSWER, QUESTION, Make, code, go


async def test_sessions_are_closed_whatever_ends_an_attempt(make_executor: Make) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    from retool_env.shared_sandbox import shared_sandbox

    executor = make_executor(interpreter="session", max_resumes=0, sandbox={"max_sessions": 1, "timeout_s": 3})
    sandbox = shared_sandbox(executor._settings.sandbox)
    for end in (EngineGenerateError(), ValueError("refused"), EngineDeadError(), asyncio.CancelledError()):
        engine = ScriptedEngine(load("small"), [code("x = 1"), end])
        await asyncio.gather(go(executor, engine), return_exceptions=True)
        # There is a place for one session only: the next attempt would not get it.
        engine = ScriptedEngine(load("small"), [code("x = 42"), code("print(x)"), ANSWER])
        [made] = await go(executor, engine)
        assert made["extra_logs"] == {**made["extra_logs"], "acc": 1.0, "fault": 0.0, "errors": 0.0}
    assert sandbox.own is not None


async def test_a_cancelled_attempt_leaves_the_others_alone(make_executor: Make) -> None:
    waiting = asyncio.Event()
    stopped: list[bool] = []

    class Slow(ScriptedEngine):
        async def generate(
            self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None
        ) -> Any:
            if "(stuck)" in self.tokenizer.decode(prompt_token_ids):
                waiting.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.append(True)
            return await super().generate(prompt_token_ids, sampling_params)

    engine = Slow(load("small"), lambda text, number: ANSWER if number else code("print(6 * 7)"))
    executor = make_executor()
    stuck = asyncio.create_task(go(executor, engine, [f"{QUESTION} (stuck)"]))
    await waiting.wait()
    stuck.cancel()
    [made] = await go(executor, engine)
    assert made["scores"] == 1.0
    with pytest.raises(asyncio.CancelledError):
        await stuck
    assert stopped == [True]


async def test_a_sandbox_that_cannot_start_is_an_error_and_no_fault(
    make_executor: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retool_env.sandbox.kernel.landlock_abi", lambda: 0)  # an old kernel
    executor = make_executor(sandbox={"tier": "landlock", "timeout_s": 7})
    with pytest.raises(SandboxUnavailableError):
        await go(executor, ScriptedEngine(load("small"), [code("print(6 * 7)"), ANSWER]))


async def test_a_sandbox_that_fails_is_a_fault_of_its_attempt(
    make_executor: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retool_env.sandbox import ExecutionResult, ExecutionStatus
    from retool_env.shared_sandbox import shared_sandbox

    executor = make_executor(sandbox={"timeout_s": 4})
    sandbox = await shared_sandbox(executor._settings.sandbox).aget()
    run = sandbox.arun

    async def fail(source: str, *args: Any, **kwargs: Any) -> Any:
        if "broken" in source:
            return ExecutionResult(ExecutionStatus.UNAVAILABLE, stderr="gone")
        return await run(source, *args, **kwargs)

    monkeypatch.setattr(sandbox, "arun", fail)

    def script(text: str, number: int) -> str:
        return ANSWER if number else code("# broken\nprint(42)" if "(broken)" in text else "print(42)")

    broken, whole = await go(executor, ScriptedEngine(load("small"), script), ["(broken)", "(whole)"])
    assert (broken["extra_logs"]["fault"], broken["action_ranges"], broken["reward"]) == (1.0, [], 0.0)
    assert whole["scores"] == 1.0


async def test_slow_code_does_not_serialise(make_executor: Make) -> None:
    """64 attempts whose code waits take about as long as the wait of one, beside the same with instant code."""
    took = {}
    executor = make_executor(sandbox={"timeout_s": 30, "max_concurrency": 64})
    for source in ("print(42)", "import time; time.sleep(1); print(42)"):
        engine = ScriptedEngine(load("small"), lambda text, number, source=source: ANSWER if number else code(source))
        await go(executor, engine)  # starts the sandbox
        started = time.monotonic()
        made = await go(executor, engine, [QUESTION] * 64)
        took[source] = time.monotonic() - started
        assert [each["scores"] for each in made] == [1.0] * 64
    instant, slow = took.values()
    assert slow - instant < 64 / 4


async def test_the_event_loop_goes_on_while_code_runs(make_executor: Make) -> None:
    """vLLM generates in the same loop: while one attempt's code runs, the others' turns must go on."""
    order: list[str] = []

    def script(text: str, number: int) -> str:
        name = "slow" if "(slow)" in text else "quick"
        order.append(f"{name}{number}")
        if number == (1 if name == "slow" else 3):
            return ANSWER
        return code("import time; time.sleep(3)" if name == "slow" else f"print({number})")

    executor = make_executor(sandbox={"timeout_s": 30})
    await go(executor, ScriptedEngine(load("small"), [code("1"), ANSWER]))
    made = await go(executor, ScriptedEngine(load("small"), script), ["(slow)", "(quick)"])
    assert [each["scores"] for each in made] == [1.0, 1.0]
    assert order.index("quick3") < order.index("slow1")
