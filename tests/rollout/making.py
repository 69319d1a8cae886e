"""Attempts made with a script: what the tests of ``attempt`` share."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from retool_env.config import EpisodeConfig
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptConfig, AttemptResult, attempt, make_codec
from retool_env.rollout.engines import ScriptedEngine
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path

PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42")
ANSWER = "<answer>\\boxed{42}</answer>"
SHOWN_42 = "\n<interpreter>\n42\n</interpreter>\n"


def code(source: str) -> str:
    return f"<code>\n{source}\n</code>"


def call(*sources: str) -> str:
    calls = ({"name": "code_interpreter", "arguments": {"code": source}} for source in sources)
    return "\n".join(f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in calls)


def config(*, budget: TokenBudget | None = None, attempt: dict[str, Any] | None = None, **rules: Any) -> AttemptConfig:
    options = {"resume_pause_s": 0.0, **(attempt or {})}
    return AttemptConfig(episode=EpisodeConfig(**rules), budget=budget or TokenBudget(), **options)


class Run:
    """An attempt at the problem, made with a script."""

    def __init__(self, turns: Any, sandbox: Sandbox, name: str = "small", **options: Any):
        self.config = config(**options)
        self.codec: TokenCodec = make_codec(load(name), self.config)
        self.engine = ScriptedEngine(self.codec, turns)
        self._sandbox = sandbox

    async def go(self, problem: Problem = PROBLEM) -> AttemptResult:
        self.result = await attempt(problem, self.engine, self.codec, self._sandbox, self.config)
        return self.result

    def sampled(self, text: str, *, ends: bool) -> list[int]:
        return [*self.codec.encode(text), *([self.codec.tokenizer.eos_token_id] if ends else [])]


async def run(turns: Any, sandbox: Sandbox, **options: Any) -> AttemptResult:
    return await Run(turns, sandbox, **options).go()


async def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Polls a condition of the outside world; fails when it does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


def check(result: AttemptResult) -> None:
    """What holds for every attempt."""
    tokens = result.tokens
    assert len(tokens.ids) == len(tokens.mask) == len(tokens.logprobs) == len(tokens)
    assert result.prompt_ids + result.response_ids == tokens.ids
    assert len(result.response_mask) == len(result.response_logprobs) == len(result.response_ids)
    assert result.record.outcome is not None
    assert result.record.ended == result.outcome.ended
    assert result.reward == result.record.outcome.reward
    assert len(result.record.turns) == result.outcome.turns
