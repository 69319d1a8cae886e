r"""Reads the answer a turn gives: the last balanced ``\boxed{}``, without the quotes a prompt may have taught."""

from __future__ import annotations

import re
from typing import Final

from retool_env.grading.extract import last_boxed
from retool_env.protocol.base import Action, Answer, Ended, EndReason

_BOX = "\\boxed"
_OPEN_BOX = re.compile(r"\\boxed\s*+(\{|$)")
_QUOTES: Final = ("''", '""', "``", "‘’", "“”")


def unquote(text: str) -> str:
    """Returns the text without surrounding white space and one pair of quotes around the whole."""
    text = text.strip()
    if len(text) >= 2 and text[0] + text[-1] in _QUOTES:
        return text[1:-1].strip()
    return text


def read_answer(content: str, kept: str, fabricated: bool) -> Answer:
    """Reads what stands between answer tags: its last box, or all of it with ``boxed`` False."""
    first = content.find(_BOX)
    while first > 0 and content[first - 1] == "\\":  # a backslash before may be a token with this one
        first -= 1
    # What stands before the first box has no part in it: braces there close before it or not at all.
    box = last_boxed(content[first:]) if first >= 0 else None
    return Answer(unquote(content if box is None else box), kept, boxed=box is not None, fabricated=fabricated)


def read_prose(visible: str, text: str, fabricated: bool) -> Action:
    r"""Reads a turn that has no tags that count.

    Args:
        visible: The text with what is not an answer (thinking, invented output) blanked.
        text: The turn; all of it is kept.
        fabricated: Whether the turn invents an observation.

    Returns:
        ``Answer`` for a box; ``Ended`` with ``INCOMPLETE`` when the last ``\boxed{`` is still open, which may be a cut
        that the engine reported as a normal stop, and with ``NO_ACTION`` when there is no box.
    """
    last = _last_box(visible)
    if last < 0:
        return Ended(EndReason.NO_ACTION, text, fabricated)
    if last_boxed(visible[last:]) is None:
        return Ended(EndReason.INCOMPLETE, text, fabricated)
    return read_answer(visible, text, fabricated)


def _last_box(text: str) -> int:
    r"""Offset of the last ``\boxed`` that a brace, or the end of the text, follows; -1 if there is none."""
    position = text.rfind(_BOX)
    while position >= 0 and not _OPEN_BOX.match(text, position):
        position = text.rfind(_BOX, 0, position)
    return position
