"""What ``retool grade`` does between the command line and the grader: read, grade, write, count, show."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from retool_env.cli_demo import place
from retool_env.cli_grade_rows import Columns, Row, RowFile, Unread, open_rows
from retool_env.cli_grade_summary import Tally
from retool_env.errors import ConfigurationError
from retool_env.grading import PRESETS, Grade, check_gold, grade
from retool_env.protocol.observation import clean

if TYPE_CHECKING:
    from rich.console import Console


_MAX_BAD_SHOWN: Final = 10
_REFRESH_S: Final = 0.1
_COLUMNS: Final = ("correct", "answer", "method", "reason", "timed_out", "elapsed_s", "error")
_AHEAD: Final = 16
"""Rows that are read ahead for each worker: so many can pass by one that takes long."""


@dataclass(frozen=True, slots=True)
class GradeOptions:
    """What the command line asked for.

    Attributes:
        file: The rows; ``-`` for standard input.
        columns: Where to find text, gold and old score.
        preset: What counts as an answer, and how strictly it is compared.
        limit_s: Seconds that one comparison may take.
        workers: Rows that are graded at the same time.
        out: File for the grades, or None.
    """

    file: Path
    columns: Columns
    preset: str
    limit_s: float
    workers: int
    out: Path | None


def run(options: GradeOptions, console: Console, errors: Console) -> int:
    """Grades a file of rows and prints the summary.

    Args:
        options: What to grade.
        console: For the summary.
        errors: For the progress bar and messages.

    Returns:
        0, or 1 if a row could not be read.

    Raises:
        ConfigurationError: An option has a value that cannot work, or the file has not the columns that are wanted.
        ProblemError: The file is empty.
        WorkerStartError: The grader's worker cannot start.
        OSError: The file could not be read on, or the grades not be written.
        KeyboardInterrupt: Interrupted. After this and any other error the summary of what was graded is shown.
    """
    if options.preset not in PRESETS:
        raise ConfigurationError(f"--preset: must be one of {', '.join(PRESETS)}, got {options.preset!r}")
    started = time.monotonic()
    tally = Tally(compared=options.columns.score is not None)
    with open_rows(options.file, options.columns) as rows, _writing(options.out, errors) as out:
        try:
            _grade_all(rows, options, tally, out, errors)
        finally:
            if tally.rows:
                for table in tally.tables(options.preset, time.monotonic() - started):
                    console.print(table)
    if options.out is not None and tally.rows:
        console.print(Text.assemble(("grades  ", "bold"), str(options.out)), soft_wrap=True)
    return 1 if tally.bad else 0


def _grade_all(rows: RowFile, options: GradeOptions, tally: Tally, out: TextIO | None, errors: Console) -> None:
    columns = (
        SpinnerColumn(), TextColumn("{task.fields[rows]} rows"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    shown_s = 0.0
    bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    with bar as progress, contextlib.closing(_graded(rows, options)) as results:
        task = progress.add_task("rows", total=rows.size, rows=0)
        for row, result in results:
            if isinstance(result, Unread):
                tally.pass_over(result)
                if result.bad:
                    _complain(result, tally.bad, errors)
            elif isinstance(row, Row):
                tally.add(row, result)
            if out is not None:
                out.write(_line(row.number, result) + "\n")
            if time.monotonic() - shown_s > _REFRESH_S:
                shown_s = time.monotonic()
                progress.update(task, completed=rows.position, rows=tally.rows)


def _graded(rows: Iterable[Row | Unread], options: GradeOptions) -> Generator[tuple[Row | Unread, Grade | Unread]]:
    """Yields every row with its grade, in order."""
    if options.workers == 1:
        for row in rows:
            yield row, _judge(row, options)
        return
    waiting: deque[tuple[Row | Unread, Future[Grade | Unread]]] = deque()
    pool = ThreadPoolExecutor(options.workers, thread_name_prefix="retool-grade")
    try:
        for row in rows:
            waiting.append((row, pool.submit(_judge, row, options)))
            while waiting and (waiting[0][1].done() or len(waiting) >= _AHEAD * options.workers):
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _judge(row: Row | Unread, options: GradeOptions) -> Grade | Unread:
    if isinstance(row, Unread):
        return row
    try:
        fault = None if options.preset == "strict" else _gold_fault(row.gold)  # strict compares text with any text
        if fault is None:
            return grade(row.text, row.gold, preset=options.preset, limit_s=options.limit_s)
    except ValueError as error:
        fault = str(error)
    return Unread(row.number, fault)


@lru_cache(maxsize=4096)
def _gold_fault(gold: str) -> str | None:
    """What is wrong with a gold answer, or None; a file has many rows for each problem."""
    try:
        check_gold(gold)
    except ValueError as error:
        return str(error)
    return None


def _complain(row: Unread, number: int, errors: Console) -> None:
    if number <= _MAX_BAD_SHOWN:
        errors.print(Text(f"row {row.number}: {clean(row.reason)}", style="red"), soft_wrap=True)
    elif number == _MAX_BAD_SHOWN + 1:
        errors.print(Text("more rows cannot be read; the summary has their number", style="red"), soft_wrap=True)


def _line(number: int, result: Grade | Unread) -> str:
    values: dict[str, object] = {"row": number} | dict.fromkeys(_COLUMNS)
    if isinstance(result, Unread):
        values["error"] = result.reason
    else:
        values |= {name: getattr(result, name) for name in _COLUMNS if name != "error"}
        values["elapsed_s"] = round(result.elapsed_s, 6)
    return json.dumps(values, ensure_ascii=False)


@contextlib.contextmanager
def _writing(out: Path | None, errors: Console) -> Iterator[TextIO | None]:
    """Makes a new file that gets each line at once. It is removed in the end if nothing came of it.

    Raises:
        ConfigurationError: It exists, or cannot be made.
    """
    if out is None:
        yield None
        return
    place(out)
    try:
        with out.open("a", encoding="utf-8", buffering=1) as stream:
            yield stream
    except BaseException:
        if _size(out):
            errors.print(f"what was finished before is in {out}", markup=False, highlight=False, soft_wrap=True)
        raise
    finally:
        if not _size(out):
            with contextlib.suppress(OSError):  # whatever stands in the way is not worth hiding an error for
                out.unlink(missing_ok=True)


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0
