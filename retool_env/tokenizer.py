"""``TokenCodec``: text to token ids and back, with a tokenizer as transformers has them. Imports nothing of theirs.

Two kinds of text are encoded, and never mixed up. What the *chat template* writes may hold control tokens
(``<|im_end|>``). What a *tool* wrote may not: its text is made neutral first, and a control id that is there all the
same, because the tokenizer normalises text, is left out. The tokenizer's own switch (``split_special_tokens``) is not
used: it still knows added tokens such as ``<tool_call>``, and it is a state of the one shared tokenizer, which another
thread may be using for a prompt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from retool_env.errors import ConfigurationError
from retool_env.protocol.base import Message
from retool_env.protocol.observation import neutralize

_STAND_IN: Final = "RetoolStandInForTheLastTurn"
"""Takes the place of a turn in a rendered conversation; no template changes or repeats it."""

_CONTEXT_CHARS: Final = 12
"""Shown before the place where two texts begin to differ."""

_ODD_PROBE: Final = " Ünï ﬁ Ⅸ \t\u00a0\u200b日本 😀 don't  "
"""Text that tokenizers may normalise."""

_PROBE: Final = "\n<interpreter>\n 1,  2 .\n</interpreter>\n"


class Tokenizer(Protocol):
    """What is used of a tokenizer; those of transformers have it."""

    chat_template: Any
    eos_token_id: Any
    added_tokens_decoder: Any

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the ids of a text."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the text of ids."""

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a conversation as the text the model was trained on."""


class _Opening(NamedTuple):
    """A prompt and what it was made of."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    text: str
    ids: tuple[int, ...]


