"""Finds the blocks of a turn, from left to right, and keeps closed thinking apart. Linear in the length of the text.

One rule on thinking holds for every protocol: *what stands inside a closed thinking span neither acts nor answers, and
an open one hides nothing.* A span is ``<think>`` to the next ``</think>``. Where the prompt has already opened it (as
the templates of Qwen3 and DeepSeek-R1 do), it runs from the start of the turn to a first ``</think>`` with no
``<think>`` before it. A thinking tag inside a block is part of the block (a string in its code), not a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

THINK: Final = "think"
THINK_TAGS: Final = ("<think>", "</think>")
_OPEN, _CLOSE = THINK_TAGS
_MORE_THOUGHTS = re.compile(rf"(?:\s*+{_OPEN}[^<]*+{_CLOSE})*+")  # many short ones in a row count as one, for speed


@dataclass(frozen=True, slots=True)
class Malformed:
    """Something the policy wrote that cannot be used: why, in words for the policy."""

    message: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a turn.

    Attributes:
        kind: Which opener it has (a key of the ``Rules``), or ``THINK``.
        start: Offset of its first character.
        end: Offset past its last character, or None when the turn ends before the block does.
        content: What is inside; what it is depends on the kind.
    """

    kind: str
    start: int
    end: int | None
    content: object = None


Close = Callable[[str, "re.Match[str]"], Block | None]
"""Given the text and the match of an opener, returns the block, or None for an opener that is a mere mention.

For linear time, a call that returns None may look only at text before the next opener, and one that returns a closed
block only at text before its end; what must be looked for beyond is found with ``Ahead``.
"""

Rules = Mapping[str, tuple[str, Close]]
"""From a kind to the regular expression of its opener and the function that closes it.

An opener has no capturing group, is never empty, and matches what it matched when that is all the text there is.
"""


class Ahead:
    """Finds the next match of a pattern in one text, from positions that mostly grow: for linear time.

    What was found from one position is what would be found from any other before it, so it is kept until passed.
    """

    def __init__(self, pattern: re.Pattern[str], text: str):
        self._pattern = pattern
        self._text = text
        self._from = len(text) + 1
        self._found: re.Match[str] | None = None

    def find(self, position: int) -> re.Match[str] | None:
        """Returns the first match that starts at the position or after it."""
        if position < self._from or (self._found is not None and self._found.start() < position):
            self._found = self._pattern.search(self._text, position)
            self._from = position
        return self._found


def walk(text: str, rules: Rules, start: int | None = None) -> Iterator[Block]:
    """Yields the blocks outside closed thinking, and the closed thinking spans themselves, in order.

    An opener that never closes is yielded once with ``end`` None; later openers of that kind cannot close either and
    are passed over, but the other kinds are still found.

    Args:
        text: The turn.
        rules: The openers and how they close.
        start: Where to begin. None is the start of the turn, with thinking that the prompt may have opened.
    """
    position = _prompted_thinking(text, rules) if start is None else start
    if position and start is None:
        yield Block(THINK, 0, position)
    kinds = {opener: kind for kind, (opener, _) in rules.items()}
    # A search is several times faster where all that it is for starts with one character.
    alike = all(opener[0] == _OPEN[0] for opener in kinds)
    if alike or text.find(_OPEN, position) >= 0:
        kinds[_OPEN] = THINK
    pattern = _pattern(tuple(kinds))
    while pattern is not None and (match := pattern.search(text, position)):
        opener, kind = _which(match, kinds)
        block = _thought(text, match) if kind == THINK else rules[kind][1](text, match)
        if block is None:
            position = match.end()
        elif block.end is None:
            del kinds[opener]
            pattern = _pattern(tuple(kinds))
            position = match.end()
            if kind != THINK:
                yield block
        else:
            position = block.end
            if kind == THINK and not alike and text.find(_OPEN, position) < 0:
                del kinds[_OPEN]
                pattern = _pattern(tuple(kinds))
            yield block


def blank(text: str, blocks: Iterable[Block]) -> str:
    """Returns the text with the blocks (in order, all closed) replaced by as many spaces, so that offsets stay."""
    parts: list[str] = []
    position = 0
    for block in blocks:
        assert block.end is not None
        parts += [text[position : block.start], " " * (block.end - block.start)]
        position = block.end
    return "".join([*parts, text[position:]])


def starts_line(text: str, position: int) -> bool:
    """Whether only blanks stand between the start of the line and the position (64 of them at most)."""
    before = text[max(0, position - 64) : position]
    _, newline, indent = before.rpartition("\n")
    return not indent.strip() and (bool(newline) or position <= 64)


def plain_close(kind: str, closer: str, follows: str | None = None) -> Close:
    """Returns a ``Close`` for what ends at the next ``closer`` and counts only at the start of a line.

    Args:
        kind: The kind of the blocks.
        closer: Their last tag.
        follows: They also count right after this tag, with at most 64 characters of white space between.
    """

    def close(text: str, match: re.Match[str]) -> Block | None:
        start = match.start()
        if not starts_line(text, start):
            window = 64 + len(follows or "")
            if follows is None or not text[max(0, start - window) : start].rstrip().endswith(follows):
                return None
        end = text.find(closer, match.end())
        return Block(kind, start, None if end < 0 else end + len(closer))

    return close


@lru_cache(maxsize=64)
def _pattern(openers: tuple[str, ...]) -> re.Pattern[str] | None:
    # No groups: without them the search skips from one possible first character to the next.
    return re.compile("|".join(openers)) if openers else None


def _which(match: re.Match[str], kinds: Mapping[str, str]) -> tuple[str, str]:
    """Returns the opener that matched and its kind."""
    kind = kinds.get(match.group())
    if kind is not None:
        return match.group(), kind
    return next(item for item in kinds.items() if re.match(item[0], match.group()))


def _thought(text: str, match: re.Match[str]) -> Block:
    end = text.find(_CLOSE, match.end())
    if end < 0:
        return Block(THINK, match.start(), None)
    more = _MORE_THOUGHTS.match(text, end + len(_CLOSE))
    return Block(THINK, match.start(), end + len(_CLOSE) if more is None else more.end())


def _prompted_thinking(text: str, rules: Rules) -> int:
    """Returns where thinking ends that the turn did not open itself; 0 if there is none."""
    close = text.find(_CLOSE)
    if close < 0 or text.find(_OPEN, 0, close) >= 0:
        return 0
    kinds = {opener: kind for kind, (opener, _) in rules.items()}
    pattern = _pattern(tuple(kinds))
    position = 0
    while pattern is not None and (match := pattern.search(text, position, close)):
        block = rules[_which(match, kinds)[1]][1](text, match)
        if block is not None and (block.end is None or isinstance(block.content, Malformed)):
            break
        if block is not None and block.end is not None and block.start < close < block.end:
            return 0
        position = match.end() if block is None or block.end is None else block.end
    return close + len(_CLOSE)
