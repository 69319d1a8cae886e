r"""Solved problems to learn from: the rows of ReTool-SFT, read, and written again as a protocol has them.

A row holds two messages. The user's has the problem after ``*user question:*``; the assistant's is the whole attempt in
one text, with ``<code>`` blocks (in a fence or not), what they printed in ``<interpreter>`` tags, and an ``<answer>``.
``read_demonstrations`` takes it apart; ``demonstration_messages`` puts it together as an attempt of ours looks: our
prompt, code and output in our form, output cut and made neutral as an attempt's is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retool_env.config import EpisodeConfig
from retool_env.errors import ConfigurationError, ProblemError
from retool_env.plain import plain_strings
from retool_env.problems.columns import Row
from retool_env.problems.files import file_rows
from retool_env.problems.hub import hub_rows
from retool_env.problems.rows import BadRow
from retool_env.protocol import get_protocol
from retool_env.protocol.base import Answer, Message
from retool_env.protocol.blocks import Malformed
from retool_env.protocol.observation import render
from retool_env.protocol.source import read_source
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolResult

RETOOL_SFT: Final = "JoeYing/ReTool-SFT"
"""Its id on the hub; 2,000 rows."""

PROTOCOLS: Final = ("code_tags", "tool_calls")

_FILE_NAMES: Final = (".parquet", ".jsonl", ".json")
_QUESTION: Final = "*user question:*"
_ASKS_FOR_BOX: Final = re.compile(r"\s*Answer the following Math Problem and put the answer in the format of[^\n]*\n+")
_REMINDER: Final = re.compile(
    r"\n\s*Remember to place the final answer in the last part using the format.*\Z", re.DOTALL
)
_CODE: Final = re.compile(r"<code>(.*?)</code>", re.DOTALL)
_OUTPUT: Final = re.compile(r"\s*<interpreter>(.*?)</interpreter>", re.DOTALL)
_SHOWN: Final = re.compile(r"(?<=</code>)(\n<interpreter>\n.*?\n</interpreter>\n)", re.DOTALL)
"""What ``code_tags`` shows after a block. Output cannot hold the closing tag: it is neutral."""
_ALONE: Final = ("<interpreter>", "</interpreter>", "<code>", "</code>", "<tool_call>", "</tool_call>")
"""What text beside the blocks cannot hold: a protocol would read it as the beginning or the end of one."""
_ANSWER_TAGS: Final = re.compile(r"[ \t]*</?answer>[ \t]*\n?")


@dataclass(frozen=True, slots=True)
class Step:
    """A turn that ran code.

    Attributes:
        text: What came before the code.
        code: The source.
        output: What it printed.
    """

    text: str
    code: str
    output: str


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A solved problem.

    Attributes:
        question: The problem, without instructions.
        steps: The turns that ran code, in order; perhaps none.
        ending: The last turn, with the answer in ``<answer>`` tags.
    """

    question: str
    steps: tuple[Step, ...]
    ending: str


def read_demonstrations(source: str | Path = RETOOL_SFT, limit: int | None = None) -> Iterator[Demonstration | BadRow]:
    """Yields the rows of ReTool-SFT, or of data in the same form: those that cannot be used as ``BadRow``.

    Args:
        source: A file (parquet, or JSONL), a folder, or an id on the hub.
        limit: Read only so many rows.

    Raises:
        ConfigurationError: The source cannot be reached.
        ProblemError: The file is not what its name says.
        MissingDependencyError: An optional package is needed and not installed.
    """
    if not str(source):
        raise ConfigurationError("demonstrations: the source is an empty text")
    path = Path(source)
    is_file = path.is_file() or (not path.is_dir() and path.suffix in _FILE_NAMES)
    rows = file_rows(path) if is_file else hub_rows(str(source), [None], None if path.is_dir() else "train", None)
    yield from _read(rows, str(source), limit)


def _read(rows: Iterable[Row | BadRow], origin: str, limit: int | None) -> Iterator[Demonstration | BadRow]:
    for number, row in enumerate(rows):
        if number == limit:
            return
        if isinstance(row, BadRow):
            yield row
            continue
        try:
            yield read_demonstration(row.values.get("messages"))
        except ProblemError as error:
            yield BadRow(origin, row.number, "messages", str(error))


