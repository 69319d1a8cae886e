"""What a shaped reward was paid for: a bonus can be earned by wrong answers, and by code that does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from retool_env.report.columns import COLUMNS, Bools, Floats


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a shaped reward was paid for, and what it could be gamed with. Over counted attempts.

    Attributes:
        bonus: Reward that was not paid for the answer: all of its parts but ``base``.
        bonus_wrong: What of it went to wrong attempts.
        wrong_paid: Wrong attempts with such a bonus.
        wrong_reward_mean: Mean reward of wrong attempts; None if there is none.
        wrong_with_code_reward_mean: The same of those with code.
        wrong_without_code_reward_mean: The same of those without: what a wrong attempt earns by calling anything.
        blocks: Blocks that ran.
        idle: Those that can have told the policy nothing new: repeated, constant, or silent where nothing is kept.
        silent: Those that passed and printed nothing.
        repeated: Those that had run before in the attempt, in an interpreter that keeps nothing.
        constant: Those that compute nothing: comments, constants, printing of constants.
        idle_attempts: Attempts that have blocks, all of them idle.
        idle_bonus: Bonus of these attempts: paid for nothing.
    """

    bonus: float
    bonus_wrong: float
    wrong_paid: int
    wrong_reward_mean: float | None
    wrong_with_code_reward_mean: float | None
    wrong_without_code_reward_mean: float | None
    blocks: int
    idle: int
    silent: int
    repeated: int
    constant: int
    idle_attempts: int
    idle_bonus: float


def shaping(table: Floats, correct: Bools) -> Shaping:
    """Returns what the reward was paid for; the arguments are those of ``distributions``."""
    column = dict(zip(COLUMNS, table.T, strict=True))
    has_code = column["blocks"] > 0
    idle = (column["ran"] > 0) & (column["idle"] == column["ran"])

    def mean(wanted: Bools) -> float | None:
        return float(column["reward"][wanted].mean()) if wanted.any() else None

    return Shaping(
        bonus=float(column["bonus"].sum()),
        bonus_wrong=float(column["bonus"][~correct].sum()),
        wrong_paid=int((column["bonus"][~correct] > 0).sum()),
        wrong_reward_mean=mean(~correct),
        wrong_with_code_reward_mean=mean(~correct & has_code),
        wrong_without_code_reward_mean=mean(~correct & ~has_code),
        blocks=int(column["ran"].sum()),
        idle=int(column["idle"].sum()),
        silent=int(column["silent"].sum()),
        repeated=int(column["repeated"].sum()),
        constant=int(column["constant"].sum()),
        idle_attempts=int(idle.sum()),
        idle_bonus=float(column["bonus"][idle].sum()),
    )
