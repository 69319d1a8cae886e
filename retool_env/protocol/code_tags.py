r"""The protocol of the ReTool paper (arXiv 2504.11536, section 2.3): ``<code>``, ``<interpreter>``, ``<answer>``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from retool_env.protocol.answers import read_answer, read_prose
from retool_env.protocol.base import Action, Ended, EndReason, Feedback, Limits, Message, Observation, Protocol, RunCode
from retool_env.protocol.blocks import THINK_TAGS, Block, Malformed, Rules, Seen, ahead, blank, plain_close, walk
from retool_env.protocol.prompts import opening_messages, require_code_only
from retool_env.protocol.source import read_source
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry

_FENCE = re.compile(r"\s*+```")
_FENCE_END = re.compile(r"```\s*+</code>")
_OWN_LINE = re.compile(r"[ \t]*+\r?\n|\s*+```|\s*+\Z")
_NEXT_BLOCK = re.compile(r"^[ \t]*+<code>(?=[ \t]*+\r?\n|\s*+```)", re.MULTILINE)
_LINE_BLOCK = re.compile(r"^[ \t]*+<code>", re.MULTILINE)


class CodeTags(Protocol):
    r"""A block in ``<code>`` tags runs, ``<answer>\boxed{...}</answer>`` answers; tags count exactly as written.

    * The first block of a turn runs. What follows it is dropped, because it was written before the output was seen,
      and the turn is flagged ``fabricated`` if it holds an invented ``<interpreter>``. A block beats an answer, in
      whatever order they stand.
    * A fenced block ends at the first ``</code>`` right after a fence, so that a tag inside a string does not end it;
      any other block ends at the first ``</code>``.
    * ``<code>`` within a sentence is a mention if a block on lines of its own starts before the next ``</code>``, or
      if no ``</code>`` follows and a complete answer does.
    * The first closed ``<answer>`` counts; without one, a box in the text does. Boxes in an invented
      ``<interpreter>`` never count.
    * Closed thinking neither acts nor answers, open thinking hides nothing (see ``blocks``). With the stop strings in
      use, a block inside thinking therefore runs: the engine stops at its end, when the thinking is still open.

    Observations continue the assistant's own turn. Only ``code_interpreter`` can be called.
    """

    name: ClassVar[str] = "code_tags"
    stop: ClassVar[tuple[str, ...]] = ("</code>", "</answer>")
    one_call: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = (
        *("<code>", "</code>", "<interpreter>", "</interpreter>", "<answer>", "</answer>"),
        *THINK_TAGS,
    )

    def parse(self, text: str, tools: ToolRegistry) -> Action:
        """Reads one turn; see the class for the rules."""
        first = _RULES.first(text)
        if first < 0:
            return read_prose(text, text, fabricated=False)
        hidden: list[Block] = []
        mention = False
        for block in walk(text, _RULES, first):
            if block.kind != "code":
                hidden += [block] if block.end is not None else []
            elif block.end is not None:
                return _run(text, block, _invented(hidden))
            elif _OWN_LINE.match(text, block.start + len("<code>")):
                return Ended(EndReason.INCOMPLETE, text, _invented(hidden))
            else:
                mention = True
        visible = blank(text, hidden) if hidden else text
        fabricated = _invented(hidden) or visible.find("</interpreter>", first) >= 0
        start = visible.find("<answer>", first)
        end = -1 if start < 0 else visible.find("</answer>", start)
        if end >= 0:
            start = visible.rfind("<answer>", start, end) + len("<answer>")
            return read_answer(visible[start:end], text[: end + len("</answer>")], fabricated)
        if start >= 0 or mention:
            return Ended(EndReason.INCOMPLETE, text, fabricated)
        return read_prose(visible, text, fabricated)

    def messages(
        self, question: str, tools: ToolRegistry, limits: Limits, template: str | None = None
    ) -> list[Message]:
        """Returns one user message; the built-in template is after the paper's.

        Raises:
            ConfigurationError: The template is not valid, or there are tools that this protocol cannot call.
        """
        require_code_only(self.name, tools)
        return opening_messages(self.name, question, limits, template)

    def observe(self, outputs: Sequence[str], calls: Sequence[ToolCall]) -> Observation:
        """Wraps each output in ``<interpreter>`` tags on lines of their own."""
        return Observation("\n" + "".join(f"<interpreter>\n{output}\n</interpreter>\n" for output in outputs))


def _invented(hidden: list[Block]) -> bool:
    return bool(hidden) and any(block.kind == "interpreter" for block in hidden)


def _run(text: str, block: Block, fabricated: bool) -> Action:
    assert block.end is not None
    kept = text[: block.end]
    fabricated = fabricated or text.find("<interpreter>", block.end) >= 0
    source = read_source(str(block.content))
    if isinstance(source, Malformed):
        return Feedback(source.message, kept, fabricated)
    return RunCode((ToolCall(CODE_INTERPRETER, {"code": source}),), kept, fabricated)


def _close(text: str, match: re.Match[str], seen: Seen) -> Block:
    """Finds where a block ends, and where it really starts if this ``<code>`` is only a mention before it."""
    start, inner = match.span()
    end = text.find("</code>", inner)
    if end < 0:
        return Block("code", start, None)
    if not _OWN_LINE.match(text, inner):
        real = _real_start(text, inner, end)
        if real >= 0:
            start, inner = real, real + len("<code>")
    fence = ahead(seen, _FENCE_END, text, text.index("```", inner) + 3) if _FENCE.match(text, inner) else None
    if fence:
        # Not beyond the next block: then this one just lacks its closing fence.
        following = ahead(seen, _LINE_BLOCK, text, end)
        if following is None or fence.start() < following.start():
            end = fence.end() - len("</code>")
    return Block("code", start, end + len("</code>"), text[inner:end])


def _real_start(text: str, start: int, end: int) -> int:
    """Offset of the ``<code>`` that a mention before it leads to: on a line of its own, or after thinking; or -1."""
    line = _NEXT_BLOCK.search(text, start, end)
    if line:
        return line.end() - len("<code>")
    thought = text.find("</think>", start, end)
    return -1 if thought < 0 else text.find("<code>", thought, end)


_RULES = Rules(
    {"code": ("<code>", _close), "interpreter": ("<interpreter>", plain_close("interpreter", "</interpreter>"))},
    marks=("<answer>", "</interpreter>"),
)
