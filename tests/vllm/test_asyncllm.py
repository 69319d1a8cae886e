"""Attempts through vLLM's own asynchronous engine in this process, as OpenRLHF holds it."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from retool_env.errors import PolicyError
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptConfig, AttemptResult, attempt
from retool_env.rollout.engines import AsyncVllmEngine, GenerateParams, Generation, TurnLostError
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec

from ..rollout.whole import check_replay, check_tokens  # noqa: TID252 - `tests` is on no path
from ..small_model import PROBLEMS  # noqa: TID252

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SLEEP_S = 8
CONTEXT = 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(model: Path) -> AsyncIterator[Any]:
    from .server import environment

    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", str(folder))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        options = AsyncEngineArgs(
            model=str(model),
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=8,
            distributed_executor_backend="uni",
        )
        llm = AsyncLLM.from_engine_args(options)
        yield llm
        llm.shutdown()
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(llm: Any) -> AsyncIterator[AsyncVllmEngine]:
    engine = AsyncVllmEngine(llm)
    yield engine
    await engine.aclose()


async def replay(llm: Any, ids: Sequence[int]) -> list[float]:
    """Returns the logprob of each id but the first, from one forward pass."""
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    async for output in llm.generate({"prompt_token_ids": list(ids)}, asked, "replay"):
        found = output.prompt_logprobs
    return [each[id].logprob for id, each in zip(ids[1:], found[1:], strict=True)]


async def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


async def test_attempts_through_the_engine_have_its_tokens_and_logprobs(
    engine: AsyncVllmEngine, llm: Any, codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    problems = PROBLEMS[:4]
    results = await asyncio.gather(*(attempt(each, engine, codec, sandbox, greedy) for each in problems))
    assert sum(result.outcome.correct for result in results) >= 2
    for result in results:
        assert not result.fault
        check_tokens(result)
        replayed = await replay(llm, result.tokens.ids)
        assert check_replay(result, lambda ids, replayed=replayed: replayed, 1e-2) > 10  # type: ignore[misc]


class Watched:
    """An engine that notes when a call began and ended, by trajectory."""

    def __init__(self, engine: AsyncVllmEngine):
        self._engine = engine
        self.calls: list[tuple[str, float, float]] = []
        self.first = asyncio.Event()

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        began = time.monotonic()
        generation = await self._engine.generate(prompt_ids, params)
        self.calls.append((params.trajectory_id, began, time.monotonic()))
        self.first.set()
        return generation

    async def aclose(self) -> None:
        pass


async def test_slow_code_in_one_attempt_does_not_hold_up_the_others(
    engine: AsyncVllmEngine, codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    watched = Watched(engine)
    # The shots' code sleeps, and so does the model's.
    template = greedy.episode.prompt_template
    assert template is not None
    sleepy = template.replace("```python\n", f"```python\nfrom time import sleep\nsleep({SLEEP_S})\n")
    slow_rules = greedy.model_copy(update={"episode": greedy.episode.model_copy(update={"prompt_template": sleepy})})

    async def solve(problem: Problem, config: AttemptConfig, name: str) -> AttemptResult:
        return await attempt(problem, watched, codec, sandbox, config, trajectory_id=name)

    slow = asyncio.create_task(solve(PROBLEMS[0], slow_rules, "slow"))
    await watched.first.wait()
    others = [asyncio.create_task(solve(each, greedy, each.id)) for each in PROBLEMS[1:3]]
    result, *_ = await asyncio.gather(slow, *others)

    [execution] = result.record.turns[0].results
    assert execution.wall_s >= SLEEP_S, "the model did not copy the sleep from the shots"
    (_, _, began), (_, ended, _) = (call for call in watched.calls if call[0] == "slow")
    meanwhile = [call for call in watched.calls if call[0] != "slow" and began < call[2] < ended]
    # Nearly all of the others' turns; one that waited for the slow program would end none.
    assert len(meanwhile) / (len(watched.calls) - 2) >= 0.5


async def test_a_cancelled_attempt_aborts_its_request(
    engine: AsyncVllmEngine, llm: Any, codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    endless = greedy.model_copy(update={"sampling": {"ignore_eos": True, "min_tokens": 119}})
    task = asyncio.create_task(attempt(PROBLEMS[0], engine, codec, sandbox, endless))
    await until(lambda: llm.output_processor.get_num_unfinished_requests() == 1, "the turn runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: llm.output_processor.get_num_unfinished_requests() == 0, "the turn is aborted")
    generation = await engine.generate(codec.encode("1, 2, 3,"), GenerateParams(max_tokens=5))
    assert (len(generation.ids or ()), generation.finish_reason) == (5, "length")


async def test_what_the_engine_refuses_is_no_lost_turn(engine: AsyncVllmEngine, codec: TokenCodec) -> None:
    prompt = codec.encode("1, 2, 3,")
    for ids, params in (
        (prompt * CONTEXT, GenerateParams(max_tokens=5)),
        (prompt, GenerateParams(max_tokens=5, extra={"top_p": 7.0})),
        (prompt, GenerateParams(max_tokens=5, extra={"no_such_parameter": 1})),
    ):
        with pytest.raises(PolicyError, match="refuses") as caught:
            await engine.generate(ids, params)
        assert type(caught.value) is PolicyError


async def test_a_dead_engine_has_lost_the_turn(engine: AsyncVllmEngine, codec: TokenCodec) -> None:
    """The last test here: nothing can be generated after it."""
    import psutil

    cores = [each for each in psutil.Process().children(recursive=True) if "EngineCore" in each.name()]
    assert cores
    endless = GenerateParams(max_tokens=900, temperature=1.0, extra={"ignore_eos": True})
    task = asyncio.create_task(engine.generate(codec.encode("Once upon a time"), endless))
    await asyncio.sleep(0)
    for core in cores:
        core.kill()
    with pytest.raises(TurnLostError, match="EngineDeadError"):
        await task
    with pytest.raises(TurnLostError, match="EngineDeadError"):
        await engine.generate(codec.encode("Once upon a time"), endless)
