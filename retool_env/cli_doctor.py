"""How ``retool doctor`` shows a report of the machine: one screen, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from retool_env.sandbox.doctor import Check, Report


def show(report: Report, console: Console) -> int:
    """Prints a report; returns the exit code of the command.

    Args:
        report: What ``retool_env.sandbox.doctor.examine`` found.
        console: Where to print.

    Returns:
        0 if some tier works, 1 if none does.
    """
    if report.chosen is None:
        console.print(Text("No sandbox tier works on this machine.", style="bold red"))
    else:
        console.print(Text.assemble("The tier ", ("auto", "bold"), " picks here: ", (report.chosen, "bold green")))
    for tier in report.tiers:
        state = ("works", "green") if tier.available else ("does not work", "red")
        console.print(Text.assemble("\n", (tier.tier, "bold"), " ", state, f": {tier.why}"))
        console.print(_table(tier.checks))
    if report.system:
        console.print(Text("\nthis machine", style="bold"))
        console.print(_table(report.system))
    return 1 if report.chosen is None else 0


def _table(checks: Iterable[Check]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for check in checks:
        mark = Text("  ok", style="green") if check.ok else Text("  no", style="red")
        detail = Text(check.detail)
        if check.mend and not check.ok:
            detail.append(f"\nto mend it: {check.mend}" if check.detail else f"to mend it: {check.mend}", "yellow")
        table.add_row(mark, Text(check.name), detail)
    return table
