"""``ScriptedSolver``: the demo's policy until a trained one ships. A script, not a model."""

from __future__ import annotations

import json
import random
import re
from enum import StrEnum
from typing import Final

from retool_env.errors import ConfigurationError
from retool_env.rollout.policy import Conversation, Reply
from retool_env.rollout.programs import Program, write_program


class Style(StrEnum):
    """The ways of a scripted attempt."""

    REASONING = "reasoning"
    """Recites the gold answer after some words; no code."""
    ONE_BLOCK = "one_block"
    """One program, then the answer its output gives."""
    SEVERAL_BLOCKS = "several_blocks"
    """Looks at the data first, then computes."""
    ERROR = "error"
    """A program with a bug, a look at the traceback, a corrected program."""
    TIMEOUT = "timeout"
    """A loop that never ends, then a better program."""
    MALFORMED = "malformed"
    """A call the protocol cannot read, then a proper one."""
    WRONG = "wrong"
    """A program with an off-by-one slip, and so a wrong answer; without code where there is no program."""
    NO_ANSWER = "no_answer"
    """Talks and stops: neither code nor an answer."""


_DECK: Final = (
    *[Style.REASONING] * 2,
    *[Style.ONE_BLOCK] * 5,
    *[Style.SEVERAL_BLOCKS] * 3,
    *[Style.ERROR] * 2,
    Style.TIMEOUT,
    Style.MALFORMED,
    Style.WRONG,
    Style.NO_ANSWER,
)
_NEEDS_PROGRAM: Final = {Style.ONE_BLOCK, Style.SEVERAL_BLOCKS, Style.ERROR, Style.TIMEOUT, Style.MALFORMED}
_MAX_RETRIES: Final = 2
PROTOCOLS: Final = ("code_tags", "tool_calls", "markdown")
"""The protocols the script can write."""


class ScriptedSolver:
    """A scripted policy that writes ReTool text in all its variety, so that every path of the environment is used.

    It is no model, and its scores say nothing about any: it knows how the built-in problems are solved and writes real
    Python for them, from the numbers in the question; the environment runs it, and the script reads its answer off the
    real output. For problems of other kinds it has no program: there it recites the gold answer, or fails on purpose.

    The style of an attempt (``Style``) follows from the seed and the attempt's number: sixteen attempts in a row hold
    every style.
    """

    def __init__(self, seed: int = 0):
        """Makes the policy.

        Args:
            seed: Fixes which attempt has which style, and its wording.
        """
        self.seed = seed

    def describe(self) -> str:
        """Returns one line that says that this is a script."""
        return "scripted solver (a script that knows the built-in problems; no model is involved)"

    def style(self, conversation: Conversation) -> Style:
        """Returns the style of an attempt; of those that need no program, where there is none for the problem."""
        deal, place = divmod(conversation.attempt, len(_DECK))
        deck = list(_DECK)
        _rng(self.seed, "deck", deal).shuffle(deck)
        style = deck[place]
        if style in _NEEDS_PROGRAM and _program(conversation) is None:
            return Style.REASONING
        return style

    async def act(self, conversation: Conversation) -> Reply:
        """Writes the next turn.

        Args:
            conversation: The attempt so far; the last observation decides how it goes on.

        Raises:
            ConfigurationError: The protocol is not one of ``PROTOCOLS``.
        """
        if conversation.protocol not in PROTOCOLS:
            raise ConfigurationError(
                f"the scripted policy writes {', '.join(PROTOCOLS)}, not {conversation.protocol!r}; use a model for it"
            )
        turn = len(conversation.exchanges)
        rng = _rng(self.seed, conversation.attempt, conversation.problem.id, turn)
        text = self._write(conversation, turn, rng)
        stop = next((string for string in conversation.stop if text.endswith(string)), None)
        return Reply(text, stop_reason=stop)

    async def aclose(self) -> None:
        """Does nothing: a script holds no connection."""

    def _write(self, conversation: Conversation, turn: int, rng: random.Random) -> str:
        protocol = conversation.protocol
        style = self.style(conversation)
        program = _program(conversation)
        if style is Style.NO_ANSWER:
            return "This one has many cases, and I do not see which of them matter. I cannot finish it."
        if style is Style.REASONING or program is None:
            answer = conversation.problem.answer
            return "Thinking it through step by step, " + _answer(
                protocol, _spoil(answer) if style is Style.WRONG else answer
            )
        if turn == 0:
            return f"{program.plan}\n{_first_call(protocol, style, program, rng)}"
        seen = conversation.exchanges[-1].observation.text
        found = re.findall(r"^answer = (\S+)", seen, re.MULTILINE)
        if found:
            return f"The program gives {found[-1]}, " + _answer(protocol, found[-1])
        if turn > _MAX_RETRIES:
            return "The interpreter does not give me a result, so I have no answer."
        return f"{_reaction(seen, style)}\n{_call(protocol, program.source, rng)}"


