"""The reward tables: what an attempt is paid, from a handful of facts about it.

A table is a plain callable, so a custom one is a function of yours:

    def half_price(facts: RewardFacts) -> float:
        return 0.5 if facts.correct else 0.0

    env = gymnasium.make("ReTool-v0", reward=half_price)

A table is not asked when the attempt failed through no fault of the policy (``Outcome.fault``); that pays 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from retool_env.errors import ConfigurationError, RewardError
from retool_env.protocol.base import EndReason


class RewardFacts(NamedTuple):
    """What a reward table may look at.

    Attributes:
        correct: The attempt ended with a graded answer, and the answer is right.
        answer: The final answer, or None if none was given.
        ended: Why the attempt ended.
        interpreter_calls: ``code_interpreter`` calls that ran, whatever came of them (ok, error, time-out, ...). This
            is ``turns`` in the reward table of the documentation. Malformed calls do not count.
        tool_calls: Calls of any tool that ran, the user's included.
        turns: Turns of text the policy wrote.
        observations: Observations the policy was given (results of calls, or feedback).
        fabricated: The policy invented an observation in at least one turn.
    """

    correct: bool
    answer: str | None
    ended: EndReason
    interpreter_calls: int
    tool_calls: int
    turns: int
    observations: int
    fabricated: bool


RewardTable = Callable[[RewardFacts], float | Mapping[str, float]]
"""Returns the reward, or its named parts, whose sum is the reward."""


class Reward(NamedTuple):
    """A reward and where it came from.

    Attributes:
        total: The reward; finite.
        breakdown: Its parts by name; they add up to the total. The built-in tables have ``base`` (for the answer) and
            ``tool_bonus`` (for using the interpreter).
    """

    total: float
    breakdown: Mapping[str, float]


def tool_aware(facts: RewardFacts) -> Mapping[str, float]:
    """Pays the answer and, a little, the use of the interpreter: the default.

    Correct: 1.0 + min(0.2, 0.05 x calls). Wrong: min(0.1, 0.02 x calls). Calls are ``interpreter_calls``.
    """
    calls = facts.interpreter_calls
    if facts.correct:
        return _parts(1.0, min(0.2, 0.05 * calls))
    return _parts(0.0, min(0.1, 0.02 * calls))


def paper(facts: RewardFacts) -> Mapping[str, float]:
    """Pays +1 for a correct answer and -1 otherwise (arXiv 2504.11536: the outcome alone is paid)."""
    return _parts(1.0 if facts.correct else -1.0)


def verl(facts: RewardFacts) -> Mapping[str, float]:
    """Pays as verl's ReTool recipe: +1, or else min(-0.6, -1 + 0.1 x (num_turns - 2) / 2).

    verl's ``num_turns`` counts the user's turns (observations), the assistant's turns, and one more.
    """
    if facts.correct:
        return _parts(1.0)
    num_turns = facts.observations + facts.turns + 1
    total = min(-0.6, -1.0 + 0.1 * (num_turns - 2) / 2)
    return _parts(-1.0, total + 1.0)


def accuracy(facts: RewardFacts) -> Mapping[str, float]:
    """Pays 1 for a correct answer and 0 otherwise: for evaluation."""
    return _parts(1.0 if facts.correct else 0.0)


def _parts(base: float, tool_bonus: float = 0.0) -> Mapping[str, float]:
    return {"base": base, "tool_bonus": tool_bonus}


REWARD_TABLES: Final[Mapping[str, RewardTable]] = {
    "tool_aware": tool_aware,
    "paper": paper,
    "verl": verl,
    "accuracy": accuracy,
}


def get_reward_table(reward: str | RewardTable) -> RewardTable:
    """Returns the table with that name, or the callable itself.

    Raises:
        ConfigurationError: Neither the name of a table nor a callable.
    """
    if isinstance(reward, str) and reward in REWARD_TABLES:
        return REWARD_TABLES[reward]
    if callable(reward):
        return reward
    known = ", ".join(REWARD_TABLES)
    raise ConfigurationError(f"reward: {reward!r} is neither a table ({known}) nor a callable; choose one of these")


def reward_name(reward: str | RewardTable) -> str:
    """Returns the name by which a record refers to a table; a callable goes by its qualified name."""
    if isinstance(reward, str):
        return reward
    return str(getattr(reward, "__qualname__", type(reward).__qualname__))


def compute_reward(reward: str | RewardTable, facts: RewardFacts) -> Reward:
    """Asks a table, and checks what it says.

    Args:
        reward: The name of a table, or a callable.
        facts: About the attempt.

    Raises:
        ConfigurationError: There is no such table.
        RewardError: The table returned something that is not a finite number (nor named finite numbers).
    """
    value = get_reward_table(reward)(facts)
    # An exact type is told at once; asking an abstract class takes longer than all the rest.
    parts = value if type(value) is dict or isinstance(value, Mapping) else {"base": value, "tool_bonus": 0.0}
    breakdown = {str(name): _finite(part, name, reward) for name, part in parts.items()}
    total = sum(breakdown.values(), 0.0)
    return Reward(_finite(total, "total", reward), breakdown)


def _finite(value: object, part: object, reward: str | RewardTable) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever a custom table returns; numpy's numbers are welcome
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise RewardError(
            f"reward: the table {reward_name(reward)!r} returned {value!r} for {part!r}; return a finite number"
        )
    return number
