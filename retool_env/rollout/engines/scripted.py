"""``ScriptedEngine``: turns from a script, with real tokens. For tests and benchmarks of everything but a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from retool_env.errors import PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, cut_at_stop
from retool_env.tokenizer import TokenCodec

Turn = str | Sequence[int] | Generation | BaseException
"""What the script has for one call: a text or ids to be "sampled", a generation as it is, or something to raise."""


class ScriptedEngine:
    """Gives the turns of a script, one for each call, the way an engine would.

    A text is encoded and an end token put after it. Tokens are then given out until one completes a stop string (which
    may leave further characters in that token), until the first end token, or until ``max_tokens``.

    Attributes:
        requests: What was asked: the prompt's ids and the parameters of each call.
    """

    def __init__(
        self,
        codec: TokenCodec,
        turns: Iterable[Turn] | Callable[[Sequence[int], GenerateParams], Turn],
        *,
        delay_s: Callable[[int], float] | None = None,
    ):
        """Makes the engine.

        Args:
            codec: Encodes the texts.
            turns: The turns in the order of the calls; or a function that makes the turn for a call.
            delay_s: From a number of tokens to the seconds that generating them takes; no time if None.
        """
        self._codec = codec
        self._turns = turns if callable(turns) else iter(turns)
        self._delay_s = delay_s
        self.requests: list[tuple[list[int], GenerateParams]] = []

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Gives the next turn.

        Raises:
            PolicyError: The script is at its end.
        """
        self.requests.append((list(prompt_ids), params))
        turn = self._turns(prompt_ids, params) if callable(self._turns) else next(self._turns, None)
        if turn is None:
            raise PolicyError(f"scripted engine: the script has no turn for call {len(self.requests)}")
        if isinstance(turn, BaseException):
            raise turn
        generation = turn if isinstance(turn, Generation) else self._sample(turn, params)
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s(len(generation.ids or ())))
        return generation

    async def aclose(self) -> None:
        """Does nothing."""

    def _sample(self, turn: str | Sequence[int], params: GenerateParams) -> Generation:
        codec = self._codec
        end = codec.tokenizer.eos_token_id
        ids = [*codec.encode(turn), end] if isinstance(turn, str) else list(turn)
        if end in ids:
            ids = ids[: ids.index(end) + 1]
        text, stop = cut_at_stop(codec.decode(ids), params.stop)
        if stop is not None:
            ids = ids[: codec.count_kept(ids, text)]
        length = len(ids) > params.max_tokens
        if length:
            ids = ids[: params.max_tokens]
            text, stop = codec.decode(ids), None
        logprobs = [-0.001 * (place + 1) for place in range(len(ids))]
        return Generation(ids, text, logprobs, "length" if length else "stop", stop)
