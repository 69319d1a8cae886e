"""The report on a terminal: for each topic its figures, then its targets and whether they were met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from .programs import PROGRAMS

_COLOURS = {"met": "green", "met, scaled": "green", "not met": "red", "not measured": "yellow"}


def show_machine(report: dict[str, Any], console: Console) -> None:
    """Prints where the figures are from, and a warning where they can be worth little."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux {machine['kernel']}; "
        f"tier {machine['tier']}{', root' if machine['root'] else ''}; Python {machine['python']}, {packages}",
        highlight=False,
    )
    if machine["load_1min"] > machine["cores"] / 4:
        console.print(
            f"[yellow]load {machine['load_1min']}: this machine is not idle, and the figures are not fit to quote[/]"
        )
    for name, about in report["peers"].items():
        console.print(f"{name}: {about.get('what') or about['unsupported']}", highlight=False, markup=False)


def show(topic: str, report: dict[str, Any], console: Console) -> None:
    """Prints one part of the report, and the targets that are about it."""
    for table in _TABLES[topic](report):
        console.print(table)
    targets = [entry for entry in report["targets"] if entry["topic"] == topic]
    if targets:
        console.print(_targets(topic, report[topic]["slowness"], targets))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=min(len(title), 110))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _latency(report: dict[str, Any]) -> Iterable[Table]:
    part = report["latency"]
    table = _table("latency of one execution on an idle machine: p50 / p99 ms, ratio of p50", "", *PROGRAMS)
    for way, programs in part["ways"].items():
        cells = [f"{f['p50_ms']:.2f} / {f['p99_ms']:.2f}  {f['ratio']:.0f}x" for f in programs.values()]
        table.add_row(_called(way, report), *cells)
    for way, reason in part["unsupported"].items():
        table.add_row(way, reason)
    yield table
    table = _table("fork, exit and wait of a process with one thread, ms", "", "p50", "p99")
    for kind, text in (("small", "a Python with nothing imported"), ("loaded", "one with sympy and numpy")):
        floor = part["fork_floor"][kind]
        table.add_row(text, f"{floor['p50_ms']:.2f}", f"{floor['p99_ms']:.2f}")
    yield table


def _called(way: str, report: dict[str, Any]) -> str:
    peer = report.get("peers", {}).get(way)
    return f"{way} {peer['version']} (Python {peer['python']})" if peer else way


def _throughput(report: dict[str, Any]) -> Iterable[Table]:
    part = report["throughput"]
    levels = sorted({level for p in part["per_core"].values() for r in p.values() for level in r} - {"cores"}, key=int)
    table = _table("executions a second and core, by programs in flight", "", "program", *levels)
    baseline = part["per_core"]["subprocess"]
    for way, programs in part["per_core"].items():
        for name, rates in programs.items():
            if way == "subprocess":
                cells = [f"{rates['cores']:.1f} (one a core)"]
            else:
                fresh = baseline[name]["cores"]
                cells = [f"{rates[k]:.0f}  {rates[k] / fresh:.1f}x" if k in rates else "" for k in levels]
            table.add_row(way, name, *cells)
    for way, reason in part["unsupported"].items():
        table.add_row(way, reason)
    yield table


def _sessions(report: dict[str, Any]) -> Iterable[Table]:
    part = report["sessions"]
    table = _table("sessions: ms", "", "p50", "p99")
    for key, text in (
        ("open", "open, and the first turn"),
        ("turn", "the next turn, `seen`, after a pause"),
        ("turn_at_once", "the same, back to back"),
        ("bare", "a bare Python that answers, after a pause"),
        ("fork", "fork after P2"),
    ):
        table.add_row(text, *_times(part[key]))
    yield table
    table = _table("private memory of one session, MB", "", "idle", "after P2")
    for kind, memory in part["memory_mb"].items():
        if "unsupported" in memory:
            table.add_row(kind, memory["unsupported"])
        else:
            table.add_row(kind, *(f"{memory[when]['median']:.2f}" for when in ("idle", "after_sympy")))
    yield table
    many = part["many"]
    private = "?" if many["private_mb"] is None else f"{many['private_mb']:.2f}"
    table = _table(
        "many sessions", "asked for", "open", "kept state", "s to open", "MB each", "page tables", "descriptors"
    )
    cells = (f"{many['open_s']:.1f}", private, f"{many['page_tables_mb']:.2f}", str(many["descriptors"]))
    table.add_row(*(str(many[key]) for key in ("asked", "open", "kept")), *cells)
    yield table


def _times(figures: dict[str, Any]) -> tuple[str, ...]:
    if "unsupported" in figures:
        return (figures["unsupported"],)
    return tuple(f"{figures[key]:.2f}" for key in ("p50_ms", "p99_ms"))


def _kill(report: dict[str, Any]) -> Iterable[Table]:
    table = _table("ms until all is gone", "", "p50", "p99")
    texts = {
        "runaway": "runaway code, from its kill",
        "fork_bomb": "fork and thread bomb, from its kill",
        "verdict": "verdict, from the deadline",
        "owner": "all programs, from SIGKILL of the owner",
    }
    for key, text in texts.items():
        table.add_row(text, *_times(report["kill"][key]))
    yield table


def _overload(report: dict[str, Any]) -> Iterable[Table]:
    part = report["overload"]
    table = _table(
        f"overload: {part['program']} queued at once",
        "programs",
        "p50 wait s",
        "p99 wait s",
        "not ok",
        "overtaken",
        "s",
    )
    for count, level in part["levels"].items():
        waits = (f"{level['queue'][key] / 1e3:.2f}" for key in ("p50_ms", "p99_ms"))
        table.add_row(count, *waits, str(level["not_ok"]), str(level["overtaken"]), f"{level['total_s']:.1f}")
    yield table


def _profile(report: dict[str, Any]) -> Iterable[Table]:
    part = report["profile"]
    titles = {
        "idle": "where the time goes, one at a time: ms (faults: number) for each execution",
        "busy": "the same with four in flight for each core: wall is the time of all cores together",
    }
    columns = ("wall_ms", "program_cpu_ms", "host_cpu_ms", "client_cpu_ms", "zygote_cpu_ms", "children_cpu_ms")
    for mode, title in titles.items():
        names = ("wall", "program", "host", "caller", "zygote", "child in all")
        table = _table(title, "", "alone", *names, "faults", "faults in all")
        for name, costs in part[mode].items():
            faults = [f"{costs[key]:.0f}" for key in ("program_faults", "children_faults")]
            cells = [f"{costs[key]:.2f}" for key in columns]
            table.add_row(name, f"{part['alone_ms'][name]:.2f}", *cells, *faults)
        yield table
    names = ("wall", "program", "host", "caller")
    table = _table("the next turn of a live session, ms", *names)
    table.add_row(*(f"{part['turn'][key]:.2f}" for key in columns[: len(names)]))
    yield table


def _targets(topic: str, slowness: float, targets: list[dict[str, Any]]) -> Table:
    table = _table(
        f"{topic}: targets (this machine takes {slowness:.2f} times as long as the one they are for)",
        "",
        "measured",
        "scaled to that one",
        "target",
        "",
    )
    for entry in targets:
        colour = _COLOURS[entry["verdict"]]
        cells = ("" if entry[key] is None else f"{entry[key]:.4g} {entry['unit']}" for key in ("measured", "scaled"))
        table.add_row(entry["name"], *cells, entry["target"], f"[{colour}]{entry['verdict']}[/]")
    return table


_TABLES = {
    "latency": _latency,
    "throughput": _throughput,
    "sessions": _sessions,
    "kill": _kill,
    "overload": _overload,
    "profile": _profile,
}
