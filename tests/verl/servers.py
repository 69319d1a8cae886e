"""``ScriptedServers``: stands where verl's ``LLMServerClient`` does, and answers as verl's vLLM server would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from retool_env.rollout.engines.base import cut_at_stop

Turn = str | TokenOutput | BaseException | Awaitable[Any]
Script = Callable[[str, int], Turn]
"""What is written next, given the text so far and the number of the turn in its attempt."""


@dataclass
class Request:
    """A request as it came in."""

    request_id: str
    prompt_ids: list[int]
    sampling_params: dict[str, Any]
    more: dict[str, Any]
    gave: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class ScriptedServers:
    """Writes turns from a script: their ids, an end token after each, cut at stop strings and ``max_tokens``."""

    def __init__(self, tokenizer: Any, script: Script | Sequence[Turn], steps: Sequence[int] = (0,)):
        self.tokenizer = tokenizer
        self._steps = steps
        self.start(script)

    def start(self, script: Script | Sequence[Turn]) -> None:
        """Begins a script, and forgets what was asked before."""
        self.requests: list[Request] = []
        self._script = script

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> TokenOutput:
        request = Request(request_id, list(prompt_ids), dict(sampling_params), more)
        number = sum(each.request_id == request_id for each in self.requests)
        self.requests.append(request)
        if callable(self._script):
            turn = self._script(self.tokenizer.decode(prompt_ids), number)
        else:
            turn = self._script[number]
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, TokenOutput):
            return turn
        if isinstance(turn, Awaitable):
            turn = await turn
        ids = self._ids(turn, sampling_params.get("stop") or ())[: sampling_params.get("max_tokens")]
        request.gave = ids
        request.logprobs = [-(number + 1) - place / 1024 for place in range(len(ids))]
        step = self._steps[min(number, len(self._steps) - 1)]
        return TokenOutput(
            token_ids=ids,
            log_probs=request.logprobs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )

    def _ids(self, text: str, stop: Sequence[str]) -> list[int]:
        kept, found = cut_at_stop(text, stop)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if found is None:
            return [*ids, self.tokenizer.eos_token_id]
        return next(ids[:n] for n in range(1, len(ids) + 1) if self.tokenizer.decode(ids[:n]).startswith(kept))
