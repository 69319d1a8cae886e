r"""What the policy reads of a result: described, cleaned, clipped and made neutral, in this order. Pure.

The order matters. Cleaning comes first, so that removing a control character cannot put a marker together
(``<co\x00de>``) after the check for markers; neutralising comes last, so that it sees the very text that is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Final

from retool_env.protocol.base import Limits
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolResult

NO_OUTPUT: Final = "[no output]"
"""Shown where there is nothing to show: an empty observation looks like a broken tool."""

MIN_CLIP_CHARS: Final = 64
"""From this ``max_chars`` on, ``clip`` keeps its promise; below, the note alone may be longer."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ERASE_LINE = re.compile(r"\x1b\[[02]?K")
# A string ends unfinished at whatever could open another one; without that, each opener would scan to the end.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x90\x98\x9c-\x9f]*+(?:\x07|\x1b\\|\x9c)"  # OSC: titles, links
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x90\x98\x9c-\x9f]*+(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*+[0-~]"
)
# Every control character but tab and newline, then the marks, embeddings, overrides and isolates that change the
# direction in which text is shown.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ASCII_CONTROL: Final = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n")
_PIECE_CHARS: Final = 1 << 15
_JOINERS: Final = ("\\", "·", "¦", "\u2060")


def replace_surrogates(text: str) -> str:
    """Returns the text with lone surrogates, which no UTF-8 can hold, as U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def clean(text: str) -> str:
    r"""Returns the text as a terminal would leave it on a page, without anything that steers a terminal.

    Escape sequences, control characters (all but tab and newline) and bidi controls go; lone surrogates become
    U+FFFD; a line with carriage returns (a progress bar) shows what was written over it last. Idempotent and linear.
    """
    if _is_plain(text):  # nearly all output
        return text
    text = replace_surrogates(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        text = "\n".join(_overwritten(line) if "\r" in line else line for line in text.split("\n"))
    return _plain(text)


def clip(text: str, max_chars: int) -> str:
    """Returns the text, or its head and tail around a note of how many characters were left out between them.

    Args:
        text: Any text.
        max_chars: The most characters of the result, note included; kept for values from ``MIN_CLIP_CHARS`` on.
    """
    if len(text) <= max_chars:
        return text
    room = max(0, max_chars - len(_left_out(len(text))))
    tail = room // 2
    head = room - tail
    return text[:head] + _left_out(len(text) - room) + text[len(text) - tail :]


def neutralize(text: str, markers: Iterable[str]) -> str:
    r"""Returns the text with every marker broken, so that none can be parsed or encoded to a control id.

    A backslash goes in after the first character of each marker: ``<code>`` becomes ``<\code>``, ``<|im_end|>``
    becomes ``<\|im_end|>``. It is plain ASCII, so no tokenizer normalises it away; it is visible, so a reader can undo
    it; and it is how text escapes its markup nearly everywhere. If a marker holds a backslash, the first of ``·``,
    ``¦`` and U+2060 that no marker holds is used.

    No marker is left, overlapping ones included: the inserted character is in no marker, so a marker in the result
    would lie between two insertions, hence was in the text, hence was broken. Markers of white space only are passed
    over (they are layout, such as the indentation tokens of some tokenizers); any other marker of one character
    cannot be broken and becomes U+FFFD. Linear in the length of the text.

    Args:
        text: Text that is already clean; removing characters afterwards could form a marker.
        markers: The protocol's tags and the added-token strings of the tokenizer.
    """
    for pattern, replacement in _breakers(tuple(markers)):
        text = pattern.sub(replacement, text)
    return text


def describe(result: ExecutionResult, timeout_s: float, memory_mb: int, *, restarted: bool = False) -> str:
    """Returns what an execution did, in words: its output, then its errors, then how it ended if not by itself.

    Args:
        result: The execution. What an ``unavailable`` one holds is the sandbox's and is never shown.
        timeout_s: The time limit that was enforced, in seconds.
        memory_mb: The memory limit that was enforced, in MiB.
        restarted: The interpreter that blocks share ended with this execution.
    """
    if result.status is ExecutionStatus.OK and not (result.stderr or result.truncated or restarted):
        return NO_OUTPUT if not result.stdout or result.stdout.isspace() else result.stdout  # nearly always so
    if result.status is ExecutionStatus.UNAVAILABLE:
        return "[the code interpreter is not available; this says nothing about the code]"
    # What a session says that had ended before the call is meant for the programmer who holds it.
    output = () if _never_began(result) else (result.stdout, result.stderr)
    parts = [part for part in output if part.strip()]
    parts += [f"[{line}]" for line in _endings(result, timeout_s, memory_mb)]
    if restarted:
        parts.append("[the interpreter was restarted: everything defined before is lost]")
    text = ""
    for part in parts:
        text += ("" if not text or text.endswith("\n") else "\n") + part
    return text or NO_OUTPUT


def render(
    result: ExecutionResult | ToolResult, limits: Limits, markers: Iterable[str], *, restarted: bool = False
) -> str:
    """Returns the text of one observation: described, cleaned, clipped, neutral.

    The result has at most ``limits.max_observation_chars`` characters (from 100 on, the least that a configuration
    takes), those that ``neutralize`` inserts included: the limit that is stated is what the policy sees. Where they
    would make it longer, as much less of the output is kept.

    Args:
        result: Of an execution or of a user's tool; for feedback on a malformed call, an error of a ``ToolResult``.
        limits: The limits that are enforced.
        markers: As for ``neutralize``.
        restarted: As for ``describe``.
    """
    if isinstance(result, ToolResult):
        text = f"Error: {result.text}" if result.is_error else result.text
    else:
        text = describe(result, limits.timeout_s, limits.memory_mb, restarted=restarted)
    return _fit(clean(text).rstrip() or NO_OUTPUT, limits.max_observation_chars, tuple(markers))


def _fit(text: str, max_chars: int, markers: tuple[str, ...]) -> str:
    """Returns the text clipped so that it keeps the limit when it is neutral.

    Neutralising stays the last step: were it done before clipping, the cut could put a marker together.
    """
    shown = neutralize(clip(text, max_chars), markers)
    if len(shown) <= max_chars:
        return shown
    low, high = 0, max_chars  # what is kept is longer than the limit at `high`, and not at `low` (or never)
    shown = neutralize(clip(text, low), markers)
    while high - low > 1:
        middle = (low + high) // 2
        tried = neutralize(clip(text, middle), markers)
        if len(tried) <= max_chars:
            low, shown = middle, tried
        else:
            high = middle
    return shown


def _never_began(result: ExecutionResult) -> bool:
    """Whether it is the answer of a session that the code before had ended."""
    return result.status is ExecutionStatus.KILLED and result.error_class == "SessionLost"


def _endings(result: ExecutionResult, timeout_s: float, memory_mb: int) -> list[str]:
    match result.status:
        case ExecutionStatus.TIMEOUT:
            return [f"the code exceeded the limit of {timeout_s:g} s and was stopped"]
        case ExecutionStatus.MEMORY:
            return [f"the code exceeded the limit of {memory_mb} MB of memory and was stopped"]
        case ExecutionStatus.OUTPUT_LIMIT:
            return ["the code wrote more output than the limit allows and was stopped"]
        case ExecutionStatus.KILLED if _never_began(result):
            return ["the code was not run: the interpreter had ended after the code before it"]
        case ExecutionStatus.KILLED:
            by = f" by {result.error_class}" if result.error_class else ""
            return [f"the code was killed{by}"]
    lines = ["output beyond the limit was dropped"] if result.truncated else []
    if result.status is ExecutionStatus.ERROR and not result.stderr.strip():
        code = "" if result.exit_code is None else f" with exit code {result.exit_code}"
        lines.append(f"the code failed{code}{': ' + result.error_class if result.error_class else ''}")
    return lines


def _is_plain(text: str) -> bool:
    """Whether there is nothing to clean; may be False where there is nothing either."""
    if text.isascii():  # eight times as fast as isprintable; by pieces, because fresh memory takes longer than that
        for start in range(0, len(text), _PIECE_CHARS):
            piece = text[start : start + _PIECE_CHARS].encode()
            if len(piece.translate(None, _ASCII_CONTROL)) != len(piece):
                return False
        return True
    return text.replace("\n", "").replace("\t", "").isprintable()


def _plain(text: str) -> str:
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def _overwritten(line: str) -> str:
    """Returns what a line shows when each carriage return sends the cursor back to its start."""
    shown = ""
    for written in reversed(line.split("\r")):
        if len(written) > len(shown):
            shown += _plain(written)[len(shown) :]
        if "\x1b" in written and _ERASE_LINE.search(written):  # what was there before is gone
            break
    return shown


def _left_out(n_chars: int) -> str:
    return f"\n... [{n_chars} characters left out] ...\n"


@lru_cache(maxsize=64)
def _breakers(markers: tuple[str, ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Returns substitutions that break the markers: one for each first character, and one for the short markers.

    A replacement is a constant, not a function, which makes a substitution several times faster.
    """
    used = set("".join(markers))
    joiner = next(char for char in chain(_JOINERS, map(chr, range(0xA1, 0xD800))) if char not in used)
    singles = sorted({marker for marker in markers if len(marker) == 1 and not marker.isspace()})
    breakers = [(re.compile("[" + "".join(map(re.escape, singles)) + "]"), "\ufffd")] if singles else []
    longer: dict[str, list[str]] = {}
    for marker in sorted({marker for marker in markers if len(marker) > 1 and not marker.isspace()}):
        longer.setdefault(marker[0], []).append(marker[1:])
    for first, rests in longer.items():
        pattern = re.compile(f"{re.escape(first)}(?={_any_of(rests)})")
        breakers.append((pattern, (first + joiner).replace("\\", "\\\\")))
    return tuple(breakers)


def _any_of(suffixes: list[str]) -> str:
    """Returns a pattern for any of the suffixes as a tree of prefixes, so that thousands of markers cost no more."""
    if "" in suffixes:
        return ""
    groups: dict[str, list[str]] = {}
    for suffix in suffixes:
        groups.setdefault(suffix[0], []).append(suffix)
    branches = []
    for group in groups.values():
        prefix = os.path.commonprefix(group)  # noqa: RUF071 - of strings, not of paths
        branches.append(re.escape(prefix) + _any_of([suffix[len(prefix) :] for suffix in group]))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
