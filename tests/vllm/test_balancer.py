"""Two real vLLM servers behind a ``Balancer``, one of which is killed in the middle of a run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from retool_env.rollout.attempt import AttemptConfig, attempt
from retool_env.rollout.balancer import Balancer
from retool_env.rollout.engines import VllmEngine
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec

from ..rollout.whole import check_replay, check_tokens  # noqa: TID252 - `tests` is on no path
from ..small_model import NAME, PROBLEMS  # noqa: TID252

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def victim(start_server: Callable[[], Any]) -> Any:
    """A second server, not waited for: it starts beside the first."""
    return start_server()


async def test_no_token_is_lost_or_doubled_when_a_server_dies(
    victim: Any, server: Any, codec: TokenCodec, sandbox: Sandbox, greedy: AttemptConfig
) -> None:
    await asyncio.to_thread(victim.wait)
    balancer = Balancer([VllmEngine(each.url, NAME, max_retries=0) for each in (server, victim)])

    async def solve(number: int) -> Any:
        config = greedy.model_copy(update={"temperature": 0.7, "seed": number})
        return await attempt(PROBLEMS[number % 8], balancer, codec, sandbox, config, number=number)

    tasks = [asyncio.create_task(solve(number)) for number in range(12)]
    while not await asyncio.to_thread(lambda: victim.metric("num_requests_running") > 0):
        assert not all(task.done() for task in tasks), "the run was over too soon"
    assert all(n > 0 for n in balancer.in_flight().values())
    await asyncio.to_thread(victim.kill)
    results = await asyncio.gather(*tasks)
    left = balancer.in_flight()
    await balancer.aclose()

    assert balancer.n_lost > 0
    assert balancer.n_moved > 0
    assert list(left) == [server.url]
    for result in results:
        assert not result.fault
        check_tokens(result)
        await asyncio.to_thread(check_replay, result, server.replay, 1e-2)
    assert sum(result.outcome.correct for result in results) >= 4
