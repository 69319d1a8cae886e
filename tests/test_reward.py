import math

import numpy as np
import pytest

from retool_env.errors import ConfigurationError, RewardError
from retool_env.protocol.base import EndReason
from retool_env.reward import REWARD_TABLES, RewardFacts, compute_reward, get_reward_table, reward_name


def facts(*, correct: bool, calls: int = 0, turns: int | None = None, observations: int | None = None) -> RewardFacts:
    """An attempt in which each call had a turn of its own, unless told otherwise."""
    return RewardFacts(
        correct=correct,
        answer="42",
        ended=EndReason.ANSWERED,
        interpreter_calls=calls,
        tool_calls=calls,
        turns=calls + 1 if turns is None else turns,
        observations=calls if observations is None else observations,
        fabricated=False,
    )


@pytest.mark.parametrize(
    ("table", "correct", "calls", "expected"),
    [
        ("tool_aware", True, 0, 1.0),
        ("tool_aware", True, 1, 1.05),
        ("tool_aware", True, 3, 1.15),
        ("tool_aware", True, 4, 1.2),
        ("tool_aware", True, 5, 1.2),
        ("tool_aware", True, 16, 1.2),
        ("tool_aware", False, 0, 0.0),
        ("tool_aware", False, 1, 0.02),
        ("tool_aware", False, 4, 0.08),
        ("tool_aware", False, 5, 0.1),
        ("tool_aware", False, 6, 0.1),
        ("tool_aware", False, 16, 0.1),
        ("paper", True, 3, 1.0),
        ("paper", False, 3, -1.0),
        ("paper", False, 0, -1.0),
        ("accuracy", True, 3, 1.0),
        ("accuracy", False, 3, 0.0),
        ("verl", True, 9, 1.0),
        ("verl", False, 0, -1.0),
        ("verl", False, 1, -0.9),
        ("verl", False, 4, -0.6),
        ("verl", False, 5, -0.6),
        ("verl", False, 16, -0.6),
    ],
)
def test_every_row_of_the_tables(table: str, correct: bool, calls: int, expected: float) -> None:
    reward = compute_reward(table, facts(correct=correct, calls=calls))
    assert reward.total == pytest.approx(expected, abs=1e-12)
    assert set(reward.breakdown) == {"base", "tool_bonus"}
    assert sum(reward.breakdown.values()) == reward.total


def test_the_bonus_is_told_apart_from_the_answer() -> None:
    reward = compute_reward("tool_aware", facts(correct=True, calls=2))
    assert reward.breakdown == {"base": 1.0, "tool_bonus": 0.1}


def test_verl_counts_turns_and_observations_not_calls() -> None:
    # Three calls in one turn: user 1 + assistant 2 + 1 = 4 turns in verl's count.
    assert compute_reward("verl", facts(correct=False, calls=3, turns=2, observations=1)).total == pytest.approx(-0.9)


def test_a_custom_table_gets_the_facts() -> None:
    seen = []

    def table(given: RewardFacts) -> float:
        seen.append(given)
        return 0.5

    given = facts(correct=True, calls=2)
    reward = compute_reward(table, given)
    assert (reward.total, reward.breakdown) == (0.5, {"base": 0.5, "tool_bonus": 0.0})
    assert seen == [given]


def test_a_custom_table_may_name_its_parts_and_use_numpy() -> None:
    reward = compute_reward(lambda _: {"answer": np.float32(0.5), "brevity": -0.25}, facts(correct=True))
    assert reward.total == 0.25
    assert dict(reward.breakdown) == {"answer": 0.5, "brevity": -0.25}
    assert all(type(part) is float for part in reward.breakdown.values())


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, None, "1.0", [1.0], 10**400, {"a": math.nan}, {"a": 1e308, "b": 1e308}],
)
def test_what_is_not_a_finite_number_is_an_error_that_names_the_table(value: object) -> None:
    def broken_table(_: RewardFacts) -> object:
        return value

    with pytest.raises(RewardError, match="broken_table"):
        compute_reward(broken_table, facts(correct=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("reward", ["tool-aware", "", None, 3])
def test_an_unknown_table_is_an_error_that_lists_the_known_ones(reward: object) -> None:
    with pytest.raises(ConfigurationError, match="tool_aware, paper, verl, accuracy"):
        get_reward_table(reward)  # type: ignore[arg-type]


def test_names_for_records() -> None:
    assert [reward_name(name) for name in REWARD_TABLES] == list(REWARD_TABLES)
    assert reward_name(math.exp) == "exp"  # type: ignore[arg-type]
