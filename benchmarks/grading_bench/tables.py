"""The report on a terminal: for each topic its figures, then its targets and whether they were met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

_COLOURS = {"met": "green", "not met": "red", "not measured": "yellow"}
_KINDS = {
    "integer": "integer",
    "integer_turn": "integer, in a turn",
    "latex": "LaTeX",
    "latex_turn": "LaTeX, in a turn",
}


def show_machine(report: dict[str, Any], console: Console) -> None:
    """Prints where the figures are from, what is compared, and a warning where they can be worth little."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux {machine['kernel']}"
        f"{', root' if machine['root'] else ''}; Python {machine['python']}, {packages}",
        highlight=False,
    )
    if machine["load_1min"] > machine["cores"] / 4:
        console.print(
            f"[yellow]load {machine['load_1min']}: this machine is not idle, and the figures are not fit to quote[/]"
        )
    for name, about in report["graders"].items():
        said = about.get("what") or f"not compared: {about['unsupported']}"
        console.print(f"{name}: {said}", highlight=False, markup=False)


def show(topic: str, report: dict[str, Any], console: Console) -> None:
    """Prints one part of the report, and the targets that are about it."""
    if "unsupported" in report[topic]:
        console.print(f"{topic}: not measured: {report[topic]['unsupported']}", markup=False)
    else:
        for table in _TABLES[topic](report[topic]):
            console.print(table)
    targets = [entry for entry in report["targets"] if entry["topic"] == topic]
    if targets:
        console.print(_targets(topic, targets))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=min(len(title), 110))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _latency(part: dict[str, Any]) -> Iterable[Table]:
    table = _table("one grading: p50 / p99, microseconds", "", *(_KINDS[kind] for kind in part))
    for name in next(iter(part.values())):
        cells = (f"{by_name[name]['p50_us']:.1f} / {by_name[name]['p99_us']:.0f}" for by_name in part.values())
        table.add_row(name, *cells)
    yield table
    table = _table("verdicts on these that were right, %", "", *(_KINDS[kind] for kind in part))
    for name in next(iter(part.values())):
        table.add_row(name, *(f"{100 * by_name[name]['right'] / by_name[name]['n']:.1f}" for by_name in part.values()))
    yield table


def _corpus(part: dict[str, Any]) -> Iterable[Table]:
    first = next(iter(part.values()))
    free = first["policy_free"]["n"]
    yield _verdicts(f"{first['n']} hard public cases; in brackets the {free} that are no matter of policy", part)


def _pairs(part: dict[str, Any]) -> Iterable[Table]:
    first = next(iter(part.values()))
    plain = f"in brackets the {first['plain']['n']} with short sides and no list of boxes"
    yield _verdicts(f"{first['n']} labelled pairs of math-verify's tests; {plain}", part)


def _verdicts(title: str, part: dict[str, Any]) -> Table:
    table = _table(title, "", "right", "false pos.", "false neg.", "timed out", "raised", "hung", "died")
    for name, counts in part.items():
        free, plain = counts["policy_free"], counts.get("plain")
        cells = [str(counts["right"]) + ("" if plain is None else f" ({plain['right']})")]
        cells += [
            str(len(counts[key])) + ("" if plain is not None else f" ({free[key]})")
            for key in ("false_positives", "false_negatives")
        ]
        table.add_row(name, *cells, *(str(counts[key]) for key in ("timed_out", "raised", "hung", "died")))
    return table


def _many(part: dict[str, Any]) -> Iterable[Table]:
    table = _table(
        f"{part['n']} answers: {part['hanging']} hang, {part['hungry']} exhaust the memory, {part['malformed']} are "
        f"malformed; limit {part['limit_s']:g} s",
        "",
        "workers",
        "s",
        "explained s",
        "kills",
        "missed",
        "paid",
        "alive",
        "left behind",
    )
    table.add_row("without the first two", "1", f"{part['plain_s']:.1f}")
    for key in ("serial", "threads"):
        run = part[key]
        figures = (str(run["workers"]), f"{run['total_s']:.1f}", f"{run['explained_s']:.1f}", str(run["kills"]))
        counts = (str(run[name]) for name in ("missed", "paid"))
        table.add_row(key, *figures, *counts, "yes" if run["alive"] else "no", str(run["left_behind"]))
    yield table
    table = _table("after a kill", "", "ms")
    table.add_row("the next expression waits", f"{part['restart_s'] * 1e3:.0f}")
    yield table


def _targets(topic: str, targets: list[dict[str, Any]]) -> Table:
    table = _table(f"{topic}: targets", "", "measured", "target", "")
    for entry in targets:
        colour = _COLOURS[entry["verdict"]]
        measured = "" if entry["measured"] is None else f"{entry['measured']:.4g} {entry['unit']}"
        table.add_row(entry["name"], measured, entry["target"], f"[{colour}]{entry['verdict']}[/]")
    return table


_TABLES = {"latency": _latency, "corpus": _corpus, "pairs": _pairs, "many": _many}
