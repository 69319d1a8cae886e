"""The rows of verl's data: the columns that ``retool data`` writes, and the problem of a row in the agent loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from retool_env.errors import ProblemError
from retool_env.problems import Problem

AGENT_NAME: Final = "retool"
"""The agent loop's name in its configuration and in the rows."""


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


def row_problem(fields: Mapping[str, Any]) -> Problem:
    """Returns the problem of a row as verl hands it to an agent loop.

    The question is ``extra_info["question"]`` or else what the user says in the prompt.

    Raises:
        ProblemError: There is no question, or no gold answer.
    """
    extra = _mapping(fields.get("extra_info"))
    gold = _mapping(fields.get("reward_model")).get("ground_truth")
    number = extra.get("index", fields.get("index"))
    name = str(extra.get("id") or number or "row")
    question = extra.get("question") or _user_turn(fields.get("raw_prompt"))
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise ProblemError(f"row {name:.80}: reward_model.ground_truth must be the gold answer, got {gold!r:.80}")
    try:
        return Problem(id=name, question=question, answer=str(gold), source=str(fields.get("data_source") or ""))
    except ValidationError as error:
        first = error.errors()[0]
        raise ProblemError(f"row {name:.80}: {first['loc'][0]}: {first['msg']}") from error


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _user_turn(messages: object) -> object:
    """What the user says last in a prompt: plain text, or None."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        messages = list(messages) if hasattr(messages, "tolist") else ()  # a numpy array of messages
    turns = [message["content"] for message in messages if message.get("role") == "user"]
    return turns[-1] if turns else None