def read_demonstration(messages: object) -> Demonstration:
    """Reads one row: its messages.

    Raises:
        ProblemError: They are not in the form of ReTool-SFT; says why.
    """
    turns = plain_strings(messages) if isinstance(messages, list) else []
    roles = [turn.get("role") if isinstance(turn, Mapping) else None for turn in turns]
    if roles != ["user", "assistant"] or not all(isinstance(turn.get("content"), str) for turn in turns):
        raise ProblemError("must hold one message of the user and one of the assistant, with text")
    asked, said = (turn["content"] for turn in turns)
    question = _question(asked)
    steps, ending = _steps(said)
    return Demonstration(question, steps, ending)


def _question(asked: str) -> str:
    _, found, question = asked.partition(_QUESTION)
    if not found:
        raise ProblemError(f"the user's text has no {_QUESTION!r}")
    opening = _ASKS_FOR_BOX.match(question)
    question = _REMINDER.sub("", question[opening.end() :] if opening else question).strip()
    if not question:
        raise ProblemError("the question is empty")
    return question


def _steps(said: str) -> tuple[tuple[Step, ...], str]:
    steps: list[Step] = []
    at = 0
    while block := _CODE.search(said, at):
        output = _OUTPUT.match(said, block.end())
        if output is None:
            raise ProblemError("a block of code has no output after it")
        source = read_source(block[1])
        if isinstance(source, Malformed):
            raise ProblemError(f"a block of code cannot be used: {source.message}")
        steps.append(Step(said[at : block.start()].strip(), source, output[1].strip("\n")))
        at = output.end()
    ending = said[at:].strip()
    for tag in _ALONE:
        if tag in ending or any(tag in step.text for step in steps):
            raise ProblemError(f"a {tag} stands alone")
    answer = get_protocol("code_tags").parse(ending, EpisodeConfig().registry())
    if not isinstance(answer, Answer):
        raise ProblemError("it does not end with an answer")
    # By default no other answer is paid for, and with tool_calls no other is seen.
    if not answer.boxed or not answer.text.strip():
        raise ProblemError("it does not end with an answer in a \\boxed{}")
    return tuple(steps), ending


def demonstration_messages(shown: Demonstration, rules: EpisodeConfig) -> list[Message]:
    """Returns the conversation of a demonstration, as an attempt under these rules would be.

    With ``code_tags`` it is one message of the assistant, outputs in it; with ``tool_calls`` one for each turn and tool
    messages between them. The calls stand in the text, as the policy writes them.

    Args:
        shown: The demonstration.
        rules: Of the attempts that follow: protocol, limits that the prompt states, a template.

    Raises:
        ConfigurationError: The protocol is neither of ``PROTOCOLS``.
    """
    if rules.protocol not in PROTOCOLS:
        raise ConfigurationError(f"protocol: must be one of {', '.join(PROTOCOLS)}, got {rules.protocol!r}")
    protocol = get_protocol(rules.protocol)
    messages = protocol.messages(shown.question, rules.registry(), rules.limits, rules.prompt_template)
    text = ""
    for step in shown.steps:
        output = render(ToolResult(step.output), rules.limits, (*protocol.tags, *rules.special_tokens))
        call = ToolCall(CODE_INTERPRETER, {"code": step.code})
        observation = protocol.observe([output], [call])
        text += "\n".join(filter(None, (step.text, _written(call, rules.protocol))))
        if observation.messages:
            messages.append({"role": "assistant", "content": text})
            messages += [{"role": "tool", "content": message["content"]} for message in observation.messages]
            text = ""
        else:
            text += observation.text
    ending = shown.ending if rules.protocol == "code_tags" else _ANSWER_TAGS.sub("", shown.ending).strip()
    messages.append({"role": "assistant", "content": text + ending})
    return messages


def split_shown(text: str) -> list[tuple[str, bool]]:
    """Takes a message of the assistant's apart into what the policy writes and, True with it, what it is shown."""
    return [(piece, number % 2 == 1) for number, piece in enumerate(_SHOWN.split(text)) if piece]


def _written(call: ToolCall, protocol: str) -> str:
    """A call as the policy writes it."""
    code = call.arguments["code"]
    if protocol == "code_tags":
        return f"<code>\n```python\n{code}\n```\n</code>"
    said = json.dumps({"name": call.name, "arguments": {"code": code}}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"
