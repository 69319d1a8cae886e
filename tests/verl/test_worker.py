"""The agent loop in verl's real ``AgentLoopWorker``, in this process, with the real sandbox: batches token by token."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from retool_env.errors import ConfigurationError
from retool_env.sandbox import SandboxConfig
from retool_env.shared_sandbox import shared_sandbox
from retool_env.trajectory import read_jsonl

ANSWER = "<answer>\\boxed{42}</answer>"
SHOWN_42 = "\n<interpreter>\n42\n</interpreter>\n"


def code(source: str) -> str:
    return f"<code>\n{source}\n</code>"


def call(source: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'code_interpreter', 'arguments': {'code': source}})}\n</tool_call>"


class Worker:
    """verl's worker with scripted servers; ``paid``: each attempt must have its reward from the loop."""

    def __init__(self, config: Any, turns: Any, steps: Sequence[int] = (0,), *, paid: bool = False):
        from verl.experimental.agent_loop import AgentLoopWorker

        from .servers import ScriptedServers

        self.servers = ScriptedServers(None, turns, steps)
        # verl asks a reward worker where the loop gave no reward; this one cannot be asked.
        self.worker = AgentLoopWorker(config, self.servers, reward_loop_worker_handles=[object()] if paid else None)
        self.tokenizer = self.servers.tokenizer = self.worker.tokenizer

    def serve(self, turns: Any) -> None:
        """Begins another script."""
        self.servers.start(turns)

    async def go(self, n: int = 1, *, validate: bool = False, **columns: Sequence[Any]) -> Any:
        return await self.worker.generate_sequences(batch(n, validate=validate, **columns))


def batch(n: int, *, validate: bool = False, **columns: Sequence[Any]) -> Any:
    import numpy as np
    from verl.protocol import DataProto

    rows: dict[str, Sequence[Any]] = {
        "raw_prompt": [[{"role": "user", "content": "What is 6 * 7?"}] for _ in range(n)],
        "reward_model": [{"style": "rule", "ground_truth": "42"} for _ in range(n)],
        "data_source": ["test"] * n,
        "agent_name": ["retool"] * n,
        "index": list(range(n)),
        **columns,
    }
    arrays = {}
    for key, values in rows.items():
        arrays[key] = np.empty(n, dtype=object)
        arrays[key][:] = values
    return DataProto(non_tensor_batch=arrays, meta_info={"validate": validate, "global_steps": 1})


def response(made: Any, row: int = 0) -> tuple[list[int], list[int], list[float]]:
    """Returns ids, mask and logprobs of a response, without the padding."""
    n_prompt = made.batch["prompts"].shape[1]
    n = int(made.batch["attention_mask"][row, n_prompt:].sum())
    columns = (made.batch[name][row] for name in ("responses", "response_mask", "rollout_log_probs"))
    ids, mask, logprobs = ([*column.tolist()] for column in columns)
    assert not any(mask[n:])
    assert not any(logprobs[n:])
    return ids[:n], mask[:n], logprobs[:n]


@pytest.mark.parametrize("name", ["small", "qwen2_5", "qwen3", "llama3_2"])
async def test_both_protocols_token_by_token(make_config: Callable[..., Any], name: str) -> None:
    """In one test, because reading a large tokenizer takes most of it."""
    from omegaconf import OmegaConf

    config = make_config(name=name, protocol="code_tags", reward="tool_aware")
    path = config.actor_rollout_ref.rollout.agent.agent_loop_config_path
    entries = OmegaConf.load(path)
    calls = {**entries[0], "name": "calls", "protocol": "tool_calls", "reward": "verl"}
    OmegaConf.save(OmegaConf.create([*entries, calls]), path)
    worker = Worker(config, [f"Let me see. {code('print(6 * 7)')}", f"So it is {ANSWER}"], steps=(3, 5))
    check_code_tags(worker, await worker.go())
    worker.serve([call("print(6 * 7)"), "It is \\boxed{42}"])
    check_tool_calls(worker, await worker.go(agent_name=["calls"]))


