r"""The ``strict`` preset: what verl pays with ``math_dapo.compute_score(..., strict_box_verify=True)``.

The same verdict for every text and gold (verl 0.8 and 0.9; tests compare the two), for numbers that can stand beside
published ones. Its ways are its own: only the last 100 characters count, thought, code and tool output included; the
last ``\boxed{`` is taken even where it stands inside another box; escaped braces count as braces; and the content is
compared with the gold character by character. On no text does it raise, so nothing had to be given a value.
"""

from __future__ import annotations

import re
from typing import Final

WINDOW: Final = 100
"""Characters at the end of a text that are looked at."""

_BOX: Final = "\\boxed{"
_BRACE: Final = re.compile(r"[{}]")


def strict_answer(text: str) -> str | None:
    r"""Returns the content of the last ``\boxed{`` in the window, or None where there is none, or it does not close."""
    window = text[-WINDOW:]
    opening = window.rfind(_BOX)
    if opening < 0:
        return None
    start, depth = opening + len(_BOX), 1
    for brace in _BRACE.finditer(window, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return window[start : brace.start()]
    return None
