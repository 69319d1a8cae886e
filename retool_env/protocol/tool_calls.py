r"""The protocol of chat models with tools: calls in ``<tool_call>``, observations as tool messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from retool_env.protocol.answers import read_prose
from retool_env.protocol.base import Action, Ended, EndReason, Feedback, Limits, Message, Observation, Protocol, RunCode
from retool_env.protocol.blocks import THINK_TAGS, Block, Malformed, Rules, blank, plain_close, walk
from retool_env.protocol.calls import CALL, WrittenCall, check_call, close_bare, close_tagged
from retool_env.protocol.prompts import opening_messages
from retool_env.tools import ToolCall, ToolRegistry

_RESPONSE = "response"


class ToolCalls(Protocol):
    r"""Calls any registered tool, several in a turn if it likes; a ``\boxed{}`` in a turn without calls answers.

    * Reads the JSON form of Hermes and Qwen and the XML form of Qwen3-Coder, with or without its ``<tool_call>``.
      JSON may hold raw newlines and arguments that are encoded twice; it is not repaired otherwise.
    * The calls of a turn run in order, all or none: a malformed or unknown one becomes feedback and none runs, a cut
      one makes the turn ``INCOMPLETE``.
    * The turn is kept up to its last call. An invented ``<tool_response>`` flags it ``fabricated``; calls after one
      that follows a call are dropped, because they rest on an output that never was.
    * JSON without tags, in a fence or in prose, is no call. Boxes in an invented ``<tool_response>`` never count.
    * Closed thinking neither acts nor answers, open thinking hides nothing (see ``blocks``).

    There is no stop string: a call ends with the end token of the chat template.
    """

    name: ClassVar[str] = "tool_calls"
    stop: ClassVar[tuple[str, ...]] = ()
    tags: ClassVar[tuple[str, ...]] = (
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        *("<function=", "</function>", "<parameter=", "</parameter>"),
        *THINK_TAGS,
    )

    def parse(self, text: str, tools: ToolRegistry) -> Action:
        """Reads one turn; see the class for the rules."""
        first = _RULES.first(text)
        if first < 0:
            return read_prose(text, text, fabricated=False)
        calls: list[ToolCall] = []
        hidden: list[Block] = []
        end = 0
        fabricated = False
        for block in walk(text, _RULES, first):
            if block.kind == _RESPONSE:
                fabricated = True
                if calls:
                    break
            if block.kind != CALL:
                hidden += [block] if block.end is not None else []
                continue
            if block.end is None:
                return Ended(EndReason.INCOMPLETE, text, fabricated)
            end = block.end
            call = check_call(block.content, tools) if isinstance(block.content, WrittenCall) else block.content
            if not isinstance(call, ToolCall):
                return _refuse(call, text[:end], fabricated, n_before=len(calls))
            calls.append(call)
        if calls:
            return RunCode(tuple(calls), text[:end], fabricated)
        visible = blank(text, hidden) if hidden else text
        return read_prose(visible, text, fabricated or visible.find("</tool_response>", first) >= 0)

    def messages(
        self, question: str, tools: ToolRegistry, limits: Limits, template: str | None = None
    ) -> list[Message]:
        """Returns one user message; the tools go through the chat template (``tools.schemas()``).

        Raises:
            ConfigurationError: The template is not valid.
        """
        return opening_messages(self.name, question, limits, template, unit="call")

    def observe(self, outputs: Sequence[str], calls: Sequence[ToolCall]) -> Observation:
        """Makes one tool message for each output, with the tool's name where there is a call."""
        messages: list[Message] = [{"role": "tool", "content": output} for output in outputs]
        for message, call in zip(messages, calls, strict=False):
            message["name"] = call.name
        text = "".join(f"<tool_response>\n{output}\n</tool_response>\n" for output in outputs)
        return Observation("\n" + text, tuple(messages))


def _refuse(problem: object, kept: str, fabricated: bool, n_before: int) -> Feedback:
    message = problem.message if isinstance(problem, Malformed) else "malformed call"
    if n_before:
        message += f" (call {n_before + 1} of the turn; none of its calls was run)"
    return Feedback(message, kept, fabricated)


_RULES = Rules(
    {
        CALL: ("<tool_call>", close_tagged),
        "bare": ("<function=", close_bare),
        _RESPONSE: ("<tool_response>", plain_close(_RESPONSE, "</tool_response>", follows="</tool_call>")),
    },
    marks=("</tool_response>",),
)