def _rng(*parts: object) -> random.Random:
    # A seed made of text is hashed by random itself, the same in every process and on every supported Python.
    return random.Random("/".join(map(str, parts)))


def _program(conversation: Conversation) -> Program | None:
    family = conversation.problem.metadata.get("family")
    return write_program(family, conversation.problem.question) if isinstance(family, str) else None


def _first_call(protocol: str, style: Style, program: Program, rng: random.Random) -> str:
    match style:
        case Style.MALFORMED:
            return _malformed_call(protocol, program)
        case Style.SEVERAL_BLOCKS:
            look = _call(protocol, _look(program), rng)
            # Only this protocol can ask for two programs in one turn.
            both = protocol == "tool_calls" and rng.random() < 0.5
            return f"{look}\n{_call(protocol, program.source, rng)}" if both else look
        case Style.ERROR:
            return _call(protocol, _break(program, rng), rng)
        case Style.TIMEOUT:
            return _call(protocol, _never_ending(program), rng)
        case Style.WRONG:
            return _call(protocol, f'{_without_print(program)}\nprint("answer =", {_SLIP})', rng)
        case _:
            return _call(protocol, program.source, rng)


_SLIP: Final = "int(result) + 1"


def _without_print(program: Program) -> str:
    return program.source.rpartition("\n")[0]


def _look(program: Program) -> str:
    """A program that only looks at the numbers of the question."""
    names = [name for group in re.findall(r"^([\w, ]+) = ", program.data, re.MULTILINE) for name in group.split(", ")]
    prints = "\n".join(f'print("{name}:", {name})' for name in names)
    return "\n".join(part for part in (program.imports, program.data, prints) if part)


def _break(program: Program, rng: random.Random) -> str:
    """The program with a bug in it: text added to a number, a forgotten import or variable, or a syntax error."""
    whole = _without_print(program)
    forgotten = program.imports or program.data
    return rng.choice(
        [
            f'{whole}\nprint("answer = " + [result])',
            program.source.replace(forgotten, "", 1).strip(),
            f'{whole}\nprint("answer =", result',
        ]
    )


def _never_ending(program: Program) -> str:
    return f"{_without_print(program)}\nguess = 0\nwhile guess != result:\n    guess += 0  # tries them one by one"


def _call(protocol: str, code: str, rng: random.Random) -> str:
    if protocol == "markdown":
        return f"```python\n{code}\n```"
    if protocol == "tool_calls":
        call = {"name": "code_interpreter", "arguments": {"code": code}}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    fenced = rng.random() < 0.7
    return f"<code>\n```python\n{code}\n```\n</code>" if fenced else f"<code>\n{code}\n</code>"


def _malformed_call(protocol: str, program: Program) -> str:
    if protocol == "tool_calls":
        # Python's way to write a dict, which is not JSON; one of the commonest slips of models.
        call = {"name": "code_interpreter", "arguments": {"code": program.source}}
        return f"<tool_call>\n{call!r}\n</tool_call>"
    if protocol == "markdown":
        return "```python\n```"
    return "<code>\n```python\n```\n</code>"


def _answer(protocol: str, answer: str) -> str:
    if protocol == "code_tags":
        return f"so the answer is\n<answer>\n\\boxed{{{answer}}}\n</answer>"
    return f"so the answer is \\boxed{{{answer}}}."


def _spoil(answer: str) -> str:
    return str(int(answer) + 1) if re.fullmatch(r"-?\d{1,1000}", answer) else "0"


def _reaction(seen: str, style: Style) -> str:
    """What a solver says about an output without an answer, before its next program."""
    error = re.findall(r"\b([A-Z]\w*(?:Error|Exception))\b", seen)
    if error:
        return f"That was a {error[-1]}: a slip in my code. Corrected:"
    if style is Style.TIMEOUT:
        return "That loop never gets there. A direct computation:"
    if style is Style.MALFORMED:
        return "The call was not well formed. Once more:"
    return "The numbers are read correctly. Now the computation:"
