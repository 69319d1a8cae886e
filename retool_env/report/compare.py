"""``compare``: two runs over the problems they have in common, problem by problem.

Hard problems are hard for both, so the difference at each problem varies much less than either run does: its interval
is narrower than two intervals beside each other suggest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retool_env.report.columns import Floats
from retool_env.report.estimates import bootstrap, pass_at_k
from retool_env.report.figures import Estimate, ProblemMetrics, RunMetrics, finite


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs, over their common problems.

    Attributes:
        name: The figure.
        ours: Of the run.
        theirs: Of the run it is compared with.
        difference: Ours less theirs, with a paired bootstrap interval over problems.
    """

    name: str
    ours: float
    theirs: float
    difference: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        problems: Problems with counted attempts in both.
        only_ours: Problems with counted attempts in the run alone.
        only_theirs: Problems with counted attempts in the other alone.
        differences: ``mean@n``, ``pass@k`` for each k that every common problem has attempts enough for in both, and
            ``maj``, the vote of all attempts. Empty if there is no common problem.
        better: Common problems with a higher share of right attempts in the run.
        worse: Those with a lower share.
    """

    problems: int
    only_ours: int
    only_theirs: int
    differences: tuple[Difference, ...]
    better: int
    worse: int


def compare(ours: RunMetrics, theirs: RunMetrics) -> Comparison:
    """Compares two runs. Problems are the same if id, question and gold answer are.

    Args:
        ours: The figures of a run; its settings say how intervals are made.
        theirs: The figures of the run it is compared with.
    """
    left = {one.key: one for one in ours.per_problem if one.n}
    right = {one.key: one for one in theirs.per_problem if one.n}
    pairs = [(one, right[key]) for key, one in left.items() if key in right]
    figures = _figures(ours, theirs, pairs) if pairs else {}
    differences: list[Difference] = []
    if figures:
        gaps = np.column_stack([mine - other for mine, other in figures.values()])
        settings = ours.settings
        low, high = bootstrap(
            gaps,
            np.ones_like(gaps),
            n_bootstrap=settings["n_bootstrap"],
            seed=settings["seed"],
            level=settings["level"],
        )
        for i, (name, (mine, other)) in enumerate(figures.items()):
            estimate = Estimate(float(gaps[:, i].mean()), finite(low[i]), finite(high[i]), len(pairs))
            differences.append(Difference(name, float(mine.mean()), float(other.mean()), estimate))
    # Cross-multiplied, so that equal shares are equal.
    gains = [mine.correct * other.n - other.correct * mine.n for mine, other in pairs]
    return Comparison(
        problems=len(pairs),
        only_ours=len(left) - len(pairs),
        only_theirs=len(right) - len(pairs),
        differences=tuple(differences),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
    )


def _figures(
    ours: RunMetrics, theirs: RunMetrics, pairs: Sequence[tuple[ProblemMetrics, ProblemMetrics]]
) -> dict[str, tuple[Floats, Floats]]:
    """Each figure's values at the common problems, of both runs."""
    fewest = min(min(mine.n, other.n) for mine, other in pairs)
    ks = [k for k in sorted({*ours.settings["ks"], *theirs.settings["ks"]}) if k <= fewest]

    def both(get: Callable[[ProblemMetrics], float | None]) -> tuple[Floats, Floats]:
        return np.array([get(mine) for mine, _ in pairs]), np.array([get(other) for _, other in pairs])

    found = {"mean@n": both(lambda one: one.pass_rate)}
    for k in ks:
        found[f"pass@{k}"] = both(lambda one, k=k: pass_at_k(one.n, one.correct, k))  # type: ignore[misc]
    return found | {"maj": both(lambda one: one.majority)}
