"""The rows of files: JSONL and parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from retool_env.errors import ConfigurationError, MissingDependencyError, ProblemError
from retool_env.plain import plain_text
from retool_env.problems.columns import Row, parse_json
from retool_env.problems.problem import Problem
from retool_env.problems.rows import BadRow, RowRules, read_problems

BATCH_ROWS: Final = 1000
"""Rows that are Python objects at a time."""


def load_jsonl(
    path: str | os.PathLike[str],
    question: str | None = None,
    answer: str | None = None,
    id: str | None = None,
    limit: int | None = None,
) -> list[Problem]:
    """Reads problems from a JSONL file: UTF-8, one JSON object a line; blank lines are skipped.

    The columns not named are found in the first row, by the usual names (``question``, ``problem``, ``prompt``,
    ``input``, ... and ``answer``, ``gold``, ``target``, ``output``, ``solution``, ...; case does not matter). The
    remaining columns become the problem's ``metadata``. Lone surrogates (JSON can write them as escapes) become U+FFFD.

    Args:
        path: The file.
        question: Column of the question: text, or chat messages with one turn of the user's.
        answer: Column of the gold answer: text, or a JSON number, which is turned into exact text.
        id: Column of the id (text or integer). By default an id is made of the file's name and the row number.
        limit: Read only this many problems.

    Raises:
        ConfigurationError: There is no such file, or ``limit`` is below 1.
        ProblemError: The file is empty, a row is not a JSON object or not UTF-8, a column is missing or ambiguous, an
            id appears twice, or a gold answer cannot be parsed. Names the file, the row (its line number, from 1) and
            the column.
    """
    file = Path(path)
    rules = RowRules(question, answer, id, limit)
    return read_problems(file_rows(file), str(file), plain_text(file.stem), rules)


def file_rows(file: Path) -> Iterator[Row | BadRow]:
    """Yields the rows of a file: parquet if its name ends so, else JSONL.

    Raises:
        ConfigurationError: There is no such file.
        ProblemError: It is not a parquet file.
        MissingDependencyError: It is to be one, and pyarrow is not installed.
    """
    if not file.is_file():
        fault = "not a file" if file.exists() else "no such file"
        raise ConfigurationError(f"problems: {fault}: {file}")
    return _parquet_rows(file) if file.suffix == ".parquet" else _jsonl_rows(file)


def no_datasets(what: str) -> MissingDependencyError:
    """Returns the error for something that needs the datasets library where it is not installed."""
    return MissingDependencyError(
        f'the datasets library is needed for {what}: pip install "retool-env[datasets]" '
        '(in a clone: pip install -e ".[datasets]")'
    )


def _jsonl_rows(file: Path) -> Iterator[Row | BadRow]:
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                yield BadRow(str(file), number, None, f"not UTF-8 (byte {error.start + 1} of the row)")
                continue
            if not line:
                continue
            try:
                values = parse_json(line)
            except (ValueError, RecursionError) as error:
                yield BadRow(str(file), number, None, f"not valid JSON: {error}")
                continue
            if isinstance(values, dict):
                yield Row(number, values, line)
            else:
                kind = type(values).__name__
                yield BadRow(str(file), number, None, f"a row must be a JSON object with columns, got {kind}")


def table_rows(table: Any, first: int, origin: str) -> Iterator[Row | BadRow]:
    """Yields the rows of a part of an Arrow table; a row with a value that Python cannot hold is a bad one.

    Args:
        table: The part, a table or a batch.
        first: Number of its first row.
        origin: What messages call the place it comes from.

    Raises:
        ProblemError: Two columns have the same name.
    """
    names = table.schema.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ProblemError(f"{origin}: more than one column is called {twice!r}; nobody knows which is meant")
    for position, kind in enumerate(table.schema.types):
        if str(kind) == "float":
            # The shortest text that means the same: 0.1, and not 0.10000000149011612.
            table = table.set_column(position, names[position], table.column(position).cast("string").cast("double"))
    try:
        rows = table.to_pylist()
    except Exception:  # text that is not UTF-8, an unknown time zone: as many kinds of errors as kinds of columns
        rows = [None] * table.num_rows
    for position, values in enumerate(rows):
        if values is not None:
            yield Row(first + position, values)
            continue
        try:
            yield Row(first + position, table.slice(position, 1).to_pylist()[0])
        except Exception as error:
            reason = f"a value cannot be read: {type(error).__name__}: {error}"
            yield BadRow(origin, first + position, None, reason)


def _parquet_rows(file: Path) -> Iterator[Row | BadRow]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise no_datasets(f"the parquet file {file}") from error
    first = 1
    try:
        with parquet.ParquetFile(file) as table:
            # Without threads of its own: the process may be a trainer's, about to fork.
            for batch in table.iter_batches(BATCH_ROWS, use_threads=False):
                yield from table_rows(batch, first, str(file))
                first += batch.num_rows
    except (ArrowException, OSError) as error:
        raise ProblemError(f"{file}: cannot be read as parquet: {error}") from error
