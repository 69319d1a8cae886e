r"""Text from models and tools, made safe to look at: what cannot be seen, or reorders what is seen, is named.

A control character becomes its escape (``\x1b``, ``\x00``, ``\r``), a bidi control or another invisible character its
code point and short name (``[U+202E RLO]``). Nothing is left out, so that a reader sees what is in the record. Tab and
newline stay, and CR LF becomes a newline. What is shown cannot be told from a text that spells such a name out; in HTML
it can, by its markup.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final

_NAMES: Final = {
    "\u061c": "ALM",
    "\u200b": "ZWSP",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2028": "LSEP",
    "\u2029": "PSEP",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\ufeff": "BOM",
}
"""The abbreviations that the Unicode standard gives in its charts."""

_SHORT: Final = {"\r": r"\r", "\b": r"\b", "\a": r"\a", "\f": r"\f", "\v": r"\v"}

# What is seen as nothing, or as a blank (Unicode's Default_Ignorable_Code_Point), and controls. Not among them are the
# joiners U+200C and U+200D and the variation selectors U+180B to U+180D and U+FE00 to U+FE0F: scripts and emoji need
# them, and they reorder nothing.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Returns the text with every hidden character named. Linear; the result holds none, so it is idempotent."""
    return _HIDDEN.sub(_name, text.replace("\r\n", "\n"))


def visible_html(text: str) -> str:
    """Returns the same as HTML: escaped, each name in a ``<span class="hidden-char">`` with its full name as title."""
    return _HIDDEN.sub(_marked, html.escape(text.replace("\r\n", "\n")))


def excerpt(text: str, max_chars: int) -> str:
    """Returns the text in one line, or as much of it as there is room for; hidden characters are still in it."""
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def _name(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100 and code != 0xAD:
        return f"\\x{code:02x}"
    name = _NAMES.get(char)
    return f"[U+{code:04X} {name}]" if name else f"[U+{code:04X}]"


def _marked(match: re.Match[str]) -> str:
    title = html.escape(unicodedata.name(match[0], "control character"))
    return f'<span class="hidden-char" title="{title}">{_name(match)}</span>'
