"""``write_rows``: rows for a trainer as a parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from retool_env.errors import ConfigurationError
from retool_env.problems.files import no_datasets

_ROWS_AT_ONCE: Final = 1000


def write_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows of one form to a new parquet file, some at a time. It appears when it is whole.

    Returns:
        How many rows there were.

    Raises:
        ConfigurationError: The file exists, its folder cannot be made, or there is no row.
        MissingDependencyError: The pyarrow package is not installed.
    """
    file = Path(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise no_datasets(f"the parquet file {file}") from error
    if file.exists():
        raise ConfigurationError(f"{file} exists; choose another file, or remove it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {file.parent}: {error.strerror}") from error
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    n = 0
    writer: Any = None
    waiting: list[Mapping[str, Any]] = []

    def flush() -> None:
        nonlocal writer
        table = pa.Table.from_pylist(waiting, None if writer is None else writer.schema)
        if writer is None:
            writer = pq.ParquetWriter(part, table.schema, compression="zstd")
        writer.write_table(table)
        waiting.clear()

    try:
        for row in rows:
            waiting.append(row)
            n += 1
            if len(waiting) == _ROWS_AT_ONCE:
                flush()
        if waiting:
            flush()
        if writer is None:
            raise ConfigurationError(f"{file}: there is no row to write")
        writer.close()
        part.replace(file)
    finally:
        if writer is not None:
            writer.close()
        part.unlink(missing_ok=True)
    return n
