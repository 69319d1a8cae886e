"""The columns of a row: which holds the question and which the gold answer, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from retool_env.errors import ProblemError
from retool_env.plain import plain_strings

# In order of preference, compared without case. Names in one group are equally good: a file that has two of them is
# ambiguous. "solution" comes last because a file with an "answer" beside it keeps the worked solution there.
QUESTION_NAMES: Final = (("question", "problem"), ("prompt", "query"), ("input", "instruction"))
ANSWER_NAMES: Final = (
    ("answer", "gold", "gold_answer", "final_answer", "expected_answer", "ground_truth", "groundtruth"),
    ("target", "expected", "reference"),
    ("output", "label"),
    ("reward_model.ground_truth",),  # verl's rows
    ("solution",),
)
_MAX_EXPONENT: Final = 400
"""Numbers written with a larger power of ten than this are refused: as exact text they would be endless."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was read.

    Attributes:
        number: Its number in the source, from 1; of a JSONL file the line's.
        values: Its columns.
        line: The JSON text it was read from, or None if it was not.
    """

    number: int
    values: dict[str, Any]
    line: str | None = None


class CellError(Exception):
    """The data's fault: a row, or a cell of it, cannot be used. Holds the reason and the column, if it is one's."""

    def __init__(self, reason: str, column: str | None = None):
        super().__init__(reason)
        self.reason = reason
        self.column = column


def find_column(row: Mapping[str, Any], kind: str, groups: Sequence[Sequence[str]], where: str) -> str:
    """Returns the name of the column of this kind, "question" or "answer". One inside another is written with a dot.

    Raises:
        ProblemError: There is none, or more than one that is as good.
    """
    names = list(_names(row))
    for group in groups:
        found = [name for name in names if name.lower() in group]
        if len(found) > 1:
            raise ProblemError(f"{where}: columns {found} could all be the {kind}; {_say_which(kind, found[0])}")
        if found:
            return found[0]
    wanted = ", ".join(name for group in groups for name in group)
    raise ProblemError(f"{where}: no {kind} column (columns: {_listed(row)}; looked for {wanted}); {_say_which(kind)}")


def read_id(row: Row, column: str) -> str:
    """Returns the id in this column, which is text or an integer; else raises ``CellError``, as the next two do."""
    value = _cell(row, column)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise CellError(f"an id must be text or an integer, got {value!r:.80}", column)
    return str(value)


def read_question(row: Row, column: str) -> str:
    """Returns the question in this column: its text, or the user's turn of a list of chat messages."""
    value = _cell(row, column)
    text = _user_turn(value) if isinstance(value, list) else value
    if not isinstance(text, str) or not text.strip():
        raise CellError(f"a question must be text or chat messages with one user turn, got {value!r:.80}", column)
    return text


def read_gold(row: Row, column: str) -> str:
    """Returns the gold answer in this column as text; a number is written out exactly. It is not checked."""
    value = _cell(row, column)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise CellError(f"a gold answer must be text or a number, got {value!r:.80}", column)
    if isinstance(value, str | int):
        return str(value).strip()
    # A JSON number is read again without rounding: 0.1 must stay 1/10.
    written = str(value) if row.line is None else str(_cell(Row(row.number, parse_json(row.line, str)), column))
    exact: Decimal | None
    try:
        exact = Decimal(written)
    except ArithmeticError:  # an exponent that no Decimal can have
        exact = None
    if exact is None or not exact.is_finite() or abs(exact.adjusted()) > _MAX_EXPONENT:
        raise CellError(f"the number {written:.80} is out of range", column)
    return format(exact, "f")


def parse_json(line: str, parse_float: Callable[[str], Any] = float) -> Any:
    """Returns the value of a line of JSON, with all its text made valid.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    return plain_strings(json.loads(line, parse_constant=_refuse_constant, parse_float=parse_float))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)


def _cell(row: Row, column: str) -> Any:
    if column in row.values:
        return row.values[column]
    outer, dot, inner = column.partition(".")
    holder = row.values.get(outer)
    if dot and isinstance(holder, Mapping) and inner in holder:
        return holder[inner]
    raise CellError(f"column {column!r} is missing (columns: {_listed(row.values)})")


def _user_turn(messages: list[Any]) -> Any:
    """Returns what the user says, if that is all the conversation holds beside a system prompt; else None."""
    turns = [message for message in messages if isinstance(message, Mapping) and message.get("role") != "system"]
    if len(turns) == 1 and turns[0].get("role") == "user":
        return turns[0].get("content")
    return None


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "none"


def _say_which(kind: str, column: str = "...") -> str:
    """The way out where a column is not found, in a program, in an environment and on the command line."""
    name = repr(column) if column != "..." else column
    return (
        f"name it: load_problems(source, {kind}={name}), whose result is what an environment's problems= takes "
        f"(retool demo: --{kind}-column {name})"
    )
