"""What goes wrong beside the policy: the sandbox, the servers, the clock, the caller; and what is an error instead."""

from __future__ import annotations

import asyncio
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retool_env.errors import PolicyError, ProblemError, RewardError, SandboxUnavailableError
from retool_env.rollout.attempt import AttemptFaultError
from retool_env.sandbox import Sandbox, SandboxConfig
from retool_env.shared_sandbox import shared_sandbox

from .test_worker import ANSWER, Worker, code, response

FORGETFUL = {"preload": (), "session_idle_s": 0.05}


def two(which: str) -> list[list[dict[str, str]]]:
    """Prompts of an attempt that goes wrong and of one that does not."""
    return [[{"role": "user", "content": f"What is 6 * 7? {name}"}] for name in (which, "(whole)")]


async def never() -> None:
    await asyncio.Event().wait()


def wait_for_no_session(sandbox: Sandbox) -> None:
    limit = time.monotonic() + 20
    while sandbox.metrics().sessions:
        assert time.monotonic() < limit, "a session is still there"
        time.sleep(0.01)


# The sandbox


def losing(text: str, number: int) -> str:
    """The attempt that is "(lost)" writes its second block when its session is gone."""
    if "(lost)" not in text:
        return ANSWER
    if number:
        wait_for_no_session(shared_sandbox(SandboxConfig(**FORGETFUL)).get())
    return code("print(x)") if number else code("x = 42")


@pytest.mark.parametrize("policy", ["mask", "score"])
async def test_a_fault_of_the_sandbox_is_masked_or_scored(make_config: Callable[..., Any], policy: str) -> None:
    config = make_config(on_fault=policy, interpreter="session", sandbox={**FORGETFUL, "preload": []}, reward="paper")
    made = await Worker(config, losing).go(2, raw_prompt=two("(lost)"))
    assert made.non_tensor_batch["fault"].tolist() == [1, 0]
    assert made.batch["rm_scores"].sum(-1).tolist() == [0.0, 1.0]
    masks = [response(made, row)[1] for row in range(2)]
    assert any(masks[0]) == (policy == "score")
    assert all(masks[1])


async def test_a_fault_of_the_sandbox_can_be_raised(make_config: Callable[..., Any]) -> None:
    config = make_config(on_fault="raise", interpreter="session", sandbox={**FORGETFUL, "preload": []})
    with pytest.raises(AttemptFaultError, match="sandbox_unavailable"):
        await Worker(config, losing).go(2, raw_prompt=two("(lost)"))


@pytest.mark.parametrize("policy", ["mask", "score"])
async def test_a_sandbox_that_was_closed_costs_its_attempt_only(make_config: Callable[..., Any], policy: str) -> None:
    options = {"timeout_s": 4.5 if policy == "mask" else 4.75}  # a sandbox of its own

    def script(text: str, number: int) -> str:
        if "(lost)" not in text:
            return ANSWER
        shared_sandbox(SandboxConfig(**options)).get().close()
        return code("print(6 * 7)")

    made = await Worker(make_config(on_fault=policy, sandbox=options), script).go(2, raw_prompt=two("(lost)"))
    assert made.non_tensor_batch["fault"].tolist() == [1, 0]
    assert response(made)[1] == [0]
    assert made.batch["rm_scores"].sum(-1).tolist() == [0.0, 1.0]
    assert [made.non_tensor_batch[name][1] for name in ("acc", "answered", "tool_calls")] == [1, 1, 0]


