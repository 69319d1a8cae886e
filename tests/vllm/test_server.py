"""Attempts through a real vLLM server: its own tokens and logprobs, stop strings, aborts, time-outs, limits."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from retool_env.protocol.base import EndReason
from retool_env.rollout.attempt import AttemptConfig, AttemptResult, attempt
from retool_env.rollout.engines import GenerateParams, Generation, VllmEngine
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec

from ..rollout.whole import check_replay, check_tokens  # noqa: TID252 - `tests` is on no path
from ..small_model import NAME, PROBLEMS  # noqa: TID252

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-2
apis = pytest.mark.parametrize("api", ["completions", "generate"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def make_engine(server: Any, codec: TokenCodec) -> AsyncIterator[Callable[[str], VllmEngine]]:
    """Returns a function that makes an engine for the server, closed in the end."""
    made: list[VllmEngine] = []

    def make(api: str = "completions") -> VllmEngine:
        made.append(VllmEngine(server.url, NAME, api=api, codec=codec))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        await engine.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def solved(
    make_engine: Callable[[str], VllmEngine], codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> dict[str, list[AttemptResult]]:
    """The eight problems, at once, by each API."""
    results = {}
    for api in ("completions", "generate"):
        engine = make_engine(api)
        results[api] = await asyncio.gather(*(attempt(each, engine, codec, sandbox, greedy) for each in PROBLEMS))
    return results


async def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


@apis
async def test_a_small_model_solves_easy_problems_with_code(api: str, solved: dict[str, list[AttemptResult]]) -> None:
    results = solved[api]
    well_formed = [
        result
        for result in results
        if result.outcome.ended is EndReason.ANSWERED
        and result.outcome.interpreter_calls > 0
        and not result.outcome.fabricated
    ]
    said = "\n".join(repr(result.tokens.codec.decode(result.response_ids)) for result in results)
    assert len(well_formed) >= 6, said
    assert sum(result.outcome.correct for result in results) >= 4, said
    assert not any(result.fault for result in results)


@apis
async def test_the_tokens_and_logprobs_are_the_models(
    api: str, solved: dict[str, list[AttemptResult]], server: Any
) -> None:
    for result in solved[api]:
        check_tokens(result)
        assert await asyncio.to_thread(check_replay, result, server.replay, TOLERANCE) > 10


@apis
async def test_a_stop_string_may_end_inside_a_token(
    api: str, make_engine: Callable[[str], VllmEngine], codec: TokenCodec
) -> None:
    prompt = codec.encode("Twelve months: January, February, March, April, May, June, July,")
    params = GenerateParams(max_tokens=20, temperature=0.0)
    engine = make_engine(api)
    whole = await engine.generate(prompt, params)
    # The middle of some token: no token ends where the stop string does.
    place = next(n for n, id in enumerate(whole.ids or ()) if len(codec.decode([id]).strip()) > 4)
    before = codec.decode(whole.ids[: place + 1])  # type: ignore[index]
    stop = before[-5:-2]
    stopped = await engine.generate(prompt, GenerateParams(max_tokens=20, temperature=0.0, stop=(stop,)))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.text == before[:-2]
    assert stopped.ids == list(whole.ids or ())[: place + 1]
    assert len(stopped.logprobs or ()) == place + 1


@apis
async def test_a_turn_ends_at_its_length(api: str, make_engine: Callable[[str], VllmEngine], codec: TokenCodec) -> None:
    generation = await make_engine(api).generate(codec.encode("1, 2, 3,"), GenerateParams(max_tokens=7))
    assert (generation.finish_reason, generation.stop_reason) == ("length", None)
    assert len(generation.ids or ()) == len(generation.logprobs or ()) == 7
    assert generation.text == codec.decode(generation.ids or ())


@apis
async def test_what_is_sampled_does_not_depend_on_the_servers_defaults(
    api: str, make_engine: Callable[[str], VllmEngine], codec: TokenCodec
) -> None:
    # The server was started with a top_k of 1, as a model's generation_config.json may have one: turns would be equal.
    engine, prompt = make_engine(api), codec.encode("My favourite number is")
    turns = [await engine.generate(prompt, GenerateParams(max_tokens=12, seed=seed)) for seed in (1, 2, 3, 1)]
    assert len({turn.text for turn in turns}) == 3
    assert turns[0].ids == turns[3].ids


@apis
async def test_a_cancelled_turn_stops_on_the_server(
    api: str, make_engine: Callable[[str], VllmEngine], codec: TokenCodec, server: Any
) -> None:
    endless = GenerateParams(max_tokens=1900, temperature=1.0, extra={"ignore_eos": True})
    task = asyncio.create_task(make_engine(api).generate(codec.encode("Once upon a time"), endless))
    await until(lambda: server.metric("num_requests_running") == 1, "the turn runs")
    before = server.metric("generation_tokens_total")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.metric("num_requests_running") == 0, "the turn is aborted")
    assert server.metric("generation_tokens_total") - before < 1900


class Counting(VllmEngine):
    """Counts the calls."""

    calls = 0

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        self.calls += 1
        return await super().generate(prompt_ids, params)


async def test_a_turn_that_takes_too_long_is_generated_again(
    server: Any, solved: dict[str, list[AttemptResult]], codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    engine = Counting(server.url, NAME)
    patient = greedy.model_copy(update={"turn_timeout_s": 5.0, "resume_pause_s": 0.0, "max_resumes": 50})
    with server.frozen():
        task = asyncio.create_task(attempt(PROBLEMS[0], engine, codec, sandbox, patient))
        await until(lambda: engine.calls == 2, "the first call timed out")
        server.thaw()
        result = await task
    await engine.aclose()
    assert result.resumes >= 1
    assert not result.fault
    assert result.tokens.ids == solved["completions"][0].tokens.ids
    check_tokens(result)
    # What was given up does not run on.
    await until(lambda: server.metric("num_requests_running") == 0, "nothing runs")
