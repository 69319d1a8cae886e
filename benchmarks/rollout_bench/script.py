"""Turns as a model might write them, made and encoded ahead: while the clock runs, the engine only waits."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from retool_env.problems import LazyProblems, Problem
from retool_env.rollout.engines import GenerateParams, Generation
from retool_env.tokenizer import TokenCodec

WORDS = (
    "so we get the sum of all terms n = 12 and then x**2 + 3*x - 7 which is even , since 1/3 < 2/5 ; let me check "
    "whether the remainder modulo 17 repeats , because f(x) = \\frac{x}{x+1} has a pole at -1 . Wait , the case k = 0"
).split()
ANSWER = "144"


@dataclass(frozen=True)
class Lengths:
    """How long turns are, in tokens: log-normal, as those of models are.

    Attributes:
        median: The median.
        sigma: The standard deviation of the logarithm.
        most: No turn is longer.
    """

    median: float = 250.0
    sigma: float = 0.8
    most: int = 4096

    def draw(self, rng: random.Random) -> int:
        """Returns the tokens of a turn."""
        return min(self.most, max(16, round(rng.lognormvariate(math.log(self.median), self.sigma))))


class Problems(LazyProblems):
    """As many as are wanted."""

    _words = " ".join(WORDS * 3)

    def _make(self, index: int) -> Problem:
        return Problem(id=f"bench-{index}", question=f"{index}: {self._words} What is 12 squared?", answer=ANSWER)


class DelayingEngine:
    """Gives turns from a stock, after the time that a server would take; keeps account of its own CPU time.

    What a call of a real server costs is measured apart (``CPU time for a call of a server``).

    An attempt has as many turns with code as its seed says, then an answer.
    """

    def __init__(
        self, codec: TokenCodec, *, lengths: Lengths, calls: Sequence[int], token_s: float, seed: int, stock: int = 256
    ):
        """Makes the stock.

        Args:
            codec: Encodes the texts.
            lengths: Of the turns.
            calls: How many turns with code an attempt has: one of these.
            token_s: Seconds for a token.
            seed: Fixes the stock and the delays.
            stock: Turns that are made of either kind.
        """
        self._rng = random.Random(seed)
        self._calls = calls
        self._token_s = token_s
        self._codes = [self._generation(codec, lengths.draw(self._rng), number) for number in range(stock)]
        self._answers = [self._generation(codec, lengths.draw(self._rng), None) for _ in range(stock)]
        self.cpu_s = 0.0
        self.wait_cost_s = 0.0
        self.lengths: list[int] = []

    async def calibrate(self) -> None:
        """Finds out what a wait costs by itself: mostly, to wake the loop's thread.

        About as many end in a second as in a run, whose loop sleeps most of the time, too.
        """
        if self._token_s == 0.0:
            return
        waits = [asyncio.create_task(asyncio.sleep(2.0 * self._rng.random())) for _ in range(256)]
        await asyncio.sleep(0)  # all have begun
        began = time.thread_time()
        await asyncio.wait(waits)
        self.wait_cost_s = (time.thread_time() - began) / len(waits)

    @property
    def cost_s(self) -> float:
        """CPU seconds of its turns and its waits so far."""
        return self.cpu_s + len(self.lengths) * self.wait_cost_s

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn."""
        began = time.thread_time()
        assert params.conversation is not None
        assert params.seed is not None
        turn = len(params.conversation.exchanges)
        wanted = self._calls[params.seed % len(self._calls)]
        stock = self._codes if turn < wanted else self._answers
        generation = stock[(params.seed // 7 + turn * 31) % len(stock)]
        assert generation.ids is not None
        n_tokens = len(generation.ids)
        self.lengths.append(n_tokens)
        self.cpu_s += time.thread_time() - began
        await asyncio.sleep(n_tokens * self._token_s)
        return generation

    async def aclose(self) -> None:
        """Does nothing."""

    def _generation(self, codec: TokenCodec, n_tokens: int, number: int | None) -> Generation:
        if number is None:
            end = f"\n<answer>\nThe answer is \\boxed{{{ANSWER}}}.\n</answer>"
        else:
            code = f"total = 0\nfor k in range({number + 50}):\n    total += k\nprint(total)"
            end = f"\n<code>\n```python\n{code}\n```\n</code>"
        words: list[str] = []
        ids: list[int] = codec.encode(end)
        while len(ids) < n_tokens:
            words += self._rng.choices(WORDS, k=max(1, (n_tokens - len(ids)) // 2))
            ids = codec.encode(" ".join(words) + end)
        text = " ".join(words) + end
        stop = "</code>" if number is not None else None
        if stop is None:
            ids.append(codec.tokenizer.eos_token_id)
        return Generation(ids, text, [-self._rng.random() for _ in ids], "stop", stop)
