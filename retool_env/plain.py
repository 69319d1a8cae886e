"""Plain data: valid Unicode text and JSON values, from whatever a model, a tool or a user gave."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_DEPTH: Final = 64


def plain_text(text: str) -> str:
    """Returns the text without surrogates: a pair becomes its character, a lone one U+FFFD.

    A ``str`` may hold surrogates (``json.loads`` makes them from escapes), but it can then be neither encoded as UTF-8
    nor tokenised nor written to a file.
    """
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain_json(value: Any) -> Any:
    """Returns the value as JSON can hold it: text made valid, keys made text, anything unknown as its ``str``.

    Numbers that JSON lacks (NaN, infinity) become text. Containers nested deeper than 64 are replaced by ``"..."``:
    a model can nest JSON deeper than Python can recurse.
    """
    return _plain(value, _MAX_DEPTH)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping | Iterable) and depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {plain_text(str(key)): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return plain_text(str(value))
