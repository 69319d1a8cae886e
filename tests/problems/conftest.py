"""Nothing here may reach the network: data sets are folders of the form that the hub's have."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where ``owner/name`` is a folder that ``datasets.load_dataset`` takes for a data set."""
    datasets = pytest.importorskip("datasets", reason="needs the datasets extra")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    place = tmp_path / "hub"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def write_jsonl(file: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_parquet(file: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the datasets extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return file
