"""``Recorder``: turns a running attempt into a ``Trajectory``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from retool_env._version import __version__
from retool_env.config import EpisodeConfig
from retool_env.driver import TurnWork
from retool_env.episode import Episode
from retool_env.outcome import Outcome
from retool_env.protocol.base import Action, Answer, Ended, Feedback, Finish, RunCode
from retool_env.sandbox.api import ExecutionResult
from retool_env.tools import ToolResult
from retool_env.trajectory import (
    OutcomeRecord,
    RulesRecord,
    Trajectory,
    TurnRecord,
)

ACTION_NAMES: Final[Mapping[type, str]] = {
    RunCode: "run_code",
    Answer: "answer",
    Feedback: "feedback",
    Ended: "ended",
}
"""What records and infos call the actions."""

_EXECUTION_FIELDS: Final = tuple(field.name for field in fields(ExecutionResult))
_OUTCOME_FIELDS: Final = Outcome._fields
_RULES_FIELDS: Final = tuple(set(RulesRecord.model_fields) - {"reward", "tools"})


class Recorder:
    """Collects what happens in one attempt. Make it when the episode is made."""

    def __init__(self, episode: Episode):
        """Notes the opening.

        Args:
            episode: Before its first turn.
        """
        self._episode = episode
        self._opening = tuple(episode.messages())
        self._turns: list[TurnRecord] = []

    def add_turn(
        self, text: str, finish: Finish, stop_reason: object, action: Action, done: TurnWork, elapsed_s: float
    ) -> None:
        """Records a turn.

        Args:
            text: The turn as it was given.
            finish: As it was given.
            stop_reason: As it was given.
            action: What it was taken for.
            done: What a driver did for it.
            elapsed_s: Seconds it took.
        """
        record: dict[str, Any] = {
            "text": text,
            "finish": finish,
            "stop_reason": stop_reason if isinstance(stop_reason, str) else None,
            "action": ACTION_NAMES[type(action)],
            "kept": action.kept,
            "fabricated": action.fabricated,
            "message": action.message if isinstance(action, Feedback) else "",
            "results": [_result(result, number in done.restarted) for number, result in enumerate(done.results)],
            "retries": done.retries,
            "observation": "" if done.observation is None else done.observation.text,
            "elapsed_s": elapsed_s,
        }
        if isinstance(action, RunCode):
            record["calls"] = [{"name": call.name, "arguments": call.arguments} for call in action.calls]
        if done.grade is not None:
            record["grade"] = {
                "correct": done.grade.correct,
                "method": done.grade.method,
                "reason": done.grade.reason,
                "timed_out": done.grade.timed_out,
                "elapsed_s": done.grade.elapsed_s,
            }
        self._turns.append(TurnRecord(**record))

    def trajectory(self, sandbox_tier: str | None) -> Trajectory:
        """Returns the attempt so far.

        Args:
            sandbox_tier: Tier that ran the code; None if no code ran.

        Raises:
            RewardError: The attempt is over and its custom reward table returned something not finite.
        """
        episode = self._episode
        outcome = _outcome(episode.outcome()) if episode.over else None
        return Trajectory(
            package_version=__version__,
            problem=episode.problem,
            rules=_rules(episode.config),
            sandbox_tier=sandbox_tier,
            opening=self._opening,
            prompt=episode.prompt(),
            turns=tuple(self._turns),
            outcome=outcome,
        )


def _outcome(outcome: Outcome) -> OutcomeRecord:
    values = {name: getattr(outcome, name) for name in _OUTCOME_FIELDS}
    return OutcomeRecord(**{**values, "breakdown": dict(outcome.breakdown)})


def _result(result: ExecutionResult | ToolResult, restarted: bool) -> dict[str, Any]:
    if isinstance(result, ToolResult):
        return {"kind": "tool", "text": result.text, "is_error": result.is_error}
    fields: dict[str, Any] = {name: getattr(result, name) for name in _EXECUTION_FIELDS}
    return {"kind": "execution", **fields, "restarted": restarted}


def _rules(config: EpisodeConfig) -> RulesRecord:
    return RulesRecord(
        reward=config.reward_name,
        tools=tuple(tool.name for tool in config.tools),
        **{name: getattr(config, name) for name in _RULES_FIELDS},
    )
