"""The figures of a run as tables, whoever shows them: in a terminal or on the page. Text in them may be untrusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from retool_env.report.behaviour import Behaviour, Spread
from retool_env.report.blocks import counted, seconds
from retool_env.report.compare import Comparison
from retool_env.report.figures import Estimate, ProblemMetrics, RunMetrics

NONE: Final = "–"
"""Stands where there is no figure."""

_MAX_ERRORS: Final = 15
_MAX_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: Its heading.
        head: The columns; the first names the row.
        rows: Its cells.
        note: What a reader must know of it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(metrics: RunMetrics) -> Iterator[Table]:
    """Yields the tables of a run, those without a row left out; the problems are apart (``problem_table``)."""
    for table in (
        headline(metrics),
        by_k(metrics),
        sources(metrics),
        behaviour_table(metrics),
        shaping_table(metrics),
        executions(metrics),
        errors(metrics),
        ends(metrics),
        timing(metrics),
    ):
        if table.rows:
            yield table


def headline(metrics: RunMetrics) -> Table:
    """Returns the figures that are quoted first."""
    rows = [
        (f"{mean_name(metrics)}: right attempts, problems alike", "mean@n", _share),
        ("accuracy: right attempts, attempts alike", "accuracy", _share),
        (f"mean reward ({', '.join(metrics.rewards) or 'none'})", "reward", _number),
        ("code ratio: attempts with code", "code_ratio", _share),
        ("code pass rate: blocks that ran to their end", "pass_rate", _share),
    ]
    found = [(words, *_estimate(metrics.estimates[name], form)) for words, name, form in rows]
    return Table(
        "Headline",
        ("figure", "value", _interval_name(metrics), "problems"),
        tuple(found),
        f"{counted(metrics.counted, 'attempt')} at {counted(metrics.problems, 'problem')}; "
        f"{counted(metrics.faults, 'fault')} and {metrics.unfinished} unfinished left out",
    )


def by_k(metrics: RunMetrics) -> Table:
    """Returns pass@k and maj@k for each k."""
    rows = []
    for k in metrics.settings["ks"]:
        passed, majority = metrics.estimates[f"pass@{k}"], metrics.estimates[f"maj@{k}"]
        rows.append((str(k), *_estimate(passed, _share)[:2], *_estimate(majority, _share)))
    interval = _interval_name(metrics)
    return Table(
        "By number of attempts k",
        ("k", "pass@k", interval, "maj@k", interval, "problems"),
        tuple(rows),
        "pass@k: one of k attempts is right (unbiased). maj@k: the commonest answer of k is right, ties split evenly.",
    )


def sources(metrics: RunMetrics) -> Table:
    """Returns the problems by where they come from; no rows if there is one place."""
    rows = [
        (one.source or "(none)", str(one.problems), str(one.counted), _share(one.mean_at_n), _share(one.majority))
        for one in metrics.sources
    ]
    head = ("source", "problems", "attempts", mean_name(metrics), "maj of all")
    return Table("By source", head, tuple(rows) if len(rows) > 1 else ())


def behaviour_table(metrics: RunMetrics) -> Table:
    """Returns how the policy used code, of all, correct and wrong attempts."""
    groups = [metrics.behaviour[name] for name in ("all", "correct", "wrong")]
    rows = [(name, *(show(group) for group in groups)) for name, show in _BEHAVIOUR]
    head = ("of an attempt", *(f"{name} ({metrics.behaviour[name].attempts})" for name in ("all", "correct", "wrong")))
    with_words = (row for row in rows if any(cell != NONE for cell in row[1:]))
    return Table(
        "How code was used",
        head,
        tuple(with_words) if metrics.counted else (),
        "Mean (median) where a quantity is spread. A block passes if its code runs to its end.",
    )


def _spread(get: Callable[[Behaviour], Spread], percent: bool = False) -> Callable[[Behaviour], str]:
    def show(behaviour: Behaviour) -> str:
        spread = get(behaviour)
        if spread.mean is None:
            return NONE
        form = _share if percent else _number
        return f"{form(spread.mean)} ({form(spread.p50)})"

    return show


_BEHAVIOUR: Final[tuple[tuple[str, Callable[[Behaviour], str]], ...]] = (
    ("code ratio", lambda b: _share(b.code_ratio)),
    ("attempts with code", lambda b: str(b.with_code)),
    ("blocks", _spread(lambda b: b.blocks)),
    ("lines of code, where there is any", _spread(lambda b: b.code_lines)),
    ("pass rate of all blocks", lambda b: _share(b.pass_rate)),
    ("pass rate of last blocks", lambda b: _share(b.last_pass_rate)),
    ("turn of the first block", _spread(lambda b: b.first_turn)),
    ("share of the response before it", _spread(lambda b: b.first_position, percent=True)),
    ("turns", _spread(lambda b: b.turns)),
    ("tokens of the response", _spread(lambda b: b.response_tokens)),
    ("tokens the policy sampled", _spread(lambda b: b.sampled_tokens)),
    ("characters of the response", _spread(lambda b: b.response_chars)),
    ("characters the policy wrote", _spread(lambda b: b.policy_chars)),
    ("with a block that failed", lambda b: _share(b.failed_ratio)),
    ("of these, a later block passed", lambda b: _share(b.repaired_ratio)),
    ("self-corrections (both)", lambda b: str(b.repaired)),
    ("code ran out of time", lambda b: _share(b.timeout_ratio)),
    ("code ran out of memory", lambda b: _share(b.memory_ratio)),
    ("with a malformed call or the like", lambda b: _share(b.feedback_ratio)),
    ("invents tool output", lambda b: _share(b.fabricated_ratio)),
    ("blocks that do nothing", lambda b: _share(b.idle_ratio)),
    ("reward", _spread(lambda b: b.reward)),
)


def shaping_table(metrics: RunMetrics) -> Table:
    """Returns what a shaped reward was paid for."""
    shaping = metrics.shaping
    rows = (
        ("bonus beside the answer's reward, in all", _number(shaping.bonus)),
        ("of it, for wrong attempts", _number(shaping.bonus_wrong)),
        ("wrong attempts with a bonus", str(shaping.wrong_paid)),
        ("mean reward of wrong attempts with code", _number(shaping.wrong_with_code_reward_mean)),
        ("mean reward of wrong attempts without", _number(shaping.wrong_without_code_reward_mean)),
        ("blocks that ran", str(shaping.blocks)),
        ("of them, do nothing", str(shaping.idle)),
        ("print nothing", str(shaping.silent)),
        ("repeat an earlier block", str(shaping.repeated)),
        ("compute nothing", str(shaping.constant)),
        ("attempts all of whose blocks do nothing", str(shaping.idle_attempts)),
        ("bonus of these attempts", _number(shaping.idle_bonus)),
    )
    note = "What the reward can be gamed with: it is paid for calls, and not for what they are good for."
    return Table("What shaping paid for", ("", "figure"), rows if metrics.counted else (), note)


def executions(metrics: RunMetrics) -> Table:
    """Returns how blocks ended."""
    found = metrics.executions
    rows = [(status, str(count), _share(count / found.blocks)) for status, count in found.statuses.items()]
    if found.retries:
        rows.append(("(retried after a fault of the sandbox)", str(found.retries), ""))
    latency, queue = found.latency, found.queue
    note = ""
    if latency["count"]:
        note = f"p50 {seconds(latency['p50'])}, p99 {seconds(latency['p99'])} for blocks that ended by themselves"
        note += f"; waited p99 {seconds(queue['p99'])}"
    return Table("How blocks ended", ("status", "blocks", "share"), tuple(rows), note)


def errors(metrics: RunMetrics) -> Table:
    """Returns what code raised most often."""
    classes = list(metrics.executions.error_classes.items())
    rows = [(name, str(count)) for name, count in classes[:_MAX_ERRORS]]
    if len(classes) > _MAX_ERRORS:
        rest = classes[_MAX_ERRORS:]
        rows.append((f"({len(rest)} more)", str(sum(count for _, count in rest))))
    return Table("What code raised", ("class", "blocks"), tuple(rows), "Names are what the code claims.")


def ends(metrics: RunMetrics) -> Table:
    """Returns why attempts ended."""
    rows = [(name, str(count), _share(count / metrics.attempts)) for name, count in metrics.ended.items()]
    return Table("Why attempts ended", ("end", "attempts", "share"), tuple(rows))


def timing(metrics: RunMetrics) -> Table:
    """Returns where the environment's time went."""
    times = metrics.timing
    rows = (
        ("waiting for the engine", seconds(times.generate_s) if times.generate_s else NONE),
        ("the environment's work, in all", seconds(times.work_s)),
        ("code running", seconds(times.run_s)),
        ("its CPU time", seconds(times.cpu_s)),
        ("code waiting to run", seconds(times.queue_s)),
        ("grading", seconds(times.grade_s)),
    )
    note = "Seconds summed over all attempts; attempts run side by side, so this is no wall-clock time."
    return Table("Where time went", ("", "time"), rows if metrics.attempts else (), note)


