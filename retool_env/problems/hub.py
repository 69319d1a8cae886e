"""The rows of data sets on the Hugging Face hub, and of folders of the same form, through the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from retool_env.errors import ConfigurationError
from retool_env.problems.columns import Row
from retool_env.problems.files import BATCH_ROWS, no_datasets, table_rows
from retool_env.problems.rows import BadRow


def hub_rows(path: str, names: Sequence[str | None], split: str | None, revision: str | None) -> Iterator[Row | BadRow]:
    """Yields the rows of a data set; they are numbered on through its configurations.

    ``datasets`` downloads what is not in its cache and keeps the rows in a file that is mapped into memory.

    Args:
        path: The id on the hub ("owner/name"), or a folder.
        names: The configurations to read, one after the other; None is the only one, or the default.
        split: The split; by default the only one.
        revision: Branch, tag or commit on the hub.

    Raises:
        ConfigurationError: ``datasets`` cannot load this, or there are several splits and none was chosen.
        MissingDependencyError: It is not installed.
    """
    tables = [_load(path, name, split, revision) for name in names]
    first = 1
    for table in tables:
        for batch in table.with_format("arrow").iter(BATCH_ROWS):
            yield from table_rows(batch, first, path)
            first += batch.num_rows


def _load(path: str, name: str | None, split: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise no_datasets(f"the data set {path!r}") from error
    place = path if name is None else f"{path} ({name})"
    try:
        loaded = datasets.load_dataset(path, name, split=split, revision=revision)
    except Exception as error:  # the library raises errors of its own, the hub client's, and those of the network
        said = "; ".join(f"{type(fault).__name__}: {fault}" for fault in (error, error.__cause__) if fault is not None)
        raise ConfigurationError(f"problems: the data set {place} cannot be loaded: {said}") from error
    if not isinstance(loaded, dict):
        return loaded
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise ConfigurationError(f"problems: {place} has several splits; choose one: split= {', '.join(map(repr, loaded))}")
