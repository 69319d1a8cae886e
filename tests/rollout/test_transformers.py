"""``TransformersEngine`` with a real tiny model of random weights, and with a small one that solves problems."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from retool_env.cli import app
from retool_env.config import EpisodeConfig
from retool_env.errors import ConfigurationError
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptConfig, attempt, make_codec
from retool_env.rollout.engines import GenerateParams, TransformersEngine
from retool_env.rollout.engines.base import cut_at_stop
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget
from retool_env.trajectory import read_jsonl

from ..small_model import PROBLEMS, TEMPLATE, folder, need  # noqa: TID252 - `tests` is on no path
from ..tokenizers import load  # noqa: TID252
from .whole import check_replay, check_tokens

pytestmark = pytest.mark.torch

PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42")


@pytest.fixture
def codec() -> TokenCodec:
    return make_codec(load("small"), AttemptConfig())


# A model of random weights


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config) -> Any:
    need(pytestconfig, "torch", "transformers")
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        vocab_size=len(load("small")), max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, **sizes
    )
    # Large weights, so that the tokens' probabilities differ.
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)
    return model


@pytest.fixture
async def local(model: Any, codec: TokenCodec) -> Any:
    engine = TransformersEngine(model, codec)
    yield engine
    await engine.aclose()


GREEDY = GenerateParams(max_tokens=40, temperature=0.0)


@pytest.mark.filterwarnings("error")
async def test_greedy_tokens_and_their_logprobs_are_the_models(local: Any, model: Any, codec: TokenCodec) -> None:
    import torch

    prompt = codec.encode("What is 6 * 7?")
    generation = await local.generate(prompt, GREEDY)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    assert generation.ids == expected[0, len(prompt) :].tolist()[: len(generation.ids)]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + list(generation.ids)])).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    at = range(len(prompt) - 1, len(prompt) - 1 + len(generation.ids))
    replayed = [float(logprobs[place, id]) for place, id in zip(at, generation.ids, strict=True)]
    assert list(generation.logprobs) == pytest.approx(replayed, abs=1e-3)


async def test_a_turn_ends_at_a_stop_string_a_length_or_an_end_token(local: Any, codec: TokenCodec) -> None:
    prompt = codec.encode("What is 6 * 7?")
    whole = await local.generate(prompt, GREEDY)
    assert (whole.finish_reason, len(whole.ids)) == ("length", 40)
    # Some visible text in the middle, taken for a stop string.
    place = next(n for n in range(10, 40) if codec.decode(whole.ids[n : n + 1]).strip("\ufffd \n"))
    stop = codec.decode(whole.ids[place : place + 1])
    stopped = await local.generate(prompt, GenerateParams(max_tokens=40, temperature=0.0, stop=(stop,)))
    text, _ = cut_at_stop(whole.text, (stop,))
    assert (stopped.finish_reason, stopped.stop_reason, stopped.text) == ("stop", stop, text)
    assert stopped.ids == list(whole.ids)[: len(stopped.ids)]
    assert codec.decode(stopped.ids[:-1]).find(stop) < 0
    local._ends = frozenset([whole.ids[5]])
    ended = await local.generate(prompt, GREEDY)
    assert (ended.finish_reason, ended.stop_reason, ended.ids[-1]) == ("stop", whole.ids[5], whole.ids[5])


async def test_a_seed_fixes_a_turn_and_sampling_is_bounded(local: Any, codec: TokenCodec) -> None:
    prompt = codec.encode("What is 6 * 7?")
    turns = [await local.generate(prompt, GenerateParams(max_tokens=20, seed=seed)) for seed in (1, 1, 2)]
    assert turns[0] == turns[1] != turns[2]
    greedy = await local.generate(prompt, GREEDY)
    for one in ({"top_k": 1}, {"top_p": 1e-9}):
        assert (await local.generate(prompt, GenerateParams(max_tokens=20, **one))).ids == list(greedy.ids)[:20]
    with pytest.raises(ConfigurationError, match="min_p"):
        await local.generate(prompt, GenerateParams(max_tokens=20, extra={"min_p": 0.1}))


async def test_a_cancelled_turn_stops_and_a_waiting_one_never_starts(local: Any, codec: TokenCodec) -> None:
    prompt = codec.encode("What is 6 * 7?")
    endless = GenerateParams(max_tokens=1_000_000, temperature=0.0)
    tasks = [asyncio.create_task(local.generate(prompt, endless)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert len((await local.generate(prompt, GenerateParams(max_tokens=3, temperature=0.0))).ids) == 3


async def test_an_attempt_with_a_model_in_this_process(local: Any, codec: TokenCodec, tier_sandbox: Sandbox) -> None:
    config = AttemptConfig(
        episode=EpisodeConfig(),
        temperature=1.0,
        seed=1,
        budget={"response": 60},  # type: ignore[arg-type]
    )
    result = await attempt(PROBLEM, local, codec, tier_sandbox, config)
    assert result.outcome.ended in ("max_length", "no_action", "incomplete")
    assert 0 < len(result.response_ids) <= 60
    assert result.response_mask == [1] * len(result.response_ids)
    assert result.tokens.has_logprobs


# A small model that solves problems


@pytest.fixture(scope="module")
def smollm2(pytestconfig: pytest.Config) -> Iterator[Any]:
    need(pytestconfig, "torch", "transformers")
    import torch
    from transformers import AutoModelForCausalLM

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(folder(pytestconfig), dtype=torch.float32)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def greedy() -> AttemptConfig:
    return AttemptConfig(
        episode=EpisodeConfig(prompt_template=TEMPLATE, max_turns=4),
        temperature=0.0,
        budget=TokenBudget(context=2048, response=512, turn=120),
    )


@pytest.fixture(scope="module")
def smollm2_codec(pytestconfig: pytest.Config, greedy: AttemptConfig) -> TokenCodec:
    from transformers import AutoTokenizer

    return make_codec(AutoTokenizer.from_pretrained(folder(pytestconfig)), greedy)


@pytest.fixture
async def small(smollm2: Any, smollm2_codec: TokenCodec) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(smollm2, smollm2_codec)
    yield engine
    await engine.aclose()


@pytest.fixture(scope="module")
def sandbox(start_sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    with start_sandbox(tier="auto", timeout_s=20.0) as sandbox:
        yield sandbox


def forward(model: Any, ids: Sequence[int]) -> list[float]:
    """Returns the logprob of each id but the first, from one plain forward pass."""
    import torch

    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), dim=-1)
    return [float(logprobs[place, id]) for place, id in enumerate(ids[1:])]


async def test_attempts_of_a_small_model_are_its_own_tokens(
    small: TransformersEngine, smollm2: Any, smollm2_codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    results = await asyncio.gather(
        *(attempt(problem, small, smollm2_codec, sandbox, greedy) for problem in PROBLEMS[:2])
    )
    assert small.context == 8192
    assert sum(result.outcome.correct for result in results) >= 1
    for result in results:
        assert not result.fault
        check_tokens(result)
        assert check_replay(result, lambda ids: forward(smollm2, ids), 1e-3) > 10


async def test_a_stop_string_may_end_inside_a_token(small: TransformersEngine, smollm2_codec: TokenCodec) -> None:
    prompt = smollm2_codec.encode("Twelve months: January, February, March, April, May, June, July,")
    whole = await small.generate(prompt, GenerateParams(max_tokens=12, temperature=0.0))
    place = next(n for n, id in enumerate(whole.ids or ()) if len(smollm2_codec.decode([id]).strip()) > 4)
    before = smollm2_codec.decode(list(whole.ids or ())[: place + 1])
    stop = before[-5:-2]
    stopped = await small.generate(prompt, GenerateParams(max_tokens=12, temperature=0.0, stop=(stop,)))
    assert (stopped.finish_reason, stopped.stop_reason, stopped.text) == ("stop", stop, before[:-2])
    assert stopped.ids == list(whole.ids or ())[: place + 1]


async def test_the_event_loop_runs_on_while_the_model_generates(
    small: TransformersEngine, smollm2_codec: TokenCodec
) -> None:
    task = asyncio.create_task(small.generate(smollm2_codec.encode("1, 2, 3,"), GenerateParams(max_tokens=20)))
    n_ticks = 0
    while not task.done():
        await asyncio.sleep(0.001)
        n_ticks += 1
    # A loop that the model holds up for each of its 20 tokens would tick about as often.
    assert n_ticks > 20 * 2
    assert len(task.result().ids or ()) <= 20


async def test_a_cancelled_attempt_frees_the_model(
    small: TransformersEngine, smollm2: Any, smollm2_codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    stepped = threading.Event()
    hook = smollm2.register_forward_hook(lambda *_: stepped.set())
    endless = greedy.model_copy(update={"budget": TokenBudget(context=8192, response=7000)})
    running = asyncio.create_task(
        attempt(Problem(id="p", question="Count to 10000.", answer="1"), small, smollm2_codec, sandbox, endless)
    )
    assert await asyncio.to_thread(stepped.wait, 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    hook.remove()
    n_steps = 0

    def count(*_: Any) -> None:
        nonlocal n_steps
        n_steps += 1

    hook = smollm2.register_forward_hook(count)
    after = await small.generate(smollm2_codec.encode("1, 2, 3,"), GenerateParams(max_tokens=3, temperature=0.0))
    hook.remove()
    assert len(after.ids or ()) == 3
    # Its own three, and at most the one under way of what was cancelled, or the one that was being begun.
    assert n_steps <= 3 + 2


def test_the_demo_with_a_model_in_this_process(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    need(pytestconfig, "torch", "transformers")
    problems, out = tmp_path / "problems.jsonl", tmp_path / "out.jsonl"
    rows = [{"question": problem.question, "answer": problem.answer} for problem in PROBLEMS[:2]]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ["--engine", "transformers", "--model", str(folder(pytestconfig)), "--few-shot"]
    limits = ["--temperature", "0", "--max-tokens", "120"]
    done = CliRunner().invoke(app, ["demo", *model, *limits, "--problems", str(problems), "--out", str(out)])
    assert done.exit_code == 0, done.output
    trajectories = list(read_jsonl(out))
    assert len(trajectories) == 2
    assert all(trajectory.outcome is not None for trajectory in trajectories)
    assert any(trajectory.outcome.correct for trajectory in trajectories if trajectory.outcome is not None)
    assert "in this process, temperature 0" in done.output


def test_the_demo_says_that_a_folder_holds_no_model(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    need(pytestconfig, "torch", "transformers")
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "What is 6 * 7?", "answer": "42"}\n')
    chosen = ["--engine", "transformers", "--model", str(tmp_path), "--problems", str(problems)]
    done = CliRunner().invoke(app, ["demo", *chosen, "--out", str(tmp_path / "out.jsonl")])
    assert done.exit_code == 2
    assert "there is no model in it" in " ".join(done.stderr.split())
    assert not (tmp_path / "out.jsonl").exists()
