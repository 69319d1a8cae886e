"""``RunMetrics``: the figures of a run, as ``measure`` returns them and ``metrics.json`` holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from retool_env.report.behaviour import Behaviour
from retool_env.report.blocks import counted
from retool_env.report.distributions import Distribution
from retool_env.report.executions import Executions
from retool_env.report.shaping import Shaping

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its bootstrap interval over problems.

    Attributes:
        value: The figure; None if there is nothing to take it over.
        low: Lower end of the interval; None if fewer than two problems have a part in it.
        high: Upper end.
        problems: Problems that have a part in it.
    """

    value: float | None
    low: float | None
    high: float | None
    problems: int


@dataclass(frozen=True, slots=True)
class ProblemMetrics:
    """How one problem came out.

    Attributes:
        key: A digest of id, question and gold answer: the same in every run.
        id: The problem's id.
        source: Where it comes from.
        n: Counted attempts.
        correct: Those that are right.
        left_out: Faults and unfinished attempts.
        majority: What the vote of all its attempts is worth: 1 if it is right, 0 if not, a share after a tie; None if
            there is no counted attempt.
    """

    key: str
    id: str
    source: str
    n: int
    correct: int
    left_out: int
    majority: float | None

    @property
    def pass_rate(self) -> float | None:
        """Share of its counted attempts that are right."""
        return self.correct / self.n if self.n else None


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """The problems from one place, such as AIME 2024 where a run has both years.

    Attributes:
        source: Where they come from.
        problems: Problems with a counted attempt.
        counted: Counted attempts.
        mean_at_n: Mean over problems of the share of right attempts.
        majority: Mean over problems of what the vote of all attempts is worth.
    """

    source: str
    problems: int
    counted: int
    mean_at_n: float
    majority: float


