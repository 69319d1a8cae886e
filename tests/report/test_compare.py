"""Two runs beside each other: only what they have in common counts, and it is compared problem by problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retool_env.report.compare import compare
from retool_env.report.facts import AttemptFacts, facts_of
from retool_env.report.metrics import measure
from retool_env.trajectory import Trajectory

Record = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def run(record: Record) -> Callable[..., list[AttemptFacts]]:
    """Returns a function that makes a run from how many of its attempts at each problem are right."""
    facts = facts_of(record("So <answer>\\boxed{41}</answer>"))

    def make(n: int, **correct: int) -> list[AttemptFacts]:
        return [
            replace(facts, problem_key=name, verdict="correct" if i < right else "wrong")
            for name, right in correct.items()
            for i in range(n)
        ]

    return make


def test_common_problems_alone_count(run: Callable[..., list[AttemptFacts]]) -> None:
    found = compare(measure(run(4, a=4, b=2, c=0)), measure(run(4, b=1, c=0, d=4, e=4)))
    assert (found.problems, found.only_ours, found.only_theirs) == (2, 1, 2)
    assert (found.better, found.worse) == (1, 0)
    by_name = {one.name: one for one in found.differences}
    assert list(by_name) == ["mean@n", "pass@1", "pass@2", "pass@4", "maj"]
    assert (by_name["mean@n"].ours, by_name["mean@n"].theirs) == (0.25, 0.125)
    assert by_name["mean@n"].difference.value == pytest.approx(0.125)
    assert by_name["pass@4"].difference.value == 0.0
    assert by_name["pass@2"].difference.value == pytest.approx((5 / 6 - 3 / 6) / 2)


def test_runs_of_different_size(run: Callable[..., list[AttemptFacts]]) -> None:
    found = compare(measure(run(8, a=4, b=2)), measure(run(2, a=1, b=0)))
    assert [one.name for one in found.differences] == ["mean@n", "pass@1", "pass@2", "maj"]
    assert (found.better, found.worse) == (1, 0)  # 4 of 8 is 1 of 2


def test_nothing_in_common(run: Callable[..., list[AttemptFacts]]) -> None:
    found = compare(measure(run(2, a=1)), measure(run(2, b=1)))
    assert (found.problems, found.only_ours, found.only_theirs, found.differences) == (0, 1, 1, ())
    assert compare(measure([]), measure([])).problems == 0


def test_a_run_against_itself(run: Callable[..., list[AttemptFacts]]) -> None:
    metrics = measure(run(4, a=4, b=2, c=0))
    for one in compare(metrics, metrics).differences:
        assert (one.difference.value, one.difference.low, one.difference.high) == (0, 0, 0)


def test_pairs_make_intervals_narrower(run: Callable[..., list[AttemptFacts]]) -> None:
    """Problems differ much, the runs by one attempt in 16 at each: the pairs show it, each run alone does not."""
    generator = np.random.default_rng(0)
    rights = {f"p{n}": int(right) for n, right in enumerate(generator.integers(0, 15, size=40))}
    ours = measure(run(16, **{name: right + 1 for name, right in rights.items()}))
    theirs = measure(run(16, **rights))
    alone = ours.estimates["mean@n"]
    paired = compare(ours, theirs).differences[0].difference
    assert alone.low is not None
    assert alone.high is not None
    assert alone.low < theirs.estimates["mean@n"].value < alone.high
    assert paired.low == paired.high == paired.value == pytest.approx(1 / 16)
