r"""Reward functions for verl's ``reward.custom_reward_function``, for runs with verl's own ``tool_agent`` loop.

    reward.custom_reward_function.path=pkg://retool_verl.reward
    reward.custom_reward_function.name=compute_score

``retool_verl.loop`` needs none of them: it pays in the loop, and verl does not ask again. Here all that is known is the
whole response as one text, tool output in it, and only what the policy wrote after the last output is graded: a program
that prints ``\boxed{42}`` earns nothing. That works where the chat template marks output with ``<tool_response>`` tags
(Qwen), which ``RetoolInterpreterTool`` keeps out of the output itself.

Both may be called from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from retool_env.config import EpisodeConfig
from retool_env.grading import Grade, grade, grade_answer
from retool_env.plain import plain_text
from retool_env.protocol import get_protocol
from retool_env.protocol.base import Answer, EndReason
from retool_env.reward import RewardFacts, compute_reward
from retool_verl.rows import gold_answer

_OUTPUT_ENDS: Final = ("</tool_response>", "</interpreter>")
_TURN: Final = re.compile(r"\s*(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?assistant\n")
"""What is left of the opening of a turn once verl has dropped the control tokens."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward: str = "tool_aware",
    **kwargs: Any,
) -> dict[str, float]:
    """Pays by one of the package's tables; the default is its own.

    Args:
        data_source: Not looked at.
        solution_str: The whole response.
        ground_truth: The gold answer.
        extra_info: verl's; ``num_turns`` of it counts the calls.
        reward: Name of the table (``reward.custom_reward_function.reward_kwargs.reward``).
        **kwargs: What else verl hands on.

    Returns:
        ``score`` and, for verl's metrics, ``acc``, ``answered`` and ``tool_calls``.

    Raises:
        ProblemError: The gold is neither a text nor a number.
        ConfigurationError: There is no such table.
    """
    gold, text = gold_answer(ground_truth), last_turn(plain_text(solution_str))
    action = get_protocol("tool_calls").parse(text, EpisodeConfig(protocol="tool_calls").registry())
    answer = action.text if isinstance(action, Answer) else None  # in this protocol always a box
    found = None if answer is None else grade_answer(answer, gold)
    return _paid(found, answer, solution_str, extra_info, reward)


def compute_score_verl(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Pays as verl's ReTool recipe: its strict comparison of the box, and its table, to the last bit.

    Takes and returns what ``compute_score`` does. Other than the recipe's own function it grades no tool output.
    """
    found = grade(last_turn(solution_str), gold_answer(ground_truth), preset="strict")
    return _paid(found, found.answer, solution_str, extra_info, "verl")


def last_turn(response: str) -> str:
    """Returns what the policy wrote after the last tool output of a response."""
    at = max(response.rfind(end) + len(end) if end in response else 0 for end in _OUTPUT_ENDS)
    text = response[at:]
    opening = _TURN.match(text) if at else None
    return text[opening.end() :] if opening else text


def _paid(
    found: Grade | None, answer: str | None, response: str, extra_info: Mapping[str, Any] | None, reward: str
) -> dict[str, float]:
    num_turns = (extra_info or {}).get("num_turns")
    observations = response.count(_OUTPUT_ENDS[0]) if num_turns is None else max(0, (int(num_turns) - 1) // 2)
    turns = observations + 1 if num_turns is None else max(1, int(num_turns) - 1 - observations)
    correct = found is not None and found.correct
    facts = RewardFacts(
        correct=correct,
        answer=answer,
        ended=EndReason.NO_ACTION if answer is None else EndReason.ANSWERED,
        interpreter_calls=observations,
        tool_calls=observations,
        turns=turns,
        observations=observations,
        fabricated=False,
    )
    return {
        "score": compute_reward(reward, facts).total,
        "acc": float(correct),
        "answered": float(answer is not None),
        "tool_calls": float(observations),
    }