@dataclass(frozen=True, slots=True)
class Votes:
    """How answers were told apart for maj@k.

    Attributes:
        compared: Pairs of wrong answers that the grader compared.
        undecided: Those it came to no verdict about; they count as different.
        skipped: Answers that were not compared with all others, because there are too many of them; they count as
            different from those.
        sampled: Problems with so many attempts that the vote is the mean over seeded subsets, and not exact.
    """

    compared: int
    undecided: int
    skipped: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, summed over all attempts, faults included.

    Attributes:
        generate_s: Waiting for the engine; 0.0 where that is not recorded.
        work_s: The environment's work for all turns: running code, grading, and our own time.
        run_s: Code running.
        cpu_s: Its CPU time.
        queue_s: Code waiting for its turn to run.
        grade_s: Grading.
    """

    generate_s: float
    work_s: float
    run_s: float
    cpu_s: float
    queue_s: float
    grade_s: float


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The figures of a run.

    Attributes:
        attempts: Attempts there are.
        counted: Attempts that figures are taken over: over, and not ended by a fault.
        correct: Correct ones.
        faults: Attempts a fault has ended.
        unfinished: Attempts that were recorded while they went on.
        unread: Lines of the file that could not be read.
        no_room: Attempts whose prompt left no room for a turn in the context or the budget. They count as wrong.
        problems_no_room: Problems with such an attempt.
        problems: Problems with a counted attempt.
        problems_left_out: Problems without one.
        n_min: Fewest counted attempts at a problem that has any; 0 if none has.
        n_max: Most.
        ended: How many attempts ended for each reason, faults included.
        estimates: By name: ``pass@k`` and ``maj@k`` for each k, ``mean@n`` (the papers' avg@n: each problem's share of
            right attempts, problems alike), ``accuracy`` (attempts alike), ``reward``, ``code_ratio``, ``pass_rate``.
        votes: How answers were told apart for maj@k.
        behaviour: How attempts went: ``all`` counted ones, the ``correct`` and the ``wrong`` ones.
        distributions: How lengths, blocks and the like are spread over correct and wrong attempts.
        shaping: What a shaped reward was paid for.
        executions: How blocks ended, of all attempts.
        resumes: Turns that were lost with their server and generated again.
        timing: Where the environment's time went.
        rewards: Names of the reward tables.
        sources: The problems by where they come from.
        per_problem: The problems, in the order of their first attempts.
        notes: What a reader of the figures must know, in words.
        settings: What was asked for: ``ks``, ``n_bootstrap``, ``seed``, ``level``.
    """

    attempts: int
    counted: int
    correct: int
    faults: int
    unfinished: int
    unread: int
    no_room: int
    problems_no_room: int
    problems: int
    problems_left_out: int
    n_min: int
    n_max: int
    ended: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    votes: Votes
    behaviour: Mapping[str, Behaviour]
    distributions: Mapping[str, Distribution]
    shaping: Shaping
    executions: Executions
    resumes: int
    timing: Timing
    rewards: tuple[str, ...]
    sources: tuple[SourceMetrics, ...]
    per_problem: tuple[ProblemMetrics, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON: plain values, every number finite or None."""
        return {"retool_metrics": FORMAT_VERSION, **plain(self)}


def notes(metrics: RunMetrics) -> tuple[str, ...]:
    """Returns what a reader of the figures must know."""
    found: list[str] = []
    votes = metrics.votes
    if metrics.attempts == 0:
        found.append("There are no attempts.")
    elif metrics.counted == 0:
        found.append("No attempt counts: all are faults or unfinished.")
    if metrics.faults:
        found.append(
            f"{metrics.faults} of {metrics.attempts} attempts ended by a fault that is not the policy's (the sandbox, "
            "the engine, the grader). They are left out and not scored as wrong; if faults hit hard problems more "
            "often, the figures are too high."
        )
    if metrics.unfinished:
        found.append(f"Recorded while they went on, and left out: {counted(metrics.unfinished, 'attempt')}.")
    if metrics.unread:
        found.append(f"Could not be read: {counted(metrics.unread, 'line')} of the file; what they held is missing.")
    if metrics.no_room:
        found.append(no_room(metrics))
    if metrics.problems_left_out:
        found.append(
            f"Without an attempt that counts, and in no figure: {counted(metrics.problems_left_out, 'problem')}."
        )
    if metrics.n_min != metrics.n_max:
        found.append(
            f"Problems have {metrics.n_min} to {metrics.n_max} attempts that count. mean@n weighs problems alike, "
            "accuracy weighs attempts alike."
        )
    if metrics.problems == 1:
        found.append("There is one problem only, so there are no intervals: they are over problems.")
    elif 1 < metrics.problems < 10 and metrics.settings["n_bootstrap"]:
        found.append(f"Intervals from {metrics.problems} problems are rough, and rather too narrow.")
    if metrics.n_max == 1:
        found.append("There is one attempt at each problem: pass@1 and maj@1 are the accuracy, and that is all.")
    short = [
        f"{name} of {estimate.problems}"
        for name, estimate in metrics.estimates.items()
        if name.startswith("pass@") and estimate.problems < metrics.problems
    ]
    if short:
        found.append(f"Not every problem has k attempts: {', '.join(short)} of {metrics.problems} problems.")
    if votes.undecided or votes.skipped:
        found.append(
            f"maj@k: {votes.undecided} comparisons of wrong answers came to no verdict, and {votes.skipped} answers "
            "were not compared with all others; they count as different answers, so maj@k is rather too high."
        )
    if votes.sampled:
        found.append(f"maj@k of {votes.sampled} problems is the mean over seeded subsets, and not exact.")
    if len(metrics.rewards) > 1:
        found.append(f"Attempts were paid by {len(metrics.rewards)} reward tables; the mean reward mixes them.")
    return tuple(found)


def no_room(metrics: RunMetrics) -> str:
    """Returns what there is to say about attempts whose prompt left no room for a turn."""
    return (
        f"The prompts of {counted(metrics.problems_no_room, 'problem')} left no room for a turn: "
        f"{counted(metrics.no_room, 'attempt')} ended as max_length without a token of the policy's, and count as "
        "wrong. Give more context, or leave these problems out."
    )


def finite(value: float) -> float | None:
    """Returns a number, or None in place of one that JSON does not have."""
    return float(value) if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Returns figures as JSON can hold them: dataclasses as objects, every number finite or None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return finite(value) if isinstance(value, float) else value
