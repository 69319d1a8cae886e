"""The report of a run as one HTML page that needs nothing else: no network, no script, no second file.

The page trusts no text: all of it is escaped (``retool_env.report.visible``), and its Content-Security-Policy allows
its own sheet, by its hash, and pictures that stand in the page itself. There is no script on it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from retool_env.report.blocks import counted
from retool_env.report.compare import Comparison
from retool_env.report.figures import RunMetrics
from retool_env.report.head import asset, page_head
from retool_env.report.plots import has_matplotlib, plots
from retool_env.report.tables import Table, comparison_table, plain_table, problem_table, tables
from retool_env.report.visible import excerpt, visible_html

BEGIN: Final = "<!doctype html>\n<!-- written by retool report -->\n"
"""What every page begins with: such a file may be written over, any other may not."""

MAX_PROBLEMS: Final = 500
"""Problems that are listed on a page."""

_CELL_CHARS: Final = 300
_MAX_ROWS: Final = 200


def run_page(
    title: str,
    metrics: RunMetrics,
    *,
    run: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    attempts: str = "",
    comparison: Comparison | None = None,
) -> Iterator[str]:
    """Yields the page piece by piece.

    Args:
        title: Its heading.
        metrics: The figures.
        run: Figures of the run itself, as JSON values by name.
        config: What was asked for; the same.
        attempts: HTML that says where the attempts are to be seen.
        comparison: With another run.
    """
    yield page_head(BEGIN, title, asset("palette.css", "report.css"))
    yield f"<body>\n<header>\n<h1>{visible_html(title)}</h1>\n"
    yield f'<p class="soft">{_summary(metrics)}</p>\n{attempts}</header>\n'
    if metrics.notes:
        items = "".join(f"<li>{visible_html(note)}</li>" for note in metrics.notes)
        yield f'<ul class="notes" aria-label="What to know of these figures">{items}</ul>\n'
    yield "<main>\n"
    first, *others = tables(metrics)
    yield _table(first)
    if comparison is not None:
        yield _table(comparison_table(comparison))
    yield from _pictures(metrics)
    yield from map(_table, others)
    if metrics.per_problem:
        yield _problems(problem_table(metrics, MAX_PROBLEMS))
    for name, values in (("The run", run), ("What was asked for", config)):
        if values:
            yield _table(plain_table(name, values), "plain")
    yield "</main>\n</body>\n</html>\n"


def _summary(metrics: RunMetrics) -> str:
    parts = [
        counted(metrics.attempts, "attempt"),
        f"{metrics.correct} correct",
        f"{metrics.counted - metrics.correct} wrong",
        *([counted(metrics.faults, "fault")] if metrics.faults else []),
        *([f"{metrics.unfinished} unfinished"] if metrics.unfinished else []),
        counted(metrics.problems + metrics.problems_left_out, "problem"),
    ]
    return visible_html(" · ".join(parts))


def _pictures(metrics: RunMetrics) -> Iterator[str]:
    if not metrics.counted:
        return
    yield "<h2>Pictures</h2>\n"
    if not has_matplotlib():
        yield '<p class="note">There are none: matplotlib is not installed. Install it with '
        yield "<code>pip install matplotlib</code> and make the report again with <code>retool report</code>.</p>\n"
        return
    yield '<div class="plots">\n'
    for plot in plots(metrics):
        data = base64.b64encode(plot.png).decode()
        yield f'<figure><img alt="{visible_html(plot.alt)}" src="data:image/png;base64,{data}"></figure>\n'
    yield "</div>\n"


def _table(table: Table, name: str = "") -> str:
    rows = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>\n" for row in table.rows[:_MAX_ROWS])
    return _framed(table, rows, name)


def _problems(table: Table) -> str:
    place = table.head.index("pass rate")
    rows = []
    for row in table.rows:
        cells = [f"<td>{_cell(cell)}</td>" for cell in row]
        if row[place].endswith("%"):
            share = float(row[place][:-1]) / 100
            bar = f'<meter aria-label="pass rate" min="0" max="1" value="{share:.3f}"></meter>'
            cells[place] = f"<td>{bar} {_cell(row[place])}</td>"
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    return _framed(table, "".join(rows), "problems")


def _framed(table: Table, rows: str, name: str) -> str:
    head = "".join(f'<th scope="col">{_cell(cell)}</th>' for cell in table.head)
    note = f'<p class="note">{visible_html(table.note)}</p>\n' if table.note else ""
    return (
        f"<section>\n<h2>{visible_html(table.title)}</h2>\n{note}"
        f'<div class="wide"><table class="{name}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n</section>\n"
    )


def _cell(text: str) -> str:
    return visible_html(excerpt(text, _CELL_CHARS))
