"""Finding the answer in a text: the last balanced ``\\boxed{}``. Pure and linear in the length of the text."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last balanced ``\boxed{...}``, outermost braces removed, or None.

    "Last" is by where the box closes; a box inside a box counts as part of the outer one. Escaped braces (``\{``) do
    not count. An unclosed box is not an answer, and does not hide an earlier closed one.
    """
    best: tuple[int, int] | None = None
    stack: list[int] = []  # content start of an open box, or -1 for a plain brace
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(-1)
        elif token == "}":
            if stack:
                start = stack.pop()
                if start >= 0:
                    best = (start, match.start())
        elif token.startswith("\\boxed"):
            stack.append(match.end())
    return None if best is None else text[best[0] : best[1]]
