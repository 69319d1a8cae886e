"""The fixed turns: text of a given length and shape, in each protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from retool_env.spaces import UnicodeText

PROTOCOLS: Final = ("code_tags", "tool_calls", "markdown")
SHAPES: Final = ("prose", "program", "answer", "output")
PROBLEM: Final[Mapping[str, Any]] = {"id": "fixed", "question": "What is 6 times 7?", "answer": "42"}

_PROSE: Final = "Next, let $x_{k} = \\frac{a_{k}}{b_{k}}$ with $a_{k} < b_{k}$, and look at the sum once more.\n"
_COMMENT: Final = "# The next case is like the one before it, with one more term in the sum.\n"
_PROGRAM: Final = "print(6 * 7)"


def turn(protocol: str, shape: str, n_chars: int) -> str:
    """Returns a turn.

    Args:
        protocol: One of ``PROTOCOLS``.
        shape: One of ``SHAPES``.
        n_chars: Its length; for ``output``, how much its program prints. At least 200.
    """
    if shape == "output":
        return _call(protocol, f"print('x' * {n_chars})")
    if shape == "program":
        around = len(_call(protocol, f"\n{_PROGRAM}"))
        return _call(protocol, _filled(protocol, n_chars - around) + f"\n{_PROGRAM}")
    end = answer(protocol) if shape == "answer" else _call(protocol, _PROGRAM)
    return _repeated(_PROSE, n_chars - len(end) - 1) + "\n" + end


def answer(protocol: str) -> str:
    """Returns a turn with the right answer and nothing else."""
    return "<answer>\\boxed{42}</answer>" if protocol == "code_tags" else "It is \\boxed{42}."


def episode(protocol: str, code: bool) -> tuple[str, ...]:
    """Returns the turns of a short episode: three calls and an answer, or just the answer."""
    return (*(3 * [_call(protocol, _PROGRAM)] if code else []), answer(protocol))


class FixedTurns(UnicodeText):
    """An action space whose samples are given turns, over and over, for benchmarks that sample their actions."""

    def __init__(self, turns: Sequence[str]):
        """Makes the space of the turns."""
        super().__init__(max(map(len, turns)))
        self._turns = cycle(turns)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns the next turn; the arguments are of no account."""
        return next(self._turns)


def _call(protocol: str, code: str) -> str:
    if protocol == "tool_calls":
        call = {"name": "code_interpreter", "arguments": {"code": code}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    if protocol == "markdown":
        return f"```python\n{code}\n```\n"
    return f"<code>\n{code}\n</code>"


def _filled(protocol: str, n_chars: int) -> str:
    """Returns comments that take so many characters where they are written; JSON writes a line's end as two."""
    line_chars = len(_COMMENT) + (protocol == "tool_calls")
    n_lines, rest = divmod(n_chars, line_chars)
    return _COMMENT * n_lines + "#" * rest


def _repeated(line: str, n_chars: int) -> str:
    return (line * (n_chars // len(line) + 1))[:n_chars]
