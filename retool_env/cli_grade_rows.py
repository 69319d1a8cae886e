"""What ``retool grade`` reads: JSONL of texts and golds with any column names, or recorded trajectories.

One line at a time, so that the size of a file does not matter. A row that cannot be read is reported and passed over.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Final

from retool_env.errors import ConfigurationError, ProblemError, TrajectoryError
from retool_env.outcome import FAULTS
from retool_env.plain import plain_strings, plain_text
from retool_env.protocol.base import EndReason
from retool_env.trajectory import Trajectory

# In order of preference, compared without case, as for problems; names in one group are equally good.
_TEXT_NAMES: Final = (
    ("text", "response", "completion", "prediction", "generation", "model_output", "model_response"),
    ("output",),  # rollouts that verl dumps have input, output, gts and score
)
_GOLD_NAMES: Final = (
    ("gold", "gold_answer", "ground_truth", "groundtruth", "gts", "expected_answer", "reference_answer"),
    ("answer", "final_answer", "target", "expected", "reference", "label"),
    ("solution",),
)
_MAX_EXPONENT: Final = 400
"""Golds written with a larger power of ten than this are refused: as exact text they would be endless."""

_LEAST_CORRECT: Final = 0.5
"""An old score from here on says "correct": it does for scores of 0 and 1, of -1 and 1, and for shaped rewards."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns; ``a.b`` is the field ``b`` of the object in column ``a``.

    Attributes:
        text: What the model wrote, or None to find it by its name.
        gold: The gold answer, or None to find it by its name.
        score: An old score to compare with, or None.
    """

    text: str | None = None
    gold: str | None = None
    score: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be graded.

    Attributes:
        number: Its line number, from 1.
        text: What the model wrote, in its last turn where the row tells turns apart.
        gold: The gold answer.
        was_correct: What the old score says; None if there is none.
    """

    number: int
    text: str
    gold: str
    was_correct: bool | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that is not graded.

    Attributes:
        number: Its line number, from 1.
        reason: Why.
        bad: Something is wrong with it. If not, there is nothing to grade: an attempt that goes on, or that ended by a
            fault of the sandbox or the engine.
    """

    number: int
    reason: str
    bad: bool = True


class RowFile:
    """The rows of an open file.

    Attributes:
        size: Bytes of the file; None where that is not known (a pipe).
    """

    def __init__(self, lines: Iterable[bytes], name: str, columns: Columns, raw: BinaryIO | None = None):
        """Takes the file.

        Args:
            lines: Its lines.
            name: Names the file in messages.
            columns: Where to find what. Columns that are not named are found in the first row that is an object.
            raw: The file as it is on disk, to see how much of it was read; None where that cannot be told.
        """
        self._lines = lines
        self._raw = raw
        self._name = name
        self._columns = columns
        self._recorded: bool | None = None  # rows are trajectories; None before the first row
        status = None if raw is None else os.fstat(raw.fileno())
        self.size = status.st_size if status is not None and S_ISREG(status.st_mode) else None

    @property
    def position(self) -> int:
        """Bytes of the file that were read; 0 where ``size`` is None."""
        return 0 if self.size is None or self._raw is None else self._raw.tell()

    def __iter__(self) -> Iterator[Row | Unread]:
        """Yields every row that is not blank.

        Raises:
            ConfigurationError: The first row has not the columns that are wanted.
            ProblemError: There is no row.
            OSError: The file cannot be read on.
        """
        number, empty = 0, True
        try:
            for number, line in enumerate(self._lines, start=1):
                if line.strip():
                    empty = False
                    yield self._read(number, line)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            empty = False
            yield Unread(number + 1, f"damaged gzip data, nothing is read from here on: {error}")
        if empty:
            raise ProblemError(f"{self._name}: the file holds no row")

    def _read(self, number: int, line: bytes) -> Row | Unread:
        try:
            row = _parse(line)
            if self._recorded is None:
                self._look_at_first(row, f"{self._name}, row {number}")
            was_correct = _old_verdict(_look_up(row, self._columns.score))
            if self._recorded:
                return _recorded(number, line, was_correct)
            text = _text(_cell(row, self._columns.text), self._columns.text)
            gold = _gold(_cell(row, self._columns.gold), self._columns.gold)
        except (ProblemError, TrajectoryError) as error:
            return Unread(number, str(error))
        return Row(number, text, gold, was_correct)

    def _look_at_first(self, row: Mapping[str, Any], where: str) -> None:
        names = self._columns
        self._recorded = names.text is None and names.gold is None and "turns" in row and "format_version" in row
        for column in (names.text, names.gold, names.score):
            # Of a field that is missing, the object may be there in other rows.
            if column is not None and column not in row and column.partition(".")[0] not in row:
                raise ConfigurationError(f"{where}: no column {column!r} (columns: {_listed(row)})")
        if not self._recorded:
            gold = names.gold or _find(row, "gold", _GOLD_NAMES, where)
            self._columns = Columns(names.text or _find(row, "text", _TEXT_NAMES, where), gold, names.score)


@contextlib.contextmanager
def open_rows(file: Path, columns: Columns) -> Iterator[RowFile]:
    """Opens a file of rows: ``-`` is standard input, and what ends in ``.gz`` is uncompressed on the way.

    Raises:
        ConfigurationError: The file cannot be opened.
    """
    if str(file) == "-":
        yield RowFile(sys.stdin.buffer, "-", columns)
        return
    try:
        raw = file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    with raw:
        if file.suffix.lower() != ".gz":
            yield RowFile(raw, str(file), columns, raw)
            return
        with gzip.open(raw) as lines:
            yield RowFile(lines, str(file), columns, raw)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        # Decimal: a gold of 0.1 must stay 1/10.
        row = plain_strings(json.loads(line.decode("utf-8-sig"), parse_float=Decimal))
    except UnicodeDecodeError as error:
        raise ProblemError(f"not UTF-8 (byte {error.start + 1} of the row)") from error
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ProblemError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise ProblemError(f"a row must be a JSON object, got {type(row).__name__}")
    return row


def _find(row: Mapping[str, Any], kind: str, groups: Sequence[Sequence[str]], where: str) -> str:
    for group in groups:
        found = [column for column in row if column.lower() in group]
        if len(found) > 1:
            raise ConfigurationError(
                f"{where}: columns {found} could all be the {kind}; name it: --{kind}-column {found[0]}"
            )
        if found:
            return found[0]
    wanted = ", ".join(name for group in groups for name in group)
    raise ConfigurationError(
        f"{where}: no {kind} column (columns: {_listed(row)}; looked for {wanted}); name it: --{kind}-column ..."
    )


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "none"


_MISSING: Final = object()


def _look_up(row: Mapping[str, Any], column: str | None) -> Any:
    if column is None:
        return _MISSING
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _cell(row: Mapping[str, Any], column: str | None) -> Any:
    value = _look_up(row, column)
    if value is _MISSING:
        raise ProblemError(f"column {column!r} is missing (columns: {_listed(row)})")
    return value


def _text(value: Any, column: str | None) -> str:
    if isinstance(value, list):  # chat messages: what the assistant said last
        said = [message.get("content") for message in value if _is_assistant(message)]
        value = said[-1] if said else value
    if not isinstance(value, str):
        raise ProblemError(f"column {column!r}: what is graded must be text or chat messages, got {value!r:.80}")
    return value


def _is_assistant(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _gold(value: Any, column: str | None) -> str:
    if isinstance(value, Decimal):
        if abs(value.adjusted()) > _MAX_EXPONENT:
            raise ProblemError(f"column {column!r}: the number {value!s:.80} is out of range")
        value = format(value, "f")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ProblemError(f"column {column!r}: a gold answer must be text or a number, got {value!r:.80}")
    return str(value).strip()


def _old_verdict(value: Any) -> bool | None:
    """What an old score says; None where it is missing, null, NaN or no number."""
    if not isinstance(value, bool | int | float | Decimal) or value != value:
        return None
    return bool(value >= _LEAST_CORRECT)


def _recorded(number: int, line: bytes, was_correct: bool | None) -> Row | Unread:
    attempt = Trajectory.from_json(line)
    if attempt.ended is None:
        return Unread(number, "the attempt goes on", bad=False)
    # What the grader could not decide in time then has another chance now.
    if attempt.ended in FAULTS - {EndReason.GRADE_TIMEOUT}:
        return Unread(number, f"the attempt ended by a fault ({attempt.ended.value})", bad=False)
    last = attempt.turns[-1] if attempt.turns else None
    # As in an episode: a turn that was cut is never graded, nor is one with a call, whose output was not seen yet.
    stated = last is not None and last.finish == "stop" and last.action in ("answer", "ended")
    return Row(
        number, plain_text(last.kept) if last is not None and stated else "", attempt.problem.answer, was_correct
    )
