"""The report on a terminal: for each topic its figures, then its targets and whether they were met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from retool_env.bench.actions import PROTOCOLS
from retool_env.bench.rates import FACES, KINDS

_COLOURS: Final = {"met": "green", "not met": "red"}
_SHOWN_LENGTHS: Final = 6


def show_machine(report: dict[str, Any], console: Console) -> None:
    """Prints where the figures are from, and a warning where they can be worth little."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux {machine['kernel']}"
        f"{', root' if machine['root'] else ''}; tier {machine['tier']}; Python {machine['python']}, {packages}",
        highlight=False,
        markup=False,
    )
    if machine["load_1min"] > machine["cores"] / 4:
        console.print(
            f"[yellow]load {machine['load_1min']}: this machine is not idle, and the figures are not fit to quote[/]"
        )


def show(topic: str, report: dict[str, Any], console: Console) -> None:
    """Prints one part of the report, and the targets that are about it."""
    for table in _TABLES[topic](report[topic]):
        console.print(table)
    for face, figures in report[topic].items():
        if "unsupported" in figures:
            console.print(f"{topic}, {face}: not measured: {figures['unsupported']}", markup=False)
    targets = [entry for entry in report["targets"] if entry["topic"] == topic]
    if targets:
        console.print(_targets(topic, targets))


def _table(title: str, *columns: str, texts: int = 1) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=min(len(title), 110))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < texts else "right")
    return table


def _own(part: dict[str, Any]) -> Iterable[Table]:
    columns = ("own p50", "best", "CPU p50", "beside the program p50", "whole step p50", "reset p50")
    table = _table("one step at 10 kB, microseconds; own: outside the sandbox", "", "", *columns, texts=2)
    for protocol, shapes in part.items():
        for shape, figures in shapes.items():
            keys = ("own_p50", "own_best", "cpu_p50", "beside_program_p50", "step_p50", "reset_p50")
            table.add_row(protocol, shape, *(f"{figures[f'{key}_us']:.0f}" for key in keys))
    yield table


def _length(part: dict[str, Any]) -> Iterable[Table]:
    lengths = part[PROTOCOLS[0]]["prose"]["chars"]
    step = -(-len(lengths) // _SHOWN_LENGTHS)
    shown = range(len(lengths) - 1, -1, -step)[::-1]
    columns = [f"{lengths[i] / 1000:g} kB" for i in shown]
    table = _table("own time by length, best of all rounds, microseconds", "", "", *columns, "t(2n)/t(n)", texts=2)
    for protocol, shapes in part.items():
        for shape, figures in shapes.items():
            cells = (f"{figures['own_best_us'][i]:.0f}" for i in shown)
            table.add_row(protocol, shape, *cells, f"{max(figures['ratios']):.2f}")
    yield table


def _rates(part: dict[str, Any]) -> Iterable[Table]:
    columns = ("turns a second, code", "no code", "host CPU for a turn, us, code", "no code")
    table = _table("turns a second; code: three calls, then an answer", "", "", *columns, texts=2)
    for face in FACES:
        figures = part[face]
        for protocol in PROTOCOLS if "unsupported" not in figures else ():
            name = f"{figures['what']}, {figures['envs']}" if protocol == PROTOCOLS[0] else ""
            rates = (f"{figures[protocol][kind]['turns_per_s']:,.0f}" for kind in KINDS)
            cpu = (f"{figures[protocol][kind]['host_cpu_us']:.0f}" for kind in KINDS)
            table.add_row(name, protocol, *rates, *cpu)
    theirs = part["group"].get("pettingzoo_turns_per_s")
    if theirs is not None:
        table.add_row("PettingZoo's benchmark", "code_tags", *(f"{theirs[kind]:,.0f}" for kind in KINDS))
    yield table


def _memory(part: dict[str, Any]) -> Iterable[Table]:
    table = _table("memory of one environment, KiB of Python objects", "", "of", "made", "in an episode", "at its end")
    for face, figures in part.items():
        if "unsupported" not in figures:
            cells = (f"{figures[key]:.1f}" for key in ("made_kb", "reset_kb", "ended_kb"))
            table.add_row(face, str(figures["envs"]), *cells)
    yield table


def _targets(topic: str, targets: list[dict[str, Any]]) -> Table:
    table = _table(f"{topic}: targets", "", "measured", "target", "")
    for entry in targets:
        colour = _COLOURS[entry["verdict"]]
        measured = f"{entry['measured']:.3g} {entry['unit']}".strip()
        table.add_row(entry["name"], measured, entry["target"], f"[{colour}]{entry['verdict']}[/]")
    return table


_TABLES: Final = {"own": _own, "length": _length, "rates": _rates, "memory": _memory}
