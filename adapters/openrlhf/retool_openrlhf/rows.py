"""The rows of OpenRLHF's data: what ``retool data`` writes, and the problem of a row in the executor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from retool_env.errors import ProblemError
from retool_env.grading import grade_answer
from retool_env.problems import Problem

OWN_LOOPS: Final = {"agent_instance": "code_tags"}
"""The trainer's own loops that ``retool data rl --loop`` knows, and the protocol of the prompts for each."""

TRAIN: Final = "train"
"""The split that is trained on. Rows of any other are for evaluation: their rewards are 1.0 or 0.0."""


def rl_row(
    problem: Problem, number: int, split: str, prompt: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Returns a row of a data set for reinforcement learning: ``--data.input_key input --data.label_key label``.

    ``input`` is the bare question, and the executor says around it, through the chat template, what its protocol needs:
    one file serves all protocols. ``label`` is JSON with the gold answer, and says whether the row is for evaluation.

    Args:
        problem: The problem.
        number: Number of the row, from 0.
        split: Name of the split. What is not ``"train"`` is for evaluation.
        prompt: Chat messages to use instead, for OpenRLHF's own loop, which wants ``--data.apply_chat_template``.
    """
    label = {"answer": problem.answer, "id": problem.id, "source": problem.source, "evaluation": split != TRAIN}
    return {
        "input": problem.question if prompt is None else list(map(dict, prompt)),
        "label": json.dumps(label, ensure_ascii=False),
        # Names the figures of evaluation, as in eval_aime-2024_pass1.
        "datasource": problem.source or "retool",
        "index": number,
    }


def sft_row(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a row of a data set for supervised training: ``--data.input_key messages``, with ``retool_openrlhf.sft``.

    Args:
        messages: The conversation.
        tools: Schemas of the tools that the chat template shows; JSON in the file, "" for none.
    """
    shown = json.dumps(list(map(dict, tools)), ensure_ascii=False) if tools else ""
    return {"messages": list(map(dict, messages)), "tools": shown}


def read_label(prompt: str, label: object, grader: str = "default") -> tuple[Problem, bool]:
    """Returns the problem of a row as OpenRLHF hands it over, and whether the row is for evaluation.

    Args:
        prompt: The question.
        label: The gold answer, or JSON with it: ``{"answer": "42", "id": "p1", "source": "mine", "evaluation": true}``;
            only the answer must be there.
        grader: How answers are compared.

    Raises:
        ProblemError: There is no question, or no gold answer that the grader can compare with.
    """
    fields = _fields(label)
    answer, evaluation = fields.get("answer"), fields.get("evaluation", False)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ProblemError(f"label: must be the gold answer, or JSON with it as 'answer', got {label!r:.100}")
    if not isinstance(evaluation, bool):
        raise ProblemError(f"label: 'evaluation' must be true or false, got {evaluation!r:.100}")
    name, source = str(fields.get("id") or "row"), str(fields.get("source") or "")
    try:
        problem = Problem(id=name, question=prompt, answer=str(answer), source=source)
        grade_answer("", problem.answer, preset=grader)  # the grader would refuse the gold when the attempt is over
    except ValidationError as error:
        first = error.errors()[0]
        raise ProblemError(f"row {label!r:.100}: {first['loc'][0]}: {first['msg']}") from error
    except ValueError as error:
        raise ProblemError(f"row {label!r:.100}: {error}") from error
    return problem, evaluation


def _fields(label: object) -> Mapping[str, Any]:
    if isinstance(label, Mapping):
        return label
    if isinstance(label, str) and label.lstrip().startswith("{"):
        try:
            fields = json.loads(label)
        except (ValueError, RecursionError):  # a set, say, is a gold answer
            return {"answer": label}
        if isinstance(fields, dict) and "answer" in fields:
            return fields
    return {"answer": label}