def check_code_tags(worker: Worker, made: Any) -> None:
    first, second = worker.servers.requests
    ids, mask, logprobs = response(made)
    shown = worker.tokenizer.encode(SHOWN_42, add_special_tokens=False)
    assert ids == first.gave + shown + second.gave
    assert mask == [1] * len(first.gave) + [0] * len(shown) + [1] * len(second.gave)
    assert logprobs == pytest.approx(first.logprobs + [0.0] * len(shown) + second.logprobs)
    prompt = made.batch["prompts"][0].tolist()
    assert prompt[-len(first.prompt_ids) :] == first.prompt_ids
    assert second.prompt_ids == first.prompt_ids + first.gave + shown
    rewards = made.batch["rm_scores"][0].tolist()
    assert rewards[len(ids) - 1] == pytest.approx(1.05)
    assert sum(map(abs, rewards)) == pytest.approx(1.05)
    assert made.non_tensor_batch["acc"].tolist() == [1.0]
    assert made.non_tensor_batch["tool_calls"].tolist() == [1.0]
    assert made.non_tensor_batch["__num_turns__"].tolist() == [4]
    assert made.non_tensor_batch["min_global_steps"].tolist() == [3]
    assert made.non_tensor_batch["max_global_steps"].tolist() == [5]


def check_tool_calls(worker: Worker, made: Any) -> None:
    first, second = worker.servers.requests
    ids, mask, logprobs = response(made)
    between = second.prompt_ids[len(first.prompt_ids) + len(first.gave) :]
    assert "42" in worker.tokenizer.decode(between)
    assert ids == first.gave + between + second.gave
    assert mask == [1] * len(first.gave) + [0] * len(between) + [1] * len(second.gave)
    assert logprobs == pytest.approx(first.logprobs + [0.0] * len(between) + second.logprobs)
    assert made.batch["rm_scores"][0].sum() == pytest.approx(1.0)
    assert "stop" not in first.sampling_params


async def test_what_a_server_is_asked(make_config: Callable[..., Any]) -> None:
    config = make_config("actor_rollout_ref.rollout.temperature=0.7")
    worker = Worker(config, [code("print(6 * 7)"), ANSWER], paid=True)
    await worker.go(priority=[7])
    first, second = worker.servers.requests
    assert first.request_id == second.request_id
    assert first.more == second.more == {"priority": 7}
    assert first.sampling_params["temperature"] == 0.7
    assert first.sampling_params["stop"] == ["</code>", "</answer>"]
    assert first.sampling_params["include_stop_str_in_output"] is True
    assert first.sampling_params["max_tokens"] == 512
    appended = len(second.prompt_ids) - len(first.prompt_ids)
    assert second.sampling_params["max_tokens"] == 512 - appended


async def test_sglang_has_its_own_word_for_keeping_a_stop_string(make_config: Callable[..., Any]) -> None:
    sglang = "actor_rollout_ref.rollout.name=sglang"
    worker = Worker(make_config(sglang, "actor_rollout_ref.rollout.skip_tokenizer_init=false"), [ANSWER])
    await worker.go()
    asked = worker.servers.requests[0].sampling_params
    assert (asked["stop"], asked["no_stop_trim"]) == (["</code>", "</answer>"], True)
    assert "include_stop_str_in_output" not in asked
    assert (await Worker(make_config(sglang, protocol="tool_calls"), ["\\boxed{42}"]).go()).batch[
        "rm_scores"
    ].sum() == 1
    with pytest.raises(Exception, match="skip_tokenizer_init"):
        await Worker(make_config(sglang), [ANSWER]).go()


async def test_expert_routing_is_refused(make_config: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="enable_rollout_routing_replay: not supported"):
        await Worker(make_config("actor_rollout_ref.rollout.enable_rollout_routing_replay=true"), [ANSWER]).go()


