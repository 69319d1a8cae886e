"""``Engine``: what generates the turns of an attempt, token ids in and token ids out."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast, get_args

from retool_env.errors import PolicyError
from retool_env.protocol.base import Finish, Message
from retool_env.rollout.policy import Conversation

_MAX_ID: Final = 2**31 - 1


class TurnLostError(PolicyError):
    """The fault of the engine or of the way to it: the turn under way is lost, and can be generated again.

    Raised for a connection that breaks, a time-out or a server that fails; not where it refuses what it is asked, which
    would be refused again.
    """


@dataclass(frozen=True, slots=True)
class GenerateParams:
    """How to generate one turn.

    Attributes:
        max_tokens: Most tokens of the turn.
        stop: Strings that end it; they belong to its text.
        temperature: Sampling temperature.
        top_p: Nucleus of the distribution that is sampled.
        top_k: How many of the likeliest tokens are sampled; None for all.
        seed: Fixes the sampling where the engine can; None for none.
        extra: Further parameters in the engine's own words.
        trajectory_id: The same for all turns of an attempt, so that they can go to the server that has its prefix.
        conversation: The attempt at text level, for engines that take no token ids.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    trajectory_id: str = ""
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One turn that an engine generated.

    Attributes:
        ids: The sampled ids, an end token included, and whatever ran past a stop string. None from an engine that does
            not tell: its attempts cannot be trained on.
        text: The turn's text: without control tokens, cut after the stop string.
        logprobs: The logprob of each id, as the model had it; None if the engine does not tell.
        finish_reason: How generation stopped. ``"abort"``: the engine gave up on the turn, which is then lost.
        stop_reason: The stop string that ended the turn, where the engine says so; a token's id or None otherwise.
        message: The turn as the chat message that a server gave, where it parses tool calls itself.

    Raises:
        PolicyError: The fields contradict each other, which is the engine's fault.
    """

    ids: Sequence[int] | None
    text: str
    logprobs: Sequence[float] | None = None
    finish_reason: Finish = "stop"
    stop_reason: str | int | None = None
    message: Message | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise PolicyError(f"engine: a turn's text must be a str, got {type(self.text).__name__}")
        if self.finish_reason not in get_args(Finish):
            raise PolicyError(f"engine: unknown finish_reason {self.finish_reason!r}")
        if self.ids is not None:
            check_ids(self.ids)
        if self.logprobs is None:
            return
        try:
            n, finite = len(self.logprobs), all(map(math.isfinite, self.logprobs))
        except TypeError as error:
            raise PolicyError(f"engine: logprobs must be numbers: {error}") from error
        if self.ids is None or n != len(self.ids):
            n_ids = "no" if self.ids is None else len(self.ids)
            raise PolicyError(f"engine: {n_ids} ids and {n} logprobs; there must be one for each id")
        if not finite:
            raise PolicyError("engine: a logprob is not a finite number")


class Engine(Protocol):
    """Anything that generates turns. One object serves many attempts at once, of one event loop.

    One that keeps something for each attempt may have a method ``release(trajectory_id)``, which is called when the
    attempt has ended.
    """

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn. If the call is cancelled, the engine stops generating.

        Args:
            prompt_ids: All tokens so far.
            params: How to generate.

        Raises:
            TurnLostError: The turn is lost and can be generated again.
            PolicyError: The engine refuses, or its answer makes no sense.
        """
        ...

    async def aclose(self) -> None:
        """Frees connections and threads; the engine is not used afterwards."""
        ...


def check_ids(ids: object) -> None:
    """Raises PolicyError if these cannot be token ids."""
    try:
        numbers = list(map(operator.index, cast("Sequence[int]", ids)))
    except TypeError as error:
        raise PolicyError(f"engine: token ids must be whole numbers: {error}") from error
    if numbers and (min(numbers) < 0 or max(numbers) > _MAX_ID):
        raise PolicyError(f"engine: a token id is out of range: {min(numbers)} to {max(numbers)}")


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Returns the text through the stop string that ends first, and which it is; all of it and None without one."""
    found = [(at + len(string), string) for string in stop if (at := text.find(string)) >= 0]
    if not found:
        return text, None
    end, string = min(found)
    return text[:end], string
