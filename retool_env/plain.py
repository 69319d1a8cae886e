"""Plain data: valid Unicode text and JSON values, from whatever a model, a tool or a user gave."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_DEPTH: Final = 64
_MAX_INT: Final = 10**4300
"""From here on Python refuses to read an integer from text, or to write it (``sys.get_int_max_str_digits``)."""


def plain_text(text: str) -> str:
    """Returns the text without surrogates: a pair becomes its character, a lone one U+FFFD.

    A ``str`` may hold surrogates (``json.loads`` makes them from escapes), but it can then be neither encoded as UTF-8
    nor tokenised nor written to a file.
    """
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain_strings(value: Any) -> Any:
    """Returns a value that was read from JSON with all its text made valid, names included; nothing else changes.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [plain_strings(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(key): plain_strings(item) for key, item in value.items()}
    return value


def plain_json(value: Any) -> Any:
    """Returns the value as JSON can hold it: text made valid, keys made text, anything unknown as its ``str``.

    Numbers that JSON lacks (NaN, infinity) become text, and so do integers of more than 4300 digits (in hexadecimal),
    which Python would not read back. Containers nested deeper than 64 are replaced by ``"..."``: a model can nest JSON
    deeper than Python can recurse.
    """
    return _plain(value, _MAX_DEPTH)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_MAX_INT < value < _MAX_INT else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping | Iterable) and depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {_as_text(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, int) and not -_MAX_INT < value < _MAX_INT:
        return hex(value)
    try:
        return plain_text(str(value))
    except Exception:  # an object of the user's, whose __str__ may raise anything
        return f"<{type(value).__name__}>"
