"""``ScriptedEngine``: stands where OpenRLHF's rollout actor does, and answers as its vLLM would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from retool_env.rollout.engines.base import cut_at_stop

Turn = str | SimpleNamespace | BaseException
Script = Callable[[str, int], Turn]
"""What is written next, given the text so far and the number of the turn in its attempt."""


@dataclass
class Request:
    """A request as it came in."""

    prompt_ids: list[int]
    sampling_params: Any
    number: int
    gave: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class ScriptedEngine:
    """Writes turns from a script: their ids, an end token after each, cut at stop strings and ``max_tokens``."""

    def __init__(self, tokenizer: Any, script: Script | Sequence[Turn]):
        self.tokenizer = tokenizer
        self.requests: list[Request] = []
        self._script = script

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        await asyncio.sleep(0)
        earlier = [each for each in self.requests if prompt_token_ids[: len(each.prompt_ids)] == each.prompt_ids]
        started = [each for each in earlier if len(each.prompt_ids) < len(prompt_token_ids)]
        number = 1 + max((each.number for each in started), default=-1)
        request = Request(list(prompt_token_ids), sampling_params, number)
        self.requests.append(request)
        text = self.tokenizer.decode(prompt_token_ids)
        turn = self._script(text, number) if callable(self._script) else self._script[len(self.requests) - 1]
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, SimpleNamespace):
            return turn
        ids = encode_turn(self.tokenizer, turn, sampling_params.stop or ())
        reason = "length" if len(ids) > sampling_params.max_tokens else "stop"
        return self.answer(request, ids[: sampling_params.max_tokens], reason)

    def answer(self, request: Request, ids: list[int], reason: str) -> Any:
        request.gave = ids
        request.logprobs = [-(request.number + 1) - place / 1024 for place in range(len(ids))]
        given = request.sampling_params.logprobs is not None
        return output(self.tokenizer, ids, request.logprobs if given else None, reason)


def output(tokenizer: Any, ids: Sequence[int], logprobs: Sequence[float] | None, reason: str | None) -> SimpleNamespace:
    """An answer in the form of vLLM's; OpenRLHF asks for text with control tokens in it."""
    pairs = None
    if logprobs is not None:
        pairs = [{id: SimpleNamespace(logprob=value)} for id, value in zip(ids, logprobs, strict=True)]
    turn = SimpleNamespace(token_ids=list(ids), text=tokenizer.decode(ids), logprobs=pairs, finish_reason=reason)
    return SimpleNamespace(outputs=[turn])


def encode_turn(tokenizer: Any, text: str, stop: Sequence[str]) -> list[int]:
    """The ids of a turn that ends at a stop string, or with the end token."""
    kept, found = cut_at_stop(text, stop)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if found is None:
        return [*ids, tokenizer.eos_token_id]
    return next(ids[:n] for n in range(1, len(ids) + 1) if tokenizer.decode(ids[:n]).startswith(kept))


def sampling(**options: Any) -> Any:
    """vLLM's parameters as ``SamplesGenerator`` makes them."""
    from vllm import SamplingParams

    said = {"max_tokens": None, "min_tokens": 1, "skip_special_tokens": False, "logprobs": 1, **options}
    return SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, **said)