class TokenCodec:
    """Encodes and decodes for the attempts of one configuration. May be shared by any number of them, and by threads.

    Attributes:
        tokenizer: The tokenizer.
        added: Its added-token strings, control tokens and others (``EpisodeConfig.special_tokens`` wants them).
        control: The ids of its control tokens, the end tokens among them. They are no part of a turn's text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tags: Iterable[str] = (), template_options: Mapping[str, Any] | None = None
    ):
        """Looks at the tokenizer.

        Args:
            tokenizer: A tokenizer as transformers has them.
            tags: The protocol's tags (``Protocol.tags``). Where one is an added token, a wrapper may hold its id.
            template_options: Further arguments of the chat template, such as ``{"enable_thinking": False}``.

        Raises:
            ConfigurationError: Text does not come back as it was when it is encoded and decoded, so that no observation
                could be appended faithfully.
        """
        self.tokenizer = tokenizer
        self._backend = _find_backend(tokenizer)
        self._latest: _Opening | None = None
        self._options = dict(template_options or {})
        tokens = {int(id): token for id, token in tokenizer.added_tokens_decoder.items()}
        self.added: tuple[str, ...] = tuple(str(token.content) for token in tokens.values())
        ends = tokenizer.eos_token_id
        self.control: frozenset[int] = frozenset(
            [id for id, token in tokens.items() if token.special] + ([] if ends is None else [int(ends)])
        )
        allowed = set(tags)
        self._markers = tuple(text for text in self.added if text not in allowed and not text.isspace())
        marked = set(self._markers)
        self._forbidden = frozenset(id for id, token in tokens.items() if str(token.content) in marked)
        seen = self.decode(self.encode(_PROBE))
        if seen != _PROBE:
            raise ConfigurationError(
                f"tokenizer: it does not give back the text it encodes ({_PROBE!r} becomes {seen!r}), so that turns "
                "cannot be continued token by token; a byte-level one (Qwen, Llama 3, SmolLM, ...) does"
            )

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of text of ours: of a prompt, or what the chat template wrote. Control tokens count."""
        if self._backend is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        self._backend.encode_special_tokens = False  # a state that other users of the tokenizer change
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_neutral(self, text: str) -> list[int]:
        """Returns the ids of text that a tool wrote; no control token is among them, whatever it wrote."""
        ids = self.encode(neutralize(text, self._markers))
        return ids if self._forbidden.isdisjoint(ids) else [id for id in ids if id not in self._forbidden]

    def decode(self, ids: Sequence[int], *, with_control: bool = False) -> str:
        """Returns the text of ids, without control tokens; a character that is not complete is U+FFFD."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=not with_control))
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=not with_control, clean_up_tokenization_spaces=False)
        )

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[str, list[int]]:
        """Returns the prompt that opens an attempt, as text and as ids.

        Without a chat template it is the contents of the messages, a blank line between them, with the control tokens
        that the tokenizer puts around a text.

        Raises:
            ConfigurationError: There are tools and no chat template to show them, or the template refuses the messages.
        """
        if self.has_template:
            latest = self._latest  # attempts at one problem come one after the other
            if latest is None or (latest.messages, latest.tools) != (list(messages), list(tools)):
                text = self._render(messages, tools)
                latest = _Opening(list(map(dict, messages)), list(map(dict, tools)), text, tuple(self.encode(text)))
                self._latest = latest
            return latest.text, list(latest.ids)
        if tools:
            raise ConfigurationError(
                "tokenizer: it has no chat template, which protocol 'tool_calls' needs to show tools; "
                "set tokenizer.chat_template, or use protocol 'code_tags'"
            )
        text = "\n\n".join(str(message["content"]) for message in messages)
        return text, list(self.tokenizer.encode(text))

    def continuation(
        self, messages: Sequence[Message], n_new: int, tools: Sequence[Mapping[str, Any]], so_far: str
    ) -> tuple[str, str]:
        """Returns what the chat template writes after the policy's last turn, and why that is not the plain rest.

        Where the template is append-only, the whole conversation begins with the text so far, and the rest is what is
        wanted. Where it is not (it strips the thinking from earlier turns, or white space), the rest is what it writes
        after a stand-in for the last turn.

        Args:
            messages: The conversation; the policy's last turn comes right before the new messages.
            n_new: How many messages follow it.
            tools: As at the opening.
            so_far: The text the policy has seen and written.

        Returns:
            The text to append: the end of the policy's turn, the new messages and the opening of the next turn. And
            where and how the template's conversation differs from the text so far; empty where it does not.

        Raises:
            ConfigurationError: The template refuses the messages, or leaves out the policy's turns.
        """
        whole = self._render(messages, tools)
        if whole.startswith(so_far):
            return whole[len(so_far) :], ""
        marked = [dict(message) for message in messages]
        marked[-n_new - 1]["content"] = _STAND_IN
        _, found, rest = self._render(marked, tools).rpartition(_STAND_IN)
        if not found:
            raise ConfigurationError("tokenizer: its chat template leaves out the last turn of the assistant")
        return rest, _difference(so_far, whole)

    def count_kept(self, ids: Sequence[int], kept: str) -> int:
        """Returns how many ids, from the first, hold a text: through the one that holds its last character.

        Args:
            ids: The sampled ids.
            kept: How their text begins. Where it does not (the engine cleaned up spaces), characters other than white
                space are counted instead.
        """
        if not kept:
            return 0
        for with_control in (False, True):
            whole = self.decode(ids, with_control=with_control)
            if whole.startswith(kept):

                def holds(n: int, with_control: bool = with_control) -> bool:
                    return self.decode(ids[:n], with_control=with_control).startswith(kept)

                return _smallest(holds, len(ids), guess=len(ids) * len(kept) // len(whole))
        wanted = _count_visible(kept)
        return _smallest(
            lambda n: _count_visible(self.decode(ids[:n]).rstrip("\ufffd")) >= wanted, len(ids), guess=len(ids)
        )

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **self._options,
                )
            )
        except Exception as error:  # a template is a program of somebody else's and may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigurationError(f"tokenizer: its chat template refuses messages of {roles}: {error}") from error


def _find_backend(tokenizer: Tokenizer) -> Any:
    """Returns what does a transformers tokenizer's work (of the package ``tokenizers``), or None.

    It takes half the time of what is wrapped around it, which a turn that only appends some words does notice. Only
    where the wrapping does nothing else: no padding, no cutting, and the same ids and text for a probe.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(tokenizer, "split_special_tokens", False):
        return None
    if backend.truncation is not None or backend.padding is not None:
        return None
    probe = _PROBE + "".join(str(token.content) for token in tokenizer.added_tokens_decoder.values()) + _ODD_PROBE
    ids = list(tokenizer.encode(probe, add_special_tokens=False))
    if list(backend.encode(probe, add_special_tokens=False).ids) != ids:
        return None
    for skip in (True, False):
        text = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        if backend.decode(ids, skip_special_tokens=skip) != text:
            return None
    return backend


def _count_visible(text: str) -> int:
    return sum(len(part) for part in text.split())


def _smallest(holds: Callable[[int], bool], most: int, guess: int) -> int:
    """Returns the smallest number from 1 on for which ``holds``; it holds at ``most``, and from the smallest on.

    Looks around the guess in growing steps, then halves: a logarithm of the guess's error, not of ``most``.
    """
    low, high, step = 0, most, 1
    start = min(max(guess, 1), most)
    if start == most or holds(start):
        high = start
        while high - step > low and holds(high - step):
            high -= step
            step *= 2
        low = max(low, high - step)
    else:
        low = start
        while low + step < high and not holds(low + step):
            low += step
            step *= 2
        high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _difference(ours: str, theirs: str) -> str:
    at = len(os.path.commonprefix([ours, theirs]))  # noqa: RUF071 - of strings, not of paths
    begin = max(0, at - _CONTEXT_CHARS)
    had, has = ours[begin : at + 40], theirs[begin : at + 40]
    return f"at character {at} the policy had {had!r}, the chat template now has {has!r}"