async def test_validation_uses_its_own_sampling(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config("actor_rollout_ref.rollout.val_kwargs.temperature=0.25"), [ANSWER])
    await worker.go(validate=True)
    assert worker.servers.requests[0].sampling_params["temperature"] == 0.25


async def test_a_printed_box_is_not_paid(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config(reward="paper"), [code("print('<answer>\\\\boxed{42}</answer>')"), "Done."])
    made = await worker.go()
    assert made.batch["rm_scores"].sum() == pytest.approx(-1.0)
    assert made.non_tensor_batch["acc"].tolist() == [0.0]


async def test_a_turn_cut_by_length_is_neither_run_nor_graded(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config("actor_rollout_ref.rollout.response_length=32"), ["so " * 100])
    made = await worker.go()
    ids, mask, _ = response(made)
    assert len(ids) == 32
    assert mask == [1] * 32
    assert made.non_tensor_batch["cut_by_length"].tolist() == [1.0]


@pytest.mark.parametrize(("n", "said"), [(200, "completed"), (5, "length")])
async def test_a_cut_is_seen_however_a_server_tells_it(make_config: Callable[..., Any], n: int, said: str) -> None:
    """One that gives more than it was asked for, and one that says why it stopped."""
    from verl.workers.rollout.replica import TokenOutput

    turn = TokenOutput(token_ids=[5] * n, log_probs=[-1.0] * n, stop_reason=said)
    made = await Worker(make_config("actor_rollout_ref.rollout.response_length=32"), [turn]).go()
    assert len(response(made)[0]) == min(n, 32)
    assert made.non_tensor_batch["cut_by_length"].tolist() == [1.0]


async def test_observations_keep_their_budget_of_tokens(make_config: Callable[..., Any]) -> None:
    config = make_config(max_observation_tokens=128, max_observation_chars=10_000)
    worker = Worker(config, [code("print(list(range(2000)))"), ANSWER])
    made = await worker.go()
    _, mask, _ = response(made)
    assert 0 < mask.count(0) <= 128
    assert made.non_tensor_batch["shortened"].tolist() == [1.0]


async def test_a_batch_of_all_ends_has_one_shape(make_config: Callable[..., Any]) -> None:
    """Right and wrong, without an answer, with errors and time-outs, lost: verl can put them all in one batch."""
    scripts = {
        "right": [code("print(6 * 7)"), ANSWER],
        "wrong": ["<answer>\\boxed{41}</answer>"],
        "silent": ["I do not know."],
        "error": [code("1 / 0"), ANSWER],
        "slow": [code("while True: pass"), ANSWER],
        "lost": [RuntimeError("lost")],
    }
    from ray.exceptions import RayActorError

    def script(text: str, number: int) -> Any:
        name = next(name for name in scripts if f"({name})" in text)
        turn = scripts[name][min(number, len(scripts[name]) - 1)]
        return RayActorError() if isinstance(turn, RuntimeError) else turn

    config = make_config(sandbox={"timeout_s": 0.5}, max_resumes=1)
    questions = [[{"role": "user", "content": f"What is 6 * 7? ({name})"}] for name in scripts]
    made = await Worker(config, script).go(len(scripts), raw_prompt=questions)
    figures = {name: made.non_tensor_batch[name].tolist() for name in ("acc", "errors", "timeouts", "fault")}
    assert figures == {
        "acc": [1, 0, 0, 1, 1, 0],
        "errors": [0, 0, 0, 1, 0, 0],
        "timeouts": [0, 0, 0, 0, 1, 0],
        "fault": [0, 0, 0, 0, 0, 1],
    }
    assert made.meta_info["reward_extra_keys"]
    rewards = made.batch["rm_scores"].sum(-1).tolist()
    assert rewards == pytest.approx([1.05, 0, 0, 1.05, 1.05, 0])
    ids, mask, logprobs = response(made, row=5)
    assert (len(ids), mask, logprobs) == (1, [0], [0.0])


