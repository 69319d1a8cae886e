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
from typing import Final, NamedTuple

THINK: Final = "think"
THINK_TAGS: Final = ("<think>", "</think>")
_OPEN, _CLOSE = THINK_TAGS
_THINKING = re.compile(f"{_OPEN}|{_CLOSE}")
_MORE_THOUGHTS = re.compile(rf"(?:\s*+{_OPEN}[^<]*+{_CLOSE})*+")  # many short ones in a row count as one, for speed


@dataclass(frozen=True, slots=True)
class Malformed:
    """Something the policy wrote that cannot be used: why, in words for the policy."""

    message: str


class Block(NamedTuple):
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


Close = Callable[[str, "re.Match[str]", "Seen"], Block | None]
"""Given the text, the match of an opener and what was seen ahead, returns the block, or None for a mere mention.

For linear time, a call that returns None may look only at text before the next opener, and one that returns a closed
block only at text before its end; what must be looked for beyond is found with ``ahead``.
"""


class Rules:
    """The openers of a protocol's blocks, and how they close. Made once.

    Attributes:
        closes: From a kind to the function that closes a block of that kind.
        kinds: From an opener to the kind, without thinking.
        kinds_and_thinking: The same with it.
        alike: All openers start like the tag of thinking.
    """

    def __init__(self, rules: Mapping[str, tuple[str, Close]], marks: Iterable[str] = ()):
        """Prepares the searches.

        Args:
            rules: From a kind to the regular expression of its opener and the function that closes it. An opener has no
                capturing group, is never empty, and matches what it matched when that is all the text there is.
            marks: Other tags that the protocol looks for, for ``first``.
        """
        self.closes = {kind: close for kind, (_, close) in rules.items()}
        self.kinds = {opener: kind for kind, (opener, _) in rules.items()}
        # A search is several times faster where all that it is for starts with one character.
        self.alike = all(opener[0] == _OPEN[0] for opener in self.kinds)
        self.kinds_and_thinking = {**self.kinds, _OPEN: THINK}
        self._openers = {opener: re.compile(opener) for opener in self.kinds_and_thinking}
        self._marks = re.compile("|".join([*self.kinds, *THINK_TAGS, *marks]))

    def first(self, text: str) -> int:
        """Returns the offset of the first opener, tag of thinking or mark; -1 if there is none."""
        match = self._marks.search(text)
        return -1 if match is None else match.start()

    def which(self, match: re.Match[str], kinds: Mapping[str, str]) -> tuple[str, str]:
        """Returns the opener that matched, one of these, and its kind."""
        found = match.group()
        kind = kinds.get(found)
        if kind is not None:
            return found, kind
        return next(item for item in kinds.items() if self._openers[item[0]].match(found))


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


Seen = dict["re.Pattern[str]", Ahead]
"""What was seen ahead in one text."""


def ahead(seen: Seen, pattern: re.Pattern[str], text: str, position: int) -> re.Match[str] | None:
    """Returns the first match that starts at the position or after it; each is searched for once."""
    found = seen.get(pattern)
    if found is None:
        found = seen[pattern] = Ahead(pattern, text)
    return found.find(position)


def walk(text: str, rules: Rules, first: int = 0, thinking: bool = True) -> Iterator[Block]:
    """Yields the blocks outside closed thinking, and the closed thinking spans themselves, in order.

    An opener that never closes is yielded once with ``end`` None; later openers of that kind cannot close either and
    are passed over, but the other kinds are still found.

    Args:
        text: The turn.
        rules: The openers and how they close.
        first: Before it there is no opener and no tag of thinking.
        thinking: Whether there may be a tag of thinking at all.
    """
    seen: Seen = {}
    position = first
    thinking = thinking and _THINKING.search(text, first) is not None
    if thinking:
        prompted = _prompted_thinking(text, rules, first, seen)
        if prompted:
            yield Block(THINK, 0, prompted)
            position = prompted
        thinking = rules.alike or text.find(_OPEN, position) >= 0
    kinds = rules.kinds_and_thinking if thinking else rules.kinds
    pattern = _pattern(tuple(kinds))
    while pattern is not None and (match := pattern.search(text, position)):
        opener, kind = rules.which(match, kinds)
        block = _thought(text, match) if kind == THINK else rules.closes[kind](text, match, seen)
        if block is None:
            position = match.end()
        elif block.end is None:
            kinds, pattern = _without(kinds, opener)
            position = match.end()
            if kind != THINK:
                yield block
        else:
            position = block.end
            if kind == THINK and not rules.alike and text.find(_OPEN, position) < 0:
                kinds, pattern = _without(kinds, _OPEN)
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


def starts_line(text: str, position: int, blanks: str | None = None) -> bool:
    """Whether only blanks (None: all white space) stand between the start of the line and the position; 64 at most."""
    before = text[max(0, position - 64) : position]
    _, newline, indent = before.rpartition("\n")
    return not indent.strip(blanks) and (bool(newline) or position <= 64)


def plain_close(kind: str, closer: str, follows: str | None = None) -> Close:
    """Returns a ``Close`` for what ends at the next ``closer`` and counts only at the start of a line.

    Args:
        kind: The kind of the blocks.
        closer: Their last tag.
        follows: They also count right after this tag, with at most 64 characters of white space between.
    """

    def close(text: str, match: re.Match[str], seen: Seen) -> Block | None:
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


def _without(kinds: Mapping[str, str], opener: str) -> tuple[dict[str, str], re.Pattern[str] | None]:
    left = {other: kind for other, kind in kinds.items() if other != opener}
    return left, _pattern(tuple(left))


def _thought(text: str, match: re.Match[str]) -> Block:
    end = text.find(_CLOSE, match.end())
    if end < 0:
        return Block(THINK, match.start(), None)
    more = _MORE_THOUGHTS.match(text, end + len(_CLOSE))
    return Block(THINK, match.start(), end + len(_CLOSE) if more is None else more.end())


def _prompted_thinking(text: str, rules: Rules, first: int, seen: Seen) -> int:
    """Returns where thinking ends that the turn did not open itself; 0 if there is none."""
    close = text.find(_CLOSE, first)
    if close < 0 or text.find(_OPEN, first, close) >= 0:
        return 0
    kinds = rules.kinds
    pattern = _pattern(tuple(kinds))
    position = first
    while pattern is not None and (match := pattern.search(text, position, close)):
        block = rules.closes[rules.which(match, kinds)[1]](text, match, seen)
        if block is not None and (block.end is None or isinstance(block.content, Malformed)):
            break
        if block is not None and block.end is not None and block.start < close < block.end:
            return 0
        position = match.end() if block is None or block.end is None else block.end
    return close + len(_CLOSE)
