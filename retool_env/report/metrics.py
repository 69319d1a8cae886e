"""``measure``: the figures of a run, from its attempts. pass@k, maj@k, mean@n, intervals, and how the policy used code.

    metrics = measure(read_jsonl("run/trajectories.jsonl"))
    metrics.estimates["pass@1"].value, metrics.to_dict()

Attempts are taken one at a time; of each, some thirty numbers and its answer are kept. Faults (``Outcome.fault``) and
attempts that were recorded while they went on are counted, and left out of every figure: they are never wrong answers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from retool_env.errors import ConfigurationError
from retool_env.report.answers import Comparisons, answer_key, class_sizes
from retool_env.report.behaviour import behaviour
from retool_env.report.columns import COLUMNS, SECONDS, Floats, row
from retool_env.report.distributions import distributions
from retool_env.report.estimates import MAX_EXACT_VOTES, bootstrap, majority_at_k, pass_at_k
from retool_env.report.executions import ExecutionTally
from retool_env.report.facts import AttemptFacts, facts_of
from retool_env.report.figures import (
    Estimate,
    ProblemMetrics,
    RunMetrics,
    SourceMetrics,
    Timing,
    Votes,
    finite,
    notes,
)
from retool_env.report.shaping import shaping
from retool_env.trajectory import Trajectory

__all__ = ["Estimate", "ProblemMetrics", "RunMetrics", "measure"]

LEVEL: Final = 0.95
_MAX_SOURCES: Final = 50
_MAX_REWARDS: Final = 20


def measure(
    attempts: Iterable[AttemptFacts | Trajectory],
    *,
    k: Sequence[int] | None = None,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> RunMetrics:
    """Returns the figures of a run.

    Args:
        attempts: The attempts, several at a problem, in any order. Records, or what was noted of them (``facts_of``,
            which also takes how many tokens they have). Taken one at a time.
        k: Sizes for pass@k and maj@k; None for 1, 2, 4, ... and the smallest number of attempts at a problem. Problems
            with fewer attempts than k have no part in pass@k and maj@k; ``Estimate.problems`` says how many have.
        n_bootstrap: How often problems are drawn again for an interval; 0 for no intervals.
        seed: Fixes these draws, and the votes where they are sampled.

    Raises:
        ConfigurationError: A k is not positive, or ``n_bootstrap`` or ``seed`` is negative.
    """
    if k is not None and any(size < 1 for size in k):
        raise ConfigurationError(f"k: must be positive, got {min(k)}")
    if min(n_bootstrap, seed) < 0:
        raise ConfigurationError("n_bootstrap, seed: must not be negative")
    run = _Run()
    for attempt in attempts:
        run.add(attempt if isinstance(attempt, AttemptFacts) else facts_of(attempt))
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of rewards near the largest number becomes None
        return run.metrics(k, n_bootstrap, seed)


@dataclass(slots=True)
class _Problem:
    id: str
    source: str
    n: int = 0
    correct: int = 0
    left_out: int = 0
    silent: int = 0
    no_room: bool = False
    wrong: Counter[str] = field(default_factory=Counter)


class _Run:
    def __init__(self) -> None:
        self._problems: dict[str, _Problem] = {}
        self._numbers: dict[str, int] = {}
        self._rows = array("d")
        self._verdicts: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._executions = ExecutionTally()
        self._seconds = np.zeros(len(SECONDS))
        self._rewards: set[str] = set()
        self._resumes = self._no_room = 0

    def add(self, facts: AttemptFacts) -> None:
        number = self._numbers.setdefault(facts.problem_key, len(self._numbers))
        if facts.problem_key not in self._problems:
            self._problems[facts.problem_key] = _Problem(facts.problem_id, facts.source)
        problem = self._problems[facts.problem_key]
        self._verdicts[facts.verdict] += 1
        self._ended[facts.ended or "goes on"] += 1
        self._executions.retries += facts.n_retries
        self._resumes += facts.n_resumes
        problem.no_room |= facts.no_room
        self._no_room += facts.no_room
        for block in facts.blocks:
            self._executions.add(block)
        numbers = row(number, facts)
        self._seconds += numbers[-len(SECONDS) :]
        if not facts.counted:
            problem.left_out += 1
            return
        if len(self._rewards) < _MAX_REWARDS:
            self._rewards.add(facts.reward_name)
        problem.n += 1
        if facts.verdict == "correct":
            problem.correct += 1
        elif facts.answer is None or not facts.answer.strip():
            problem.silent += 1
        else:
            problem.wrong[answer_key(facts.answer)] += 1
        self._rows.extend(numbers)

    def metrics(self, k: Sequence[int] | None, n_bootstrap: int, seed: int) -> RunMetrics:
        table: Floats = np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))
        problems = list(self._problems.values())
        ns = [problem.n for problem in problems if problem.n]
        n_min, n_max = min(ns, default=0), max(ns, default=0)
        ks = sorted(set(k)) if k is not None else _powers_of_two(n_min)
        comparisons = Comparisons()
        votes = [_votes(problem, ks, comparisons, seed) for problem in problems]
        correct = table[:, COLUMNS.index("correct")] > 0
        per_problem = tuple(
            ProblemMetrics(key, one.id, one.source, one.n, one.correct, one.left_out, vote.get(one.n))
            for (key, one), vote in zip(self._problems.items(), votes, strict=True)
        )
        everyone = np.ones(len(table), dtype=np.bool_)
        groups = {"all": everyone, "correct": correct, "wrong": ~correct}
        metrics = RunMetrics(
            attempts=self._verdicts.total(),
            counted=len(table),
            correct=int(correct.sum()),
            faults=self._verdicts["fault"],
            unfinished=self._verdicts["unfinished"],
            unread=0,
            no_room=self._no_room,
            problems_no_room=sum(problem.no_room for problem in problems),
            problems=len(ns),
            problems_left_out=len(problems) - len(ns),
            n_min=n_min,
            n_max=n_max,
            ended=dict(self._ended.most_common()),
            estimates=_estimates(problems, votes, table, ks, n_bootstrap, seed),
            votes=Votes(
                compared=comparisons.made,
                undecided=comparisons.undecided,
                skipped=comparisons.skipped,
                sampled=sum(one.n > MAX_EXACT_VOTES and 0 < one.correct < one.n for one in problems),
            ),
            behaviour={name: behaviour(table, wanted) for name, wanted in groups.items()},
            distributions=distributions(table, correct),
            shaping=shaping(table, correct),
            executions=self._executions.result(),
            resumes=self._resumes,
            timing=Timing(*map(float, self._seconds)),
            rewards=tuple(sorted(self._rewards)),
            sources=_sources(per_problem),
            per_problem=per_problem,
            notes=(),
            settings={"ks": ks, "n_bootstrap": n_bootstrap, "seed": seed, "level": LEVEL},
        )
        return replace(metrics, notes=notes(metrics))


def _sources(problems: Iterable[ProblemMetrics]) -> tuple[SourceMetrics, ...]:
    """The problems by source, the largest first; sources beyond the first fifty that occur are left out."""
    groups: dict[str, list[ProblemMetrics]] = {}
    for problem in problems:
        if problem.n and (problem.source in groups or len(groups) < _MAX_SOURCES):
            groups.setdefault(problem.source, []).append(problem)
    found = [
        SourceMetrics(
            source=source,
            problems=len(group),
            counted=sum(one.n for one in group),
            mean_at_n=sum(one.correct / one.n for one in group) / len(group),
            majority=sum(one.majority or 0.0 for one in group) / len(group),
        )
        for source, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.problems))


def _powers_of_two(n: int) -> list[int]:
    return sorted({1 << power for power in range(n.bit_length())} | {n}) if n else []


def _votes(problem: _Problem, ks: Sequence[int], comparisons: Comparisons, seed: int) -> dict[int, float]:
    """maj@k of a problem for each k it has attempts enough for, and for all its attempts."""
    if not problem.n:
        return {}
    sizes = class_sizes(problem.wrong, comparisons) if problem.correct else [*problem.wrong.values()]
    wanted = sorted({size for size in ks if size <= problem.n} | {problem.n})
    return majority_at_k(problem.correct, sizes, problem.silent, wanted, seed)


def _estimates(
    problems: Sequence[_Problem],
    votes: Sequence[Mapping[int, float]],
    table: Floats,
    ks: Sequence[int],
    n_bootstrap: int,
    seed: int,
) -> dict[str, Estimate]:
    """Every estimate is a ratio of sums over problems, so that one bootstrap serves them all."""
    n = np.array([problem.n for problem in problems], dtype=np.float64)
    correct = np.array([problem.correct for problem in problems], dtype=np.float64)
    ratios: dict[str, tuple[Floats, Floats]] = {}
    for k in ks:
        has = (n >= k).astype(np.float64)
        passed = [pass_at_k(problem.n, problem.correct, k) if problem.n >= k else 0.0 for problem in problems]
        ratios[f"pass@{k}"] = (np.array(passed), has)
        ratios[f"maj@{k}"] = (np.array([vote.get(k, 0.0) if has[i] else 0.0 for i, vote in enumerate(votes)]), has)
    tried = (n > 0).astype(np.float64)
    ratios["mean@n"] = (np.divide(correct, n, out=np.zeros_like(n), where=n > 0), tried)
    ratios["accuracy"] = (correct, n)

    which = table[:, 0].astype(np.int64)

    def summed(name: str) -> Floats:
        return np.bincount(which, weights=table[:, COLUMNS.index(name)], minlength=len(problems))

    with_code = np.bincount(which, weights=table[:, COLUMNS.index("blocks")] > 0, minlength=len(problems))
    ratios["reward"] = (summed("reward"), n)
    ratios["code_ratio"] = (with_code, n)
    ratios["pass_rate"] = (summed("passed"), summed("ran"))
    above = np.column_stack([above for above, _ in ratios.values()])
    below = np.column_stack([below for _, below in ratios.values()])
    low, high = bootstrap(above, below, n_bootstrap=n_bootstrap, seed=seed, level=LEVEL)
    totals = below.sum(axis=0)
    return {
        name: Estimate(
            float(above[:, i].sum() / totals[i]) if totals[i] > 0 else None,
            finite(low[i]),
            finite(high[i]),
            int((below[:, i] > 0).sum()),
        )
        for i, name in enumerate(ratios)
    }