async def test_every_figure_counts_its_own(make_config: Callable[..., Any]) -> None:
    scripts = {
        "memory": [code("x = bytearray(1 << 30)"), "I do not know."],
        "output": [code("while True: print('so' * 1000)"), ANSWER],
        "malformed": [code(""), ANSWER],
        "fine": [code("print(6 * 7)"), ANSWER],
    }

    def script(text: str, number: int) -> Any:
        return scripts[next(name for name in scripts if f"({name})" in text)][number]

    config = make_config(sandbox={"memory_mb": 64, "max_output_bytes": 4096})
    questions = [[{"role": "user", "content": f"What is 6 * 7? ({name})"}] for name in scripts]
    made = await Worker(config, script).go(len(scripts), raw_prompt=questions)
    names = ("answered", "turns", "tool_calls", "feedback")
    assert {name: made.non_tensor_batch[name].tolist() for name in names} == {
        "answered": [0, 1, 1, 1],
        "turns": [2, 2, 2, 2],
        "tool_calls": [1, 1, 0, 1],
        "feedback": [0, 0, 1, 0],
    }
    # Without a memory cgroup, running out of memory is an error of the program.
    failures = (made.non_tensor_batch["other_failures"] + made.non_tensor_batch["errors"]).tolist()
    assert (failures, made.non_tensor_batch["other_failures"][1]) == ([1, 1, 0, 0], 1)


async def test_an_invented_output_is_counted(make_config: Callable[..., Any]) -> None:
    invented = f"{call('print(6 * 7)')}\n<tool_response>\n41\n</tool_response>\nSo \\boxed{{41}}"
    made = await Worker(make_config(protocol="tool_calls"), [invented, "\\boxed{42}"]).go()
    assert (made.non_tensor_batch["fabricated"].tolist(), made.non_tensor_batch["acc"].tolist()) == ([1.0], [1.0])


async def test_what_the_servers_say_of_themselves_goes_on(make_config: Callable[..., Any]) -> None:
    from verl.workers.rollout.replica import TokenOutput

    worker = Worker(make_config(), [])

    def turn(text: str, preempted: int, first: int, last: int) -> TokenOutput:
        ids = worker.tokenizer.encode(text, add_special_tokens=False)
        steps = {"min_global_steps": first, "max_global_steps": last}
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), num_preempted=preempted, extra_fields=steps)

    worker.serve([turn(code("1"), 1, 4, 5), turn(code("2"), 2, 5, 7), turn(ANSWER, 0, 6, 6)])
    made = await worker.go()
    assert made.meta_info["metrics"][0]["num_preempted"] == 3
    assert made.non_tensor_batch["min_global_steps"].tolist() == [4]
    assert made.non_tensor_batch["max_global_steps"].tolist() == [7]


async def test_the_models_own_room_is_kept(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config(), [ANSWER])
    await worker.go()
    n = len(worker.servers.requests[0].prompt_ids)
    worker = Worker(make_config(f"actor_rollout_ref.rollout.max_model_len={n + 50}"), ["so " * 400])
    made = await worker.go()
    assert worker.servers.requests[0].sampling_params["max_tokens"] == 49
    assert made.non_tensor_batch["cut_by_length"].tolist() == [1.0]


async def test_workers_of_a_node_share_its_cores(make_config: Callable[..., Any]) -> None:
    cores = max(2, os.cpu_count() or 1)
    config = make_config("trainer.nnodes=2", f"actor_rollout_ref.rollout.agent.num_workers={2 * cores}")
    await Worker(config, [code("print(6 * 7)"), ANSWER]).go()
    assert shared_sandbox(SandboxConfig(zygotes=1, max_concurrency=4, standby=2)).own is not None


async def test_options_of_the_chat_template_reach_it(make_config: Callable[..., Any]) -> None:
    worker = Worker(make_config("+data.apply_chat_template_kwargs.chat_template='Mine'"), [ANSWER])
    await worker.go()
    assert worker.tokenizer.decode(worker.servers.requests[0].prompt_ids) == "Mine"


