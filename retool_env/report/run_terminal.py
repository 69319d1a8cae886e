"""The figures of a run on a terminal. rich reads no markup in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retool_env.report.compare import Comparison
from retool_env.report.figures import RunMetrics
from retool_env.report.tables import Table, behaviour_table, by_k, comparison_table, headline, sources
from retool_env.report.visible import excerpt, visible

if TYPE_CHECKING:
    from rich.console import Console

_CELL_CHARS = 100


def print_metrics(metrics: RunMetrics, console: Console, comparison: Comparison | None = None) -> None:
    """Prints the figures that are quoted, how code was used, and what a reader must know of them.

    Args:
        metrics: The figures.
        console: Where.
        comparison: With another run.
    """
    found = [headline(metrics), by_k(metrics), sources(metrics), behaviour_table(metrics)]
    if comparison is not None:
        found.insert(1, comparison_table(comparison))
    for table in found:
        if table.rows:
            print_table(table, console)
    from rich.text import Text

    for note in metrics.notes:
        console.print(Text.assemble(("note  ", "bold yellow"), visible(note)), soft_wrap=True)


def print_table(table: Table, console: Console) -> None:
    """Prints a table; its first column stands left, the others right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(visible(table.title)), title_justify="left")
    for place, name in enumerate(table.head):
        shown.add_column(Text(visible(name)), justify="left" if place == 0 else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(visible(excerpt(cell, _CELL_CHARS))) for cell in row))
    if table.note:
        shown.caption = Text(visible(table.note))
        shown.caption_justify = "left"
    console.print(shown)
