r"""Finding the answer in a text: strip what is not an answer, then take the last balanced ``\boxed{}``.

Pure, and linear in the length of the text.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\\\?boxed\s*\{|\\.|[{}]", re.DOTALL)
_NESTED = re.compile(r"(?:\s*\\boxed\s*\{)+")

# Spans whose content the policy did not state as its answer, by their opening marker.
_SPAN = re.compile(
    r"<(think|code|interpreter|tool_call|tool_response)>|```[ \t]*(?:python|py|output|tool_output)\b", re.I
)
_END_OF_THOUGHT = "</think>"
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*)</answer>", re.S | re.I)
_ANSWER_LINE = re.compile(r"^[ \t#>*_-]*(?:final[ \t]+)?answer[*_ \t]*:[ \t]*([^\n]*)$", re.I | re.M)
_MAX_LINE = 1000
_TRAILING_MARKUP = re.compile(r"(?:\s|[*_`]|</?[a-z]+>|<\|[a-z_]+\|>)+$", re.I)


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last balanced ``\boxed{...}``, outermost braces removed, or None.

    "Last" is by where the box closes; a box inside a box counts as part of the outer one. Escaped braces (``\{``) do
    not count. An unclosed box is not an answer, and does not hide an earlier closed one. A doubled backslash (text that
    was escaped once too often) is read as one.
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
        elif token.endswith("{") and "boxed" in token:
            stack.append(match.end())
    return None if best is None else text[best[0] : best[1]]


def unwrap_boxes(text: str) -> str:
    r"""Removes boxes that wrap the whole text, however deep: ``\boxed{\boxed{42}}`` becomes ``42``."""
    opening = _NESTED.match(text)
    if opening is None:
        return text
    depth = opening.group().count("{")
    end = len(text)
    for _ in range(depth):
        while text[end - 1].isspace():
            end -= 1
        if end <= opening.end() or text[end - 1] != "}":
            return text
        end -= 1
    inner = text[opening.end() : end]
    return inner if balanced(inner) else text


def balanced(text: str) -> bool:
    r"""Whether every brace of the text that is not escaped has its partner."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        depth += 1 if token.endswith("{") and token != "\\{" else -1 if token == "}" else 0
        if depth < 0:
            return False
    return depth == 0


def model_text(text: str) -> str:
    """Returns the text without its thoughts, code and tool output.

    Removed are ``<think>``, ``<code>``, ``<interpreter>``, ``<tool_call>`` and ``<tool_response>`` spans, python and
    output fences, and everything before a ``</think>`` that was opened in the prompt. A span that is not closed goes on
    to the end: what a tool printed must never be graded as what the policy said.
    """
    end_of_thought = text.rfind(_END_OF_THOUGHT)
    if end_of_thought >= 0:
        text = text[end_of_thought + len(_END_OF_THOUGHT) :]
    kept: list[str] = []
    position = 0
    while (opening := _SPAN.search(text, position)) is not None:
        kept.append(text[position : opening.start()])
        tag = opening.group(1)
        closing = f"</{tag.lower()}>" if tag else "```"
        end = text.find(closing, opening.end())
        if end < 0:
            return "".join(kept)
        position = end + len(closing)
    kept.append(text[position:])
    return "".join(kept)


def extract_answer(text: str, *, answer_line: bool = False) -> str | None:
    r"""Returns the final answer a text states, or None.

    The last balanced ``\boxed{}`` of the model's own text; without any box, the content of the last
    ``<answer></answer>``.

    Args:
        text: What the policy wrote in its last turn. Tool output that was appended to it is ignored where it is marked.
        answer_line: Without a box, take the last line of the form ``Answer: 42``, as DAPO's prompt asks for.
    """
    own = model_text(text)
    boxed = last_boxed(own)
    if boxed is not None:
        return boxed
    tagged = None
    for match in _ANSWER_TAG.finditer(own):
        tagged = match.group(1)
    if tagged is not None:
        # An unclosed box inside is a cut answer, not an answer.
        return None if "\\boxed" in tagged else tagged.strip()
    if not answer_line:
        return None
    line = None
    for match in _ANSWER_LINE.finditer(own):
        line = match.group(1)
    if line is None or len(line) > _MAX_LINE:
        return None
    return _TRAILING_MARKUP.sub("", line).strip("*_` ") or None
