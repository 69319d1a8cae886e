r"""The protocol of plain Markdown: a ``python`` fence runs, an ``output`` fence shows, a ``\boxed{}`` answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from retool_env.protocol.answers import read_prose
from retool_env.protocol.base import Action, Ended, EndReason, Feedback, Limits, Message, Observation, Protocol, RunCode
from retool_env.protocol.blocks import THINK_TAGS, Block, Malformed, Rules, blank, starts_line, walk
from retool_env.protocol.prompts import opening_messages, require_code_only
from retool_env.protocol.source import PYTHON_NAMES, read_source
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry

_BLANKS = " \t"  # what may stand before a fence
_TICKS = "`(?<!``)`{2,}+"  # a whole run of backticks; starts with a literal, which the search can skip to
_NAME = "|".join(sorted(PYTHON_NAMES, key=len, reverse=True))
_PYTHON = _TICKS + rf"[ \t]*+(?i:{_NAME})(?![^\s])[^\n`]*+(?=\n|\Z)"
_OUTPUT = _TICKS + r"[ \t]*+output[ \t]*+(?=\r?\n|\Z)"
_ANY = re.compile(_TICKS + rf"[ \t]*+(?=[pPiIo])(?:(?i:{_NAME})|output)")
_CLOSING = re.compile(rf"({_TICKS})[ \t]*+(?:output[ \t]*+)?\r?$", re.MULTILINE)  # there is one in a line at most
_INVENTED = re.compile(_OUTPUT + r"\s*+\S")


class Markdown(Protocol):
    r"""The first ``python`` fence that starts a line runs; a box in the text answers.

    * A fence ends at the first line that is only a fence of at least as many backticks, or at a line
      ```` ```output ````. What follows is dropped; output that the policy wrote there flags the turn ``fabricated``.
    * Fences of other languages, or of none, are text: a policy may well show some. So a block beats an answer, but
      a quoted ``bash`` fence is no failed call.
    * Boxes in an ``output`` fence that the policy invented never count.
    * Closed thinking neither acts nor answers, open thinking hides nothing (see ``blocks``).

    The stop string is ```` ```output ````, which a policy writes to ask for the output; the closing fence itself
    cannot be one, because a fence without a language starts the same way. Observations continue the assistant's own
    turn. Only ``code_interpreter`` can be called.
    """

    name: ClassVar[str] = "markdown"
    stop: ClassVar[tuple[str, ...]] = ("```output",)
    one_call: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = ("```", *THINK_TAGS)

    def parse(self, text: str, tools: ToolRegistry) -> Action:
        """Reads one turn; see the class for the rules."""
        hidden: list[Block] = []
        fabricated = False
        fence = _first_fence(text)  # one quick look spares most turns a slow one
        thought = _NO_FENCE.first(text)
        if fence < 0 and thought < 0:
            return read_prose(text, text, fabricated)
        rules = _NO_FENCE if fence < 0 else _RULES
        first = max(fence, thought) if fence < 0 or thought < 0 else min(fence, thought)
        for block in walk(text, rules, first, thinking=thought >= 0):
            if block.kind != "python":
                fabricated = fabricated or block.kind == "output"
                hidden += [block] if block.end is not None else []
            elif block.end is None:
                return Ended(EndReason.INCOMPLETE, text, fabricated)
            else:
                return _run(text, block, fabricated)
        return read_prose(blank(text, hidden) if hidden else text, text, fabricated)

    def messages(
        self, question: str, tools: ToolRegistry, limits: Limits, template: str | None = None
    ) -> list[Message]:
        """Returns one user message.

        Raises:
            ConfigurationError: The template is not valid, or there are tools that this protocol cannot call.
        """
        require_code_only(self.name, tools)
        return opening_messages(self.name, question, limits, template, unit="fence")

    def observe(self, outputs: Sequence[str], calls: Sequence[ToolCall]) -> Observation:
        """Wraps each output in an ``output`` fence."""
        return Observation("\n" + "".join(f"```output\n{output}\n```\n" for output in outputs))


def _run(text: str, block: Block, fabricated: bool) -> Action:
    assert block.end is not None
    kept = text[: block.end]
    # A bare ```output is the stop string; only with something after it is it invented. It may be the closing fence.
    fabricated = fabricated or _INVENTED.search(text, text.rfind("\n", 0, block.end) + 1) is not None
    source = read_source(str(block.content))
    if isinstance(source, Malformed):
        return Feedback(source.message, kept, fabricated)
    return RunCode((ToolCall(CODE_INTERPRETER, {"code": source}),), kept, fabricated)


def _first_fence(text: str) -> int:
    """Offset of the first fence that may be of Python or of output and starts a line, after blanks; -1 for none."""
    seen = 0
    for fence in _ANY.finditer(text):
        newline = text.rfind("\n", seen, fence.start())  # not further back, for linear time: a fence is no blank
        if (newline >= 0 or seen == 0) and not text[newline + 1 : fence.start()].strip(_BLANKS):
            return fence.start()
        seen = fence.end()
    return -1


def _close(kind: str, text: str, match: re.Match[str]) -> Block | None:
    if not starts_line(text, match.start(), _BLANKS):
        return None
    n_ticks = match.group().count("`")
    for line in _CLOSING.finditer(text, match.end()):
        indent = text[text.rfind("\n", 0, line.start()) + 1 : line.start()]
        if len(line.group(1)) >= n_ticks and not indent.strip(_BLANKS):
            return Block(kind, match.start(), line.end(1), text[match.start() : line.end(1)])
    stripped = text.rstrip()
    if stripped.endswith("`" * n_ticks) and len(stripped) > match.end():  # print(1)``` and the end of the turn
        return Block(kind, match.start(), len(stripped), text[match.start() : len(stripped)])
    return Block(kind, match.start(), None)


_RULES = Rules(
    {
        "python": (_PYTHON, lambda text, match, seen: _close("python", text, match)),
        "output": (_OUTPUT, lambda text, match, seen: _close("output", text, match)),
    }
)
_NO_FENCE = Rules({})
