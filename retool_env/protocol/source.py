"""From what stands in a code block to the Python source that runs: fences, language names, indentation."""

from __future__ import annotations

import os
import re
from typing import Final

from retool_env.protocol.blocks import Malformed
from retool_env.protocol.observation import replace_surrogates

PYTHON_NAMES: Final = ("python", "python3", "py", "py3", "ipython")
"""Language names of a fence, in any case, that mean Python. A fence without a name does too."""

_FENCE = re.compile(r"\s*+(`{3,}+)([^\n]*+)\n?")
_FENCE_LINE = re.compile(r"^[ \t]*+`{3,}+[ \t]*+$", re.MULTILINE)
_AT_MARGIN = re.compile(r"\n*+\S")
_BLANK = " \t\r\n"


def read_source(text: str) -> str | Malformed:
    """Returns the Python source in a block's text, ready to run, or what is wrong with the block.

    A fence around the source is taken off; it ends at the last fence of the text, so that a fence inside a string of
    the source survives. The indentation that all lines share is taken off and nothing else is repaired: typographic
    quotes or non-breaking spaces are the policy's errors, which the interpreter's own message explains best.

    Args:
        text: What stands between the tags, or the whole fenced block.

    Returns:
        The source (never empty, no lone surrogates), or ``Malformed`` with "unsupported language: ..." or "empty code".
    """
    match = _FENCE.match(text)
    if match:
        line = match.group(2)
        language, _, rest = line.strip().partition(" ")
        if "```" in line:  # all of it on one line: ```print(1)``` or ```python print(1)```
            text = line.strip().rstrip("`")
            if language.rstrip("`").lower() in PYTHON_NAMES:
                text = rest.rstrip().rstrip("`")
        elif language and language.lower() not in PYTHON_NAMES:
            return Malformed(f"unsupported language: {language[:40]}")
        else:
            text = _unfence(text[match.end() :])
    # Nearly all sources begin at the margin: one copy instead of two, which counts for a megabyte.
    source = replace_surrogates(text.strip(_BLANK) if _AT_MARGIN.match(text) else dedent(text).rstrip(_BLANK))
    return source or Malformed("empty code")


def dedent(text: str) -> str:
    """Takes off the indentation that all lines with something on them share, and blank lines at the start.

    Unlike ``textwrap.dedent`` it leaves the other white space of blank lines alone: they may be part of a string.
    """
    text = text.lstrip("\n")
    if text and not text[0].isspace():
        return text
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[first:]
    if not lines or lines[0][0] not in " \t":
        return "\n".join(lines)
    indents = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    margin = os.path.commonprefix([min(indents), max(indents)])  # noqa: RUF071 - of strings, not of paths
    return "\n".join(line.removeprefix(margin) for line in lines)


def _unfence(body: str) -> str:
    """Takes off the closing fence: at the very end, or else the last line that is only a fence."""
    stripped = body.rstrip(_BLANK)
    if stripped.endswith("```"):
        return stripped.rstrip("`")
    end = len(body)
    for line in _FENCE_LINE.finditer(body):
        end = line.start()
    return body[:end]
