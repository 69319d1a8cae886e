"""``write_parquet``: the attempts of a run, records and tokens together, as one parquet file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from retool_env.errors import MissingDependencyError
from retool_env.outcome import FAULTS
from retool_env.rollout.store import TOKENS, TRAJECTORIES
from retool_env.trajectory import read_jsonl

PARQUET: Final = "attempts.parquet"
_ROWS_AT_ONCE: Final = 64


def write_parquet(folder: Path) -> Path:
    """Writes ``attempts.parquet`` from the run's two JSONL files, some rows at a time. The run must have ended.

    | column | type | |
    |---|---|---|
    | ``id``, ``problem_id``, ``sample`` | string, string, int32 | which attempt |
    | ``question``, ``gold`` | string | its problem |
    | ``answer``, ``correct``, ``reward``, ``ended`` | string, bool, double, string | how it came out |
    | ``fault`` | bool | a fault has ended it: leave it out |
    | ``turns``, ``tool_calls`` | int32 | |
    | ``prompt_ids``, ``response_ids``, ``response_mask``, ``response_logprobs`` | lists | its tokens |
    | ``trajectory`` | string | the whole record, as a line of ``trajectories.jsonl`` |

    Returns:
        The file.

    Raises:
        MissingDependencyError: The pyarrow package is not installed.
        OSError: It cannot be written.
    """
    pa, pq = _pyarrow()
    ids, reals = pa.list_(pa.int32()), pa.list_(pa.float32())
    text = pa.string()
    schema = pa.schema(
        {
            "id": text,
            "problem_id": text,
            "sample": pa.int32(),
            "question": text,
            "gold": text,
            "answer": text,
            "correct": pa.bool_(),
            "reward": pa.float64(),
            "ended": text,
            "fault": pa.bool_(),
            "turns": pa.int32(),
            "tool_calls": pa.int32(),
            "prompt_ids": ids,
            "response_ids": ids,
            "response_mask": pa.list_(pa.int8()),
            "response_logprobs": reals,
            "trajectory": text,
        }
    )
    file = folder / PARQUET
    part = file.with_name(f".{PARQUET}.{os.getpid()}.part")
    try:
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            rows: list[dict[str, Any]] = []
            for row in _rows(folder):
                rows.append(row)
                if len(rows) == _ROWS_AT_ONCE:
                    writer.write_table(pa.Table.from_pylist(rows, schema))
                    rows.clear()
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def has_pyarrow() -> None:
    """Finds out before a run, not after it.

    Raises:
        MissingDependencyError: The pyarrow package is not installed.
    """
    _pyarrow()


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Both files have their attempts in the same order."""
    with (folder / TOKENS).open("rb") as tokens:
        for record, line in zip(read_jsonl(folder / TRAJECTORIES), tokens, strict=True):
            row = json.loads(line)
            assert record.sample is not None
            assert record.outcome is not None
            assert row["id"] == record.sample.id
            outcome = record.outcome
            yield {
                "id": record.sample.id,
                "problem_id": record.problem.id,
                "sample": record.sample.sample,
                "question": record.problem.question,
                "gold": record.problem.answer,
                "answer": outcome.answer,
                "correct": outcome.correct,
                "reward": outcome.reward,
                "ended": outcome.ended.value,
                "fault": outcome.ended in FAULTS,
                "turns": outcome.turns,
                "tool_calls": outcome.tool_calls,
                "prompt_ids": row.get("prompt_ids", []),
                "response_ids": row.get("response_ids", []),
                "response_mask": row.get("response_mask", []),
                "response_logprobs": row.get("response_logprobs", []),
                "trajectory": record.to_json(),
            }


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError(
            'parquet needs the pyarrow package: pip install "retool-env[datasets]" '
            '(in a clone: pip install -e ".[datasets]")'
        ) from error
    return pa, pq