async def test_without_logprobs_there_are_none(make_config: Callable[..., Any]) -> None:
    from ray.exceptions import RayActorError

    def script(text: str, number: int) -> Any:
        return RayActorError() if "(lost)" in text else ANSWER

    config = make_config("actor_rollout_ref.rollout.calculate_log_probs=false", max_resumes=0)
    questions = [[{"role": "user", "content": f"What is 6 * 7? {which}"}] for which in ("(whole)", "(lost)")]
    made = await Worker(config, script).go(2, raw_prompt=questions)
    assert "rollout_log_probs" not in made.batch


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"protokol": "code_tags"}, "unknown key 'protokol'"),
        ({"protocol": "nonsense"}, "protocol"),
        ({"sandbox": {"timeout": 3}}, "sandbox.timeout"),
        ({"reward": "no_such_package:table"}, "cannot be imported"),
        ({"max_observation_tokens": 1}, "observation"),
    ],
)
async def test_a_mistake_in_the_entry_is_an_error_at_once(
    make_config: Callable[..., Any], keys: dict[str, Any], said: str
) -> None:
    worker = Worker(make_config(**keys), [ANSWER])
    with pytest.raises(Exception, match=said) as caught:
        await worker.go()
    fault: BaseException | None = caught.value
    while fault is not None and not isinstance(fault, ConfigurationError):
        fault = fault.__cause__
    assert isinstance(fault, ConfigurationError)


async def test_blocks_can_share_an_interpreter(make_config: Callable[..., Any]) -> None:
    turns = [code("x = 6 * 7"), code("print(x)"), ANSWER]
    worker = Worker(make_config(interpreter="session"), turns)
    made = await worker.go()
    assert made.non_tensor_batch["errors"].tolist() == [0.0]
    assert worker.tokenizer.decode(response(made)[0]).count(SHOWN_42) == 1


async def test_rewards_of_ones_own(make_config: Callable[..., Any]) -> None:
    made = await Worker(make_config(reward="retool_env.reward:paper"), [ANSWER]).go()
    assert made.batch["rm_scores"].sum() == 1.0


async def test_a_server_that_ignores_the_limits_breaks_nothing(make_config: Callable[..., Any]) -> None:
    """It writes on past a block and past the room there is: that is dropped."""
    from verl.workers.rollout.replica import TokenOutput

    worker = Worker(make_config("actor_rollout_ref.rollout.response_length=96"), [])
    turn = f"{code('print(6 * 7)')}\n<interpreter>\n41\n</interpreter>\n" + "so " * 200
    ids = worker.tokenizer.encode(turn, add_special_tokens=False)
    output = TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed")
    worker.serve([output] * 50)
    made = await worker.go()
    sampled, mask, _ = response(made)
    assert len(sampled) <= 96
    text = worker.tokenizer.decode(sampled)
    assert text.startswith(code("print(6 * 7)") + SHOWN_42)
    assert "41" not in text
    assert mask[0] == 1


async def test_trajectories_can_be_recorded(make_config: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "records"
    made = await Worker(make_config(record=str(folder)), [code("print(6 * 7)"), ANSWER]).go()
    assert made.non_tensor_batch["acc"].tolist() == [1.0]
    [file] = folder.iterdir()
    [record] = read_jsonl(file)
    assert record.outcome is not None
    assert record.outcome.correct
    assert len(record.turns) == 2


async def test_slow_code_does_not_serialise(make_config: Callable[..., Any]) -> None:
    """64 attempts whose code waits take little longer than instant code: less than in any pool of eight threads."""
    wait_s = 2
    took = {}
    for source in ("print(42)", f"import time; time.sleep({wait_s}); print(42)"):
        worker = Worker(make_config(sandbox={"timeout_s": 30, "max_concurrency": 64}), [code(source), ANSWER])
        await worker.go()  # starts the sandbox
        started = time.monotonic()
        made = await worker.go(64)
        took[source] = time.monotonic() - started
        assert made.non_tensor_batch["acc"].tolist() == [1.0] * 64
    instant, slow = took.values()
    assert slow - instant < 64 * wait_s / 8
