"""The report on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_COLOURS = {"met": "green", "not met": "red", "not measured": "yellow"}


def show_machine(report: dict[str, Any], console: Console) -> None:
    """Prints where the figures are from, and a warning where they can be worth little."""
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux {machine['kernel']}; "
        f"Python {machine['python']}",
        highlight=False,
    )
    if machine["load_1min"] > machine["cores"] / 4:
        console.print(
            f"[yellow]load {machine['load_1min']}: this machine is not idle, and the figures are not fit to quote[/]"
        )


def show(report: dict[str, Any], console: Console) -> None:
    """Prints the figures, then the targets."""
    part, growth, options = report["rollout"], report["growth"], report["options"]
    table = _table(f"{part['attempts']} attempts, {options['concurrency']} at the same time", "", "")
    for name, value in (
        ("turns; tokens of a turn, p50 / p99", f"{part['turns']}; {_pair(part['turn_tokens'], '.0f')}"),
        ("tokens of an attempt, p50 / p99", _pair(part["trajectory_tokens"], ".0f")),
        ("tokenizer", str(options["tokenizer"] or "bytes")),
        ("elapsed", f"{part['elapsed_s']:.1f} s"),
        ("turns a second", f"{part['turns'] / part['elapsed_s']:.1f}"),
        ("CPU time for a turn: the loop's thread", f"{part['own_cpu_ms']:.3f} ms"),
        ("  of this, writing the files", f"{part['store_cpu_ms']:.3f} ms"),
        ("  not in this, the engine's wait", f"{part['engine_wait_cpu_ms']:.3f} ms"),
        ("CPU time for a turn: the process", f"{part['process_cpu_ms']:.3f} ms"),
        ("event-loop lag, p50 / p99", f"{_pair(part['lag_ms'], '.2f')} ms"),
        ("  before the run, with nothing to do", f"{_pair(part['idle_lag_ms'], '.2f')} ms"),
        ("CPU time between two ticks, p50 / p99", f"{_pair(part['stretch_ms'], '.2f')} ms"),
        ("attempts wait for a place in the sandbox", f"{100 * part['sandbox_wait_share']:.2f} % of their time"),
        ("attempts run code and are graded", f"{100 * part['work_share']:.2f} % of their time"),
    ):
        table.add_row(name, value)
    console.print(table)
    table = _table("CPU time for a turn, by the length of the attempt", "turns", "ms")
    for name in ("short", "long"):
        table.add_row(str(growth[name]["turns"]), f"{growth[name]['own_cpu_ms']:.3f}")
    console.print(table)
    table = _table("CPU time for a call of a server", "tokens of the prompt", "in flight", "ms")
    for call in report["calls"]:
        table.add_row(str(call["prompt_tokens"]), str(call["in_flight"]), f"{call['cpu_ms']:.3f}")
    console.print(table)
    table = _table("targets", "", "measured", "target", "")
    for entry in report["targets"]:
        measured = "" if entry["measured"] is None else f"{entry['measured']:.3f} {entry['unit']}"
        verdict = entry["verdict"]
        table.add_row(entry["name"], measured, entry["target"], f"[{_COLOURS[verdict]}]{verdict}[/]")
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _pair(spread: dict[str, float], form: str) -> str:
    return f"{spread['p50']:{form}} / {spread['p99']:{form}}"
