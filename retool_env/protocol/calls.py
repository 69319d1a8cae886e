"""Reads one tool call as models write it: Hermes and Qwen JSON in ``<tool_call>``, or the XML form of Qwen3-Coder."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple, TypeGuard

from retool_env.plain import plain_strings, plain_text
from retool_env.protocol.blocks import Block, Malformed, Seen, starts_line
from retool_env.protocol.source import read_source
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry

CALL = "call"
_OPENER = "<tool_call>"
_CLOSER = "</tool_call>"
_SPACE = re.compile(r"\s*+")
_FUNCTION = re.compile(r"<function=([^<>\s]{1,100})>")
_PARAMETER = re.compile(r"\s*+<parameter=([^<>\s]{1,100})>")
_PARAMETER_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*+</function>")
_UNCLOSED_TAG = Malformed("malformed call: a tag is not closed")


class _BadNumberError(ValueError):
    """Text that Python's JSON takes for a number and JSON does not, or a number that no float can hold."""


def _refuse_constant(text: str) -> float:
    raise _BadNumberError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _BadNumberError(f"the number {text[:40]} is too large")
    return value


# Not strict: models write raw newlines in strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)


class WrittenCall(NamedTuple):
    """A call as written, not checked yet.

    Attributes:
        name: What the model called; of any type, JSON allows that.
        arguments: The arguments, of any type; in the XML form, a dict of strings.
        is_xml: Written in the XML form, where every argument is text.
    """

    name: object
    arguments: object
    is_xml: bool = False


def close_tagged(text: str, match: re.Match[str], seen: Seen) -> Block | None:
    """Reads a call in ``<tool_call>`` tags (a ``Close``); the content is a ``WrittenCall`` or ``Malformed``.

    A ``</tool_call>`` inside a JSON string or an XML parameter does not end the call. An opener that no call follows,
    and that another opener or the end of the turn follows first, is a mention.
    """
    start, inner = match.span()
    position = _after_space(text, inner)
    following = text[position : position + 1]
    if following not in ("{", "<", ""):
        opener = text.find(_OPENER, inner)
        if text.find(_CLOSER, inner, opener if opener >= 0 else len(text)) < 0:
            return None
    end: int | None = None
    content: WrittenCall | Malformed | None
    if following == "{":
        content, end = _read_json(text, position)
    elif text.startswith("<function=", position):
        content, end = _read_xml(text, position)
    elif following == "<":
        content = Malformed('malformed call: expected a JSON object with "name" and "arguments"')
    else:
        content = Malformed("invalid JSON: expected an object")
    if end is not None:
        end = _after_space(text, end)
        if text.startswith(_CLOSER, end):
            return Block(CALL, start, end + len(_CLOSER), content)
        content = Malformed("malformed call: unexpected text after it")
    closer = text.find(_CLOSER, inner)
    if closer < 0:
        return Block(CALL, start, None)
    return Block(CALL, start, closer + len(_CLOSER), content or _UNCLOSED_TAG)


def close_bare(text: str, match: re.Match[str], seen: Seen) -> Block | None:
    """Reads an XML call without its ``<tool_call>`` (a ``Close``), which Qwen3-Coder often forgets.

    It must start a line, or it is a mention. A ``</tool_call>`` right after it belongs to it.
    """
    start = match.start()
    if not starts_line(text, start):
        return None
    content, end = _read_xml(text, start)
    if end is None and content is not None:
        closer = text.find("</function>", match.end())
        end = None if closer < 0 else closer + len("</function>")
    if end is None:
        return Block(CALL, start, None)
    closer = _after_space(text, end)
    if text.startswith(_CLOSER, closer):
        end = closer + len(_CLOSER)
    return Block(CALL, start, end, content)


def check_call(call: WrittenCall, tools: ToolRegistry) -> ToolCall | Malformed:
    """Turns a written call into one that can run, or says what is wrong with it.

    Arguments that are a JSON text once more are decoded; XML arguments are decoded where the tool's schema does not
    want a string; code goes through ``read_source``.
    """
    try:
        if call.name == CODE_INTERPRETER and _is_code_alone(call.arguments):  # as its schema wants it, nearly always
            source = read_source(plain_text(call.arguments["code"]))
            return source if isinstance(source, Malformed) else ToolCall(CODE_INTERPRETER, {"code": source})
        arguments = _decoded(call.arguments)
        if call.is_xml and isinstance(arguments, dict) and isinstance(call.name, str) and call.name in tools:
            arguments = _typed(arguments, tools[call.name].parameters)
        checked = tools.check(plain_strings(call.name), arguments)
    except RecursionError:
        return Malformed("malformed call: arguments are nested too deeply")
    if isinstance(checked, str):
        return Malformed(checked)
    return _with_source(checked) if checked.name == CODE_INTERPRETER else checked


def _is_code_alone(arguments: object) -> TypeGuard[dict[str, str]]:
    return isinstance(arguments, dict) and len(arguments) == 1 and isinstance(arguments.get("code"), str)


def _with_source(call: ToolCall) -> ToolCall | Malformed:
    source = read_source(call.arguments["code"])
    return source if isinstance(source, Malformed) else ToolCall(call.name, {**call.arguments, "code": source})


def _read_json(text: str, position: int) -> tuple[WrittenCall | Malformed, int | None]:
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        return Malformed(f"invalid JSON: {error.msg} at character {error.pos - position}"), None
    except _BadNumberError as error:
        return Malformed(f"invalid JSON: {error}"), None
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        return Malformed("invalid JSON: a number is too long or the nesting too deep"), None
    if "name" not in value:
        return Malformed('malformed call: it has no "name"'), end
    return WrittenCall(value["name"], value.get("arguments", value.get("parameters", {}))), end


def _read_xml(text: str, position: int) -> tuple[WrittenCall | Malformed | None, int | None]:
    """Returns the call and where it ends; an end of None means that it is malformed, or (with no call) cut off."""
    unfinished = None if text.find("</function>", position) < 0 else _UNCLOSED_TAG
    function = _FUNCTION.match(text, position)
    if function is None:
        return unfinished, None
    arguments: dict[str, str] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        end = _PARAMETER_END.search(text, parameter.end())
        if end is None:
            return unfinished, None
        # Exactly one newline on each side belongs to the form; what else there is belongs to the value.
        arguments[parameter.group(1)] = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
        position = end.end()
    end = _FUNCTION_END.match(text, position)
    if end is None:
        return unfinished, None
    return WrittenCall(function.group(1), arguments, is_xml=True), end.end()


def _decoded(arguments: object) -> object:
    if not isinstance(arguments, str):
        return plain_strings(arguments)
    try:
        return plain_strings(_DECODER.decode(arguments))
    except ValueError:
        return arguments


def _typed(arguments: dict[str, Any], schema: Any) -> dict[str, Any]:
    properties = schema.get("properties")
    typed = dict(arguments)
    for name, value in arguments.items():
        wanted = properties.get(name) if isinstance(properties, dict) else None
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if kind is not None and kind != "string" and isinstance(value, str):
            typed[name] = _decoded(value)
    return typed


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()
