"""``TokenTrajectory``: the tokens of an attempt as the policy saw and sampled them. Append-only; nothing is re-encoded.

What was sampled keeps the very ids it was sampled as, with their logprobs. What is appended for the policy to read (the
end of its turn where it was cut, the chat template's text, a tool's output) is encoded as one string from where the
sampled ids end, and has mask 0. So the ids of a training sample are those the engine computed with, and a sampled token
never drifts into another that spells the same text.

    tokens = TokenTrajectory.open(codec, episode.messages())
    while True:
        generation = await engine.generate(tokens.ids, ...)
        action = episode.read(generation.text, ...)
        tokens.add_turn(generation.ids, generation.logprobs, generation.text, action.kept)
        ...
        tokens.add_text(observation.text)

A trajectory is a walk through a tree: each ``Segment`` holds the tokens it adds and knows what came before, so that
branches share what they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retool_env.config import explain
from retool_env.errors import ConfigurationError
from retool_env.plain import plain_text
from retool_env.protocol.base import Message
from retool_env.tokenizer import TokenCodec

_SEAM_IDS: Final = 64
_FEW_SEAM_IDS: Final = 10
_SEAM_CHARS: Final = 8


class TokenBudget(BaseModel):
    """How many tokens an attempt may have. Frozen. Only observations are ever cut to keep it, never a sampled token.

    Attributes:
        context: Tokens in all, prompt included: what the engine can hold (``max_model_len``). None is no limit.
        response: Tokens after the prompt, sampled and appended.
        turn: Sampled tokens of one turn; a turn that reaches it is cut by length. None is no limit of its own.
        observation: Tokens appended after one turn, wrapper and template included. None is no limit of its own.
        min_turn: A turn is only begun where it can have so many; observations leave as much free.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: int | None = Field(default=None, ge=1)
    response: int = Field(default=16_384, ge=1)
    turn: int | None = Field(default=None, ge=1)
    observation: int | None = Field(default=None, ge=128)
    min_turn: int = Field(default=16, ge=1)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **options):
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise ConfigurationError(explain(error)) from None
            for name in ("response", "context"):
                most = getattr(self, name)
                if most is not None and most < self.min_turn:
                    raise ConfigurationError(
                        f"{name}: {most} tokens are fewer than min_turn, {self.min_turn}: no turn would ever be begun"
                    )


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A piece of a trajectory, and what came before it.

    Attributes:
        kind: Where it is from: the ``"prompt"``, ``"sampled"`` by the policy, or ``"appended"`` for it to read.
        ids: The tokens it adds.
        logprobs: Of the sampled tokens; 0.0 for the others.
        before: The piece before it; None for the prompt.
    """

    kind: Literal["prompt", "sampled", "appended"]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    before: Segment | None


class TokenTrajectory:
    """The tokens of one attempt, or of one branch of it. ``ids``, ``mask`` and ``logprobs`` always have one length.

    Attributes:
        codec: Encodes what is appended.
        budget: How many tokens there may be.
        n_prompt: Tokens of the prompt.
        dropped: Sampled ids that were left out, because the policy wrote on past what belongs to its turn, or closed a
            turn that goes on.
        template_drift: Why the ids are not those of ``apply_chat_template`` of the whole conversation: what the chat
            template now writes differently from what the policy saw, or a sampled token that reaches past its turn.
            Empty where nothing was found. (It compares text: a policy may also sample unusual tokens for it.)
        has_logprobs: The engine gave logprobs for every sampled token; else some are 0.0 for want of them.
        exact: The engine gave the ids it sampled. Otherwise they are its text encoded again, not to be trained on.
    """

    def __init__(
        self,
        codec: TokenCodec,
        prompt: str,
        prompt_ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        budget: TokenBudget | None = None,
    ):
        """Begins with a prompt. ``open`` makes one from chat messages.

        Args:
            codec: Encodes what is appended.
            prompt: The prompt's text.
            prompt_ids: Its ids.
            tools: The tools that the chat template shows.
            budget: How many tokens there may be; the default budget if None.
        """
        self.codec = codec
        self.budget = budget or TokenBudget()
        self.n_prompt = len(prompt_ids)
        self.dropped = 0
        self.template_drift = ""
        self.has_logprobs = True
        self.exact = True
        self._tools = tuple(tools)
        self._text = prompt
        self._turn: tuple[str, int] | None = None  # the last piece is this kept text, so much of its end put back
        self._last = Segment("prompt", tuple(prompt_ids), (0.0,) * len(prompt_ids), None)
        self._length = self.n_prompt
        self._ids = list(prompt_ids)  # branches share it: those of this one are the first `_length`

    @classmethod
    def open(
        cls,
        codec: TokenCodec,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        budget: TokenBudget | None = None,
    ) -> TokenTrajectory:
        """Begins with the messages that open an attempt, as the chat template writes them.

        Raises:
            ConfigurationError: As ``TokenCodec.open``.
        """
        prompt, ids = codec.open(messages, tools)
        return cls(codec, prompt, ids, tools=tools, budget=budget)

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> list[int]:
        """All tokens, prompt first: what the engine continues. A new list."""
        return self._ids[: self._length]

    @property
    def mask(self) -> list[int]:
        """1 for each token that the policy sampled, else 0. A new list."""
        return _mask(self.segments())

    @property
    def logprobs(self) -> list[float]:
        """The logprob of each token that the policy sampled, as the engine gave it, else 0.0. A new list."""
        return _logprobs(self.segments())

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self._ids[: self.n_prompt]

    @property
    def response_ids(self) -> list[int]:
        """The tokens after the prompt."""
        return self._ids[self.n_prompt : self._length]

    @property
    def response_mask(self) -> list[int]:
        """``mask`` of the tokens after the prompt."""
        return _mask(self.segments()[1:])

    @property
    def response_logprobs(self) -> list[float]:
        """``logprobs`` of the tokens after the prompt."""
        return _logprobs(self.segments()[1:])

    @property
    def n_sampled(self) -> int:
        """Tokens that the policy sampled, those that were dropped left out."""
        return sum(len(piece.ids) for piece in self.segments() if piece.kind == "sampled")

    def segments(self) -> list[Segment]:
        """Returns the pieces, the prompt first. Branches have the very same objects where they agree."""
        pieces: list[Segment] = []
        piece: Segment | None = self._last
        while piece is not None:
            pieces.append(piece)
            piece = piece.before
        return pieces[::-1]

    def branch(self) -> TokenTrajectory:
        """Returns another trajectory with the same tokens so far, to be continued on its own. Copies no token."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def room(self) -> int:
        """Returns how many tokens the next turn may have; 0 where it would be fewer than ``min_turn``."""
        budget = self.budget
        left = budget.response - (self._length - self.n_prompt)
        if budget.context is not None:
            left = min(left, budget.context - self._length)
        if left < budget.min_turn:
            return 0
        return left if budget.turn is None else min(left, budget.turn)

    def within_budget(self) -> bool:
        """Whether the latest piece keeps the budget of an observation, and leaves room for a turn."""
        limit = self.budget.observation
        return (limit is None or len(self._last.ids) <= limit) and self.room() > 0

    def add_turn(
        self, ids: Sequence[int] | None, logprobs: Sequence[float] | None, text: str, kept: str | None = None
    ) -> None:
        """Adds what the policy sampled in one turn.

        If nothing was cut, all ids stay: also those that run past a stop string, and the end token. Otherwise they stay
        through the one that holds the last kept character.

        Args:
            ids: The sampled ids. None if the engine does not tell: the text is encoded then, see ``exact``.
            logprobs: One for each id; None if the engine does not tell.
            text: The turn's text as the engine gave it: without control tokens, and cut after a stop string.
            kept: How much of it belongs to the turn (``Action.kept``), with a stop string that the engine dropped. All
                if None.

        Raises:
            ConfigurationError: There is not one finite logprob for each id.
        """
        text = plain_text(text)
        kept = text if kept is None else kept
        if ids is None:
            self.exact = False
            ids, logprobs, text = self.codec.encode_neutral(kept), None, kept
        values = self._checked(ids, logprobs)
        n = len(ids) if kept.startswith(text) else self.codec.count_kept(ids, kept)
        self.dropped += len(ids) - n
        self._push(Segment("sampled", tuple(ids if n == len(ids) else ids[:n]), values[:n], self._last))
        self._text += kept
        self._turn = (kept, len(kept) - len(text))

    def add_text(self, text: str) -> None:
        """Appends an observation that continues the policy's own turn (``Observation.text`` without messages).

        An end token that the policy sampled is dropped: it would close the turn that goes on. A line feed that a
        sampled token already holds is not written twice.
        """
        past, missing = self._seam()
        text = missing + text
        n_twice = next((n for n in range(min(len(past), len(text)), 0, -1) if past.endswith(text[:n])), 0)
        self._drop_ends(None)
        self._append(self.codec.encode_neutral(text[n_twice:]))
        self._text += text

    def add_messages(self, messages: Sequence[Message], n_new: int) -> None:
        """Appends an observation that is chat messages, as the chat template writes them.

        That is the end of the policy's turn (what of it was not sampled), the messages, and the opening of the next
        turn. Tool outputs in the messages must be neutral (``EpisodeConfig.special_tokens``).

        Args:
            messages: The whole conversation (``Episode.messages``).
            n_new: How many of its last messages are new.

        Raises:
            ConfigurationError: As ``TokenCodec.continuation``.
        """
        past, missing = self._seam()
        rest, drift = self.codec.continuation(messages, n_new, self._tools, self._text)
        if past:
            drift = drift or f"a sampled token holds {past!r} past the end of the policy's turn"
        self.template_drift = self.template_drift or drift
        ids = self.codec.encode(missing + rest)
        end = ids[0] if ids and ids[0] in self.codec.control else None
        self._drop_ends(end)
        if end is not None and self._last.kind == "sampled" and self._last.ids[-1:] == (end,):
            del ids[0]
        self._append(ids)
        self._text += rest

    def _append(self, ids: Sequence[int]) -> None:
        self._push(Segment("appended", tuple(ids), (0.0,) * len(ids), self._last))
        self._turn = None

    def _push(self, segment: Segment) -> None:
        if len(self._ids) > self._length:  # a branch has gone on in it
            self._ids = self._ids[: self._length]
        self._ids.extend(segment.ids)
        self._last = segment
        self._length += len(segment.ids)

    def _checked(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> tuple[float, ...]:
        if logprobs is None:
            self.has_logprobs = self.has_logprobs and not ids
            return (0.0,) * len(ids)
        if len(logprobs) != len(ids):
            raise ConfigurationError(f"logprobs: there are {len(ids)} ids and {len(logprobs)} logprobs; one for each")
        values = tuple(map(float, logprobs))
        # A sum is many times quicker to check; finite ones may overflow it.
        if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
            raise ConfigurationError("logprobs: one is not a finite number")
        return values

    def _seam(self) -> tuple[str, str]:
        """Returns what the sampled ids hold past the kept text, and what they lack of it: a dropped stop string."""
        if self._turn is None:
            return "", ""
        kept, n_put_back = self._turn
        end = kept[-_SEAM_CHARS:]
        tail, at = "", -1
        for n in (_FEW_SEAM_IDS, _SEAM_IDS):  # nearly always the few will do
            tail = self.codec.decode(self._last.ids[-n:])
            at = tail.rfind(end)
            if at >= 0:
                break
        if at >= 0:
            return tail[at + len(end) :], ""
        for n in range(1, n_put_back + 1):
            if tail.endswith(kept[: len(kept) - n][-_SEAM_CHARS:]):
                return "", kept[len(kept) - n :]
        return "", ""

    def _drop_ends(self, wanted: int | None) -> None:
        """Drops the control ids at the end of what was sampled, up to the wanted one."""
        last = self._last
        if last.kind != "sampled":
            return
        n = len(last.ids)
        while n and last.ids[n - 1] in self.codec.control and last.ids[n - 1] != wanted:
            n -= 1
        if n == len(last.ids):
            return
        self.dropped += len(last.ids) - n
        self._length -= len(last.ids)
        assert last.before is not None
        self._push(Segment("sampled", last.ids[:n], last.logprobs[:n], last.before))


def _mask(pieces: Sequence[Segment]) -> list[int]:
    mask: list[int] = []
    for piece in pieces:
        mask += [int(piece.kind == "sampled")] * len(piece.ids)
    return mask


def _logprobs(pieces: Sequence[Segment]) -> list[float]:
    logprobs: list[float] = []
    for piece in pieces:
        logprobs += piece.logprobs
    return logprobs
