"""The rows of verl's data: the columns that ``retool data`` writes, and the problem of a row in the agent loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from retool_env.errors import ProblemError
from retool_env.grading import grade_answer
from retool_env.plain import plain_text
from retool_env.problems import Problem

AGENT_NAME: Final = "retool"
"""The agent loop's name in its configuration and in the rows."""


OWN_LOOPS: Final = {"tool_agent": "tool_calls"}
"""The trainer's own loops that ``retool data rl --loop`` knows, and the protocol of the prompts for each."""


def rl_row(
    problem: Problem, number: int, split: str, prompt: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Returns a row of a data set for reinforcement learning.

    The prompt is the bare question, and the agent loop says around it what its protocol needs: one file serves all
    protocols.

    Args:
        problem: The problem.
        number: Number of the row, from 0.
        split: Name of the split: "train", "test".
        prompt: Chat messages to use instead, for verl's own ``tool_agent`` loop, which takes the prompt as it stands.
    """
    messages = [{"role": "user", "content": problem.question}] if prompt is None else list(map(dict, prompt))
    return {
        "data_source": problem.source or "retool",
        "agent_name": AGENT_NAME if prompt is None else "tool_agent",
        "prompt": messages,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "split": split,
            "index": number,
            "id": problem.id,
            "question": problem.question,
            "need_tools_kwargs": False,
        },
    }


def sft_row(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a row of a data set for verl's multi-turn supervised training.

    Args:
        messages: The conversation.
        tools: Schemas of the tools that the chat template shows; without any there is no such column.
    """
    row: dict[str, Any] = {"messages": list(map(dict, messages))}
    return row | {"tools": list(map(dict, tools))} if tools else row


def row_problem(fields: Mapping[str, Any], grader: str = "default") -> Problem:
    """Returns the problem of a row as verl hands it to an agent loop.

    The question is ``extra_info["question"]`` or else what the user says last in the prompt.

    Args:
        fields: The row.
        grader: How answers are compared.

    Raises:
        ProblemError: There is no question of text alone, or no gold answer that the grader can compare with.
    """
    extra = _mapping(fields.get("extra_info"))
    number = _python(extra.get("index", fields.get("index")))
    name = _text(extra.get("id")) or _text(number) or "row"
    where = f"row {name:.80}: "
    gold = gold_answer(_mapping(fields.get("reward_model")).get("ground_truth"), where)
    question = _text(extra.get("question")) or _user_turn(fields.get("raw_prompt"), where)
    source = _text(fields.get("data_source")) or ""
    try:
        problem = Problem(id=name, question=question or "", answer=gold, source=source)
        grade_answer("", problem.answer, preset=grader)  # the grader would refuse the gold when the attempt is over
    except ValidationError as error:
        first = error.errors()[0]
        raise ProblemError(f"{where}{first['loc'][0]}: {first['msg']}") from error
    except ValueError as error:
        raise ProblemError(f"{where}reward_model.ground_truth: {error}") from error
    return problem


def gold_answer(value: object, where: str = "") -> str:
    """Returns the gold answer that a row has in ``reward_model["ground_truth"]``, as text.

    Raises:
        ProblemError: It is neither a text nor a number; the message begins with ``where``.
    """
    gold = _text(value)
    if not gold:
        raise ProblemError(f"{where}reward_model.ground_truth must be a text or a number, got {value!r:.80}")
    return gold


def _python(value: Any) -> Any:
    """A numpy number or array, which is what a data set may hold, as Python has it."""
    return value.tolist() if hasattr(value, "tolist") else value


def _text(value: Any) -> str | None:
    """A text or a finite number as valid text; None for anything else."""
    value = _python(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return plain_text(str(value))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _user_turn(messages: object, where: str) -> str | None:
    """What the user says last in a prompt: a text, or a message in parts of text; None without any."""
    messages = _python(messages)
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return None
    turns = [message for message in map(_mapping, messages) if message.get("role") == "user"]
    content = _python(turns[-1].get("content")) if turns else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = list(map(_mapping, content))
        # An image that is dropped without a word leaves a question that nobody can answer.
        if others := [str(part.get("type")) for part in parts if part.get("type", "text") != "text"]:
            raise ProblemError(f"{where}the prompt has a part {others[0]!r:.40}; the question must be text alone")
        return "".join(filter(None, (_text(part.get("text")) for part in parts)))
    return _text(content)
