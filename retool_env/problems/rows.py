"""Problems from rows, wherever the rows come from: read, checked, freed of repeats, and the bad ones dealt with."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.plain import plain_json
from retool_env.problems.columns import (
    ANSWER_NAMES,
    QUESTION_NAMES,
    CellError,
    Row,
    find_column,
    read_gold,
    read_id,
    read_question,
)
from retool_env.problems.gold import gold_fault
from retool_env.problems.problem import Problem

_N_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that gives no problem. Its ``str`` says everything.

    Attributes:
        origin: The file or data set.
        number: The row's number, from 1; of a JSONL file the line's.
        column: The column at fault, or None.
        reason: What is wrong with it.
    """

    origin: str
    number: int
    column: str | None
    reason: str

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.origin}, row {self.number}{column}: {self.reason}"


OnBad = Literal["raise", "skip"] | Callable[[BadRow], object]
"""A bad row raises ``ProblemError``; is skipped, with one ``ProblemWarning`` for all; or is skipped and handed over."""


class ProblemWarning(UserWarning):
    """Rows of a file or a data set were left out: the message says how many, and what is wrong with the first ones."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """How rows become problems.

    Attributes:
        question: Column of the question; found by its name if None.
        answer: Column of the gold answer; found by its name if None.
        id: Column of the id; an id is made of the source and the row's number if None.
        limit: Read no more than this many problems.
        on_bad: What to do about a bad row.
        unique: Keep the first of several rows with the same question.
        bare: Applied to the text of a question.
        canonical: Applied to the text of a gold; raises ``ValueError`` for one that cannot be right.
    """

    question: str | None = None
    answer: str | None = None
    id: str | None = None
    limit: int | None = None
    on_bad: OnBad = "raise"
    unique: bool = False
    bare: Callable[[str], str] | None = None
    canonical: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)
        if self.on_bad not in ("raise", "skip") and not callable(self.on_bad):
            raise ConfigurationError(f'on_bad: must be "raise", "skip" or a function, got {self.on_bad!r}')


def check_limit(limit: int | None) -> None:
    """Raises ``ConfigurationError`` for a limit that cannot work."""
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit: must be at least 1 or None, got {limit}")


def read_problems(rows: Iterable[Row | BadRow], origin: str, source: str, rules: RowRules) -> list[Problem]:
    """Reads problems from rows, one row at a time.

    Args:
        rows: The rows; a row that could not even be read is a ``BadRow``.
        origin: What messages call the place they come from.
        source: What problems call it.
        rules: How rows become problems.

    Raises:
        ProblemError: There is no problem, the columns are not found, or a row is bad and ``rules`` say to raise.
    """
    reader = _Reader(origin, source, rules)
    for row in rows:
        reader.take(row)
        if len(reader.problems) == rules.limit:
            break
    return reader.finish()


@dataclass(slots=True)
class _First:
    """The first row that asked a question."""

    number: int
    gold: str
    refuted: bool = False


@dataclass(slots=True)
class _Reader:
    origin: str
    source: str
    rules: RowRules
    problems: dict[bytes | int, Problem] = field(default_factory=dict)
    _question: str | None = None
    _answer: str | None = None
    _ids: dict[str, int] = field(default_factory=dict)
    _firsts: dict[bytes, _First] = field(default_factory=dict)
    _shown: list[BadRow] = field(default_factory=list)
    _n_bad: int = 0

    def take(self, row: Row | BadRow) -> None:
        if isinstance(row, BadRow):
            self._reject(row)
            return
        if self._answer is None:
            where = f"{self.origin}, row {row.number}"
            rules = self.rules
            self._question = rules.question or find_column(row.values, "question", QUESTION_NAMES, where)
            self._answer = rules.answer or find_column(row.values, "answer", ANSWER_NAMES, where)
        try:
            self._add(row)
        except CellError as error:
            self._reject(BadRow(self.origin, row.number, error.column, error.reason))

    def finish(self) -> list[Problem]:
        if not self.problems:
            if self._shown:
                raise ProblemError(f"{self.origin}: none of the rows is good; the first: {self._shown[0]}")
            wanted = f"{self.rules.question or 'a question'}, {self.rules.answer or 'an answer'}"
            raise ProblemError(f"{self.origin}, row 1: the file holds no problem (columns wanted: {wanted})")
        if self._n_bad and self.rules.on_bad == "skip":
            told = "; ".join(map(str, self._shown))
            warnings.warn(f"{self._n_bad} bad rows were left out: {told}", ProblemWarning, stacklevel=5)
        return list(self.problems.values())

    def _add(self, row: Row) -> None:
        assert self._question is not None
        assert self._answer is not None
        question = read_question(row, self._question)
        if self.rules.bare is not None:
            question = self.rules.bare(question)
        key: bytes | int = row.number
        if self.rules.unique:
            key = hashlib.blake2b(question.encode(), digest_size=16).digest()
            if (first := self._firsts.get(key)) is not None:
                self._compare(key, first, row, self._answer)
                return
        gold = self._gold(row, self._answer)
        name = self._name(row)
        used = {
            column if column in row.values else column.partition(".")[0]
            for column in (self._question, self._answer, self.rules.id)
            if column is not None
        }
        metadata = {column: value for column, value in row.values.items() if column not in used}
        self.problems[key] = Problem(
            id=name,
            question=question,
            answer=gold,
            source=self.source,
            metadata=metadata if row.line is not None else plain_json(metadata),
        )
        self._ids[name] = row.number
        if isinstance(key, bytes):
            self._firsts[key] = _First(row.number, gold)

    def _compare(self, key: bytes, first: _First, row: Row, column: str) -> None:
        """Checks that a repeated question has the same answer; if not, neither is worth anything."""
        text = read_gold(row, column)
        if text == first.gold or first.refuted:
            return
        gold = self._gold(row, column)
        if gold == first.gold:
            return
        from retool_env.grading import grade_answer

        if grade_answer(gold, first.gold).correct:
            return
        first.refuted = True
        del self.problems[key]
        raise CellError(
            f"row {first.number} asks the same, and its answer is {first.gold!r:.80}, not {gold!r:.80}", column
        )

    def _gold(self, row: Row, column: str) -> str:
        gold = read_gold(row, column)
        if self.rules.canonical is not None:
            try:
                gold = self.rules.canonical(gold)
            except ValueError as error:
                raise CellError(str(error), column) from error
        if (fault := gold_fault(gold)) is not None:
            raise CellError(fault, column)
        return gold

    def _name(self, row: Row) -> str:
        if self.rules.id is None:
            return f"{self.source}-{row.number}"
        name = read_id(row, self.rules.id)
        if name in self._ids:
            raise CellError(f"the id {name!r} was already used in row {self._ids[name]}", self.rules.id)
        return name

    def _reject(self, bad: BadRow) -> None:
        if self.rules.on_bad == "raise":
            raise ProblemError(str(bad))
        self._n_bad += 1
        if len(self._shown) < _N_SHOWN:
            self._shown.append(bad)
        if callable(self.rules.on_bad):
            self.rules.on_bad(bad)