async def test_a_sandbox_that_cannot_start_is_an_error_and_no_fault(
    make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retool_env.sandbox.kernel.landlock_abi", lambda: 0)  # an old kernel
    config = make_config(sandbox={"tier": "landlock", "timeout_s": 7})
    with pytest.raises(SandboxUnavailableError):
        await Worker(config, [code("print(6 * 7)"), ANSWER]).go()


# The servers


async def test_a_turn_lost_with_its_server_is_generated_again(make_config: Callable[..., Any]) -> None:
    from ray.exceptions import RayActorError
    from verl.workers.rollout.replica import TokenOutput

    half = TokenOutput(token_ids=[5], log_probs=[-1.0], stop_reason="aborted")
    turns = [RayActorError(), half, TokenOutput(token_ids=[], log_probs=[], stop_reason="completed"), ANSWER]
    made = await Worker(make_config(), turns).go()
    assert made.non_tensor_batch["resumes"].tolist() == [3.0]
    assert made.non_tensor_batch["acc"].tolist() == [1.0]


async def test_a_client_without_ray_may_lose_its_server_too(make_config: Callable[..., Any]) -> None:
    made = await Worker(make_config(), [ConnectionResetError("gone"), TimeoutError(), ANSWER]).go()
    assert made.non_tensor_batch["resumes"].tolist() == [2.0]
    assert made.non_tensor_batch["acc"].tolist() == [1.0]


@pytest.mark.parametrize(("ids", "n_logprobs"), [([5, 6, 7], 2), ([5, 6, 7], 0), ([5, 6, 7], 9), ([-1, 5], 2)])
async def test_an_answer_that_makes_no_sense_is_a_fault(
    make_config: Callable[..., Any], ids: list[int], n_logprobs: int
) -> None:
    from verl.workers.rollout.replica import TokenOutput

    odd = TokenOutput(token_ids=ids, log_probs=[-1.0] * n_logprobs, stop_reason="completed")
    worker = Worker(make_config(), lambda text, number: odd if "(lost)" in text else ANSWER)
    made = await worker.go(2, raw_prompt=two("(lost)"))
    assert made.non_tensor_batch["fault"].tolist() == [1, 0]
    assert response(made)[1] == [0]


@pytest.mark.parametrize(("policy", "sums"), [("mask", [0, 2]), ("score", [1, 2])])
async def test_a_fault_is_masked_or_scored(make_config: Callable[..., Any], policy: str, sums: list[int]) -> None:
    """The second turn never comes; the other attempt of the batch is as it would be alone."""
    from ray.exceptions import RayActorError

    def script(text: str, number: int) -> Any:
        return RayActorError() if "(lost)" in text and number else code("print(6 * 7)") if not number else ANSWER

    made = await Worker(make_config(on_fault=policy, max_resumes=0), script).go(2, raw_prompt=two("(lost)"))
    masks = [response(made, row)[1] for row in range(2)]
    runs = [sum(1 for a, b in zip([0, *mask], mask, strict=False) if (a, b) == (0, 1)) for mask in masks]
    assert runs == sums
    assert made.batch["rm_scores"].sum(-1).tolist() == pytest.approx([0.0, 1.05])


async def test_a_fault_can_be_raised(make_config: Callable[..., Any]) -> None:
    from ray.exceptions import RayActorError

    with pytest.raises(AttemptFaultError):
        await Worker(make_config(on_fault="raise", max_resumes=0), [RayActorError()]).go()


async def test_a_prompt_that_does_not_fit_is_a_fault(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config("actor_rollout_ref.rollout.prompt_length=16"), [ANSWER])
    made = await worker.go()
    assert made.batch["prompts"].shape[1] == 16
    assert made.non_tensor_batch["fault"].tolist() == [1.0]
    assert response(made)[1] == [0]
    assert not any(request.gave for request in worker.servers.requests)


async def test_a_server_that_forgets_the_logprobs_is_a_fault(make_config: Callable[..., Any]) -> None:
    from verl.workers.rollout.replica import TokenOutput

    made = await Worker(make_config(max_resumes=0), [TokenOutput(token_ids=[5], stop_reason="completed")]).go()
    assert made.non_tensor_batch["fault"].tolist() == [1.0]
    assert made.batch["rollout_log_probs"].isfinite().all()


async def test_what_a_server_refuses_is_not_asked_again(make_config: Callable[..., Any]) -> None:
    from ray.exceptions import RayTaskError

    refusal = RayTaskError("generate", "traceback", ValueError("max_tokens must be at least 1"))

    def script(text: str, number: int) -> Any:
        return refusal if "(lost)" in text else ANSWER

    worker = Worker(make_config(), script)
    made = await worker.go(2, raw_prompt=two("(lost)"))
    assert made.non_tensor_batch["fault"].tolist() == [1, 0]
    assert len(worker.servers.requests) == 2
    with pytest.raises(PolicyError, match="max_tokens must be"):
        await Worker(make_config(on_fault="raise"), script).go(2, raw_prompt=two("(lost)"))


# The clock and the caller


@pytest.mark.parametrize("limit", ["deadline_s", "turn_timeout_s"])
async def test_what_hangs_costs_its_attempt_only(make_config: Callable[..., Any], limit: str) -> None:
    """verl itself waits for ever."""

    def script(text: str, number: int) -> Any:
        return never() if "(lost)" in text else ANSWER

    made = await Worker(make_config(max_resumes=0, **{limit: 2.0}), script).go(2, raw_prompt=two("(lost)"))
    assert made.non_tensor_batch["fault"].tolist() == [1, 0]
    assert made.non_tensor_batch["acc"].tolist() == [0, 1]


async def test_a_cancelled_batch_frees_the_sandbox(make_config: Callable[..., Any]) -> None:
    options = {"timeout_s": 6.5}
    worker = Worker(
        make_config(interpreter="session", sandbox=options), lambda text, number: never() if number else code("x = 42")
    )
    working = asyncio.create_task(worker.go(3))
    async with asyncio.timeout(60):
        while len(worker.servers.requests) < 6:
            await asyncio.sleep(0.01)
    sandbox = shared_sandbox(SandboxConfig(**options)).get()
    assert sandbox.metrics().sessions == 3
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    wait_for_no_session(sandbox)
    assert sandbox.run("print(6 * 7)").stdout == "42\n"


async def test_a_record_that_cannot_be_written_costs_the_record_only(
    make_config: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "record"

    def script(text: str, number: int) -> str:
        folder.rmdir()
        return ANSWER

    made = await Worker(make_config(record=str(folder)), script).go()
    assert made.non_tensor_batch["acc"].tolist() == [1.0]
    assert "not recorded" in caplog.text


# Errors of the user's, which are no faults


async def test_a_table_that_pays_no_number_is_an_error(
    make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl itself would train on it."""
    module = types.ModuleType("tables_of_a_user")
    module.broken = lambda facts: float("nan")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(RewardError, match="finite"):
        await Worker(make_config(reward="tables_of_a_user:broken"), [ANSWER]).go()


async def test_a_row_without_a_gold_answer_is_an_error(make_config: Callable[..., Any]) -> None:
    with pytest.raises(ProblemError, match="ground_truth"):
        await Worker(make_config(), [ANSWER]).go(reward_model=[{"style": "rule"}])