def comparison_table(comparison: Comparison) -> Table:
    """Returns two runs beside each other."""
    rows = []
    for one in comparison.differences:
        gap, interval, _ = _estimate(one.difference, _points)
        rows.append((one.name, _share(one.ours), _share(one.theirs), gap, interval))
    others = f"{comparison.only_ours} and {comparison.only_theirs} problems are in one run only"
    return Table(
        f"Against the other run, over {counted(comparison.problems, 'common problem')}",
        ("figure", "this run", "the other", "difference", "paired interval"),
        tuple(rows),
        f"better at {comparison.better} problems, worse at {comparison.worse}; {others}",
    )


def problem_table(metrics: RunMetrics, most: int) -> Table:
    """Returns the problems by pass rate, the hardest first.

    Args:
        metrics: The figures.
        most: Problems that are shown; with more, those in the middle are left out.
    """
    found = sorted(metrics.per_problem, key=lambda one: (one.pass_rate is None, one.pass_rate or 0.0))
    note = ""
    if len(found) > most:
        note = f"{most} of {len(found)} problems: the hardest and the easiest; metrics.json has all."
        found = found[: most - most // 2] + found[len(found) - most // 2 :]
    head = ("problem", "source", "attempts", "right", "pass rate", "maj of all", "left out")
    return Table("Problems by pass rate", head, tuple(map(_problem, found)), note)


def _problem(one: ProblemMetrics) -> tuple[str, ...]:
    rates = (_share(one.pass_rate), _share(one.majority))
    return (one.id, one.source, str(one.n), str(one.correct), *rates, str(one.left_out or ""))


def plain_table(title: str, values: Mapping[str, Any]) -> Table:
    """Returns JSON values by name as a table, nested ones by their path; long lists by their length."""
    return Table(title, ("", ""), tuple(_leaves("", values)))


def _leaves(path: str, value: Any, depth: int = 6) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth:
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), item, depth - 1)
    elif isinstance(value, float):
        yield path, _number(value)
    elif isinstance(value, list) and len(value) > _MAX_LISTED:
        yield path, counted(len(value), "value")
    else:
        yield path, NONE if value is None else str(value)


def mean_name(metrics: RunMetrics) -> str:
    """Returns ``"mean@32"``, or ``"mean@n"`` where problems have different numbers of attempts."""
    return f"mean@{metrics.n_min}" if 0 < metrics.n_min == metrics.n_max else "mean@n"


def _interval_name(metrics: RunMetrics) -> str:
    return f"{100 * metrics.settings['level']:g}% interval"


def _estimate(estimate: Estimate, form: Callable[[float | None], str]) -> tuple[str, str, str]:
    low, high = form(estimate.low), form(estimate.high)
    interval = NONE if estimate.low is None else f"{low} to {high}"
    return form(estimate.value), interval, str(estimate.problems)


def _share(value: float | None) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def _points(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:+.1f} points"


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
