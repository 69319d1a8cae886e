"""Problems from JSONL files with any column names, and from what the ``problems=`` option of an environment takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.plain import plain_strings, plain_text
from retool_env.problems.builtin import BuiltinProblems
from retool_env.problems.problem import Problem

# In order of preference, compared without case. Names in one group are equally good: a file that has two of them is
# ambiguous. "solution" comes last because a file with an "answer" beside it keeps the worked solution there.
_QUESTION_NAMES: Final = (("question", "problem"), ("prompt", "query"), ("input", "instruction"))
_ANSWER_NAMES: Final = (
    ("answer", "gold", "gold_answer", "final_answer", "expected_answer", "ground_truth", "groundtruth"),
    ("target", "expected", "reference"),
    ("output", "label"),
    ("solution",),
)
_MAX_EXPONENT: Final = 400
"""Numbers written with a larger power of ten than this are refused: as exact text they would be endless."""


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
        question: Column of the question.
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
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit: must be at least 1 or None, got {limit}")
    if not file.is_file():
        raise ConfigurationError(f"problems: no such file: {file}")
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    stem = plain_text(file.stem)
    for number, line, row in _rows(file):
        where = f"{file}, row {number}"
        question = question or _find_column(row, "question", _QUESTION_NAMES, where)
        answer = answer or _find_column(row, "answer", _ANSWER_NAMES, where)
        name = f"{stem}-{number}" if id is None else _read_id(row, id, where)
        if name in seen:
            raise ProblemError(f"{where}, column {id!r}: the id {name!r} was already used in row {seen[name]}")
        seen[name] = number
        problems.append(
            Problem(
                id=name,
                question=_read_question(row, question, where),
                answer=_read_gold(row, answer, line, where),
                source=stem,
                metadata={key: value for key, value in row.items() if key not in (question, answer, id)},
            )
        )
        if len(problems) == limit:
            break
    if not problems:
        column = f" (columns wanted: {question or 'a question'}, {answer or 'an answer'})"
        raise ProblemError(f"{file}, row 1: the file holds no problem{column}")
    return problems


def load_problems(
    spec: str | os.PathLike[str] | Sequence[Problem | Mapping[str, Any]] | None = None, seed: int = 0
) -> Sequence[Problem]:
    """Turns what an environment's ``problems=`` option takes into a sequence of problems.

    Args:
        spec: None or ``"builtin"`` for the built-in mix, the path of a JSONL file, or a sequence of ``Problem`` or of
            mappings with their fields (an ``id`` is made where it is missing).
        seed: Chooses the built-in sequence; not used otherwise.

    Raises:
        ConfigurationError: The option is none of these, or an empty sequence, or an item is not a valid problem.
        ProblemError: A file, or the gold answer of an item, is not good, or an id appears twice. Names the place.
        MissingDependencyError: The built-in mix is asked for and reasoning-gym is not installed.
    """
    if spec is None or spec == "builtin":
        return BuiltinProblems(seed)
    if isinstance(spec, BuiltinProblems):
        return spec
    if isinstance(spec, str | os.PathLike):
        return load_jsonl(spec)
    if not isinstance(spec, Sequence) or isinstance(spec, bytes | bytearray):
        raise ConfigurationError(
            f'problems: takes "builtin", the path of a JSONL file or a sequence of problems, got {type(spec).__name__}'
        )
    if not spec:
        raise ConfigurationError("problems: the sequence is empty; give at least one problem")
    problems = [_read_item(item, number) for number, item in enumerate(spec)]
    seen: dict[str, int] = {}
    for number, problem in enumerate(problems):
        first = seen.setdefault(problem.id, number)
        if first != number:
            raise ProblemError(
                f"problems[{number}], field 'id': the id {problem.id!r:.80} was already used by problems[{first}]"
            )
    return problems


def _rows(file: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields the line number, the text and the object of every row."""
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            where = f"{file}, row {number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise ProblemError(f"{where}: not UTF-8 (byte {error.start + 1} of the row)") from error
            if not line:
                continue
            try:
                row = _parse(line)
            except (ValueError, RecursionError) as error:
                raise ProblemError(f"{where}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ProblemError(f"{where}: a row must be a JSON object with columns, got {type(row).__name__}")
            yield number, line, row


def _parse(line: str, parse_float: Callable[[str], Any] = float) -> Any:
    return plain_strings(json.loads(line, parse_constant=_refuse_constant, parse_float=parse_float))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _find_column(row: Mapping[str, Any], kind: str, groups: Sequence[Sequence[str]], where: str) -> str:
    for group in groups:
        found = [column for column in row if column.lower() in group]
        if len(found) > 1:
            raise ProblemError(f"{where}: columns {found} could all be the {kind}; {_say_which(kind, found[0])}")
        if found:
            return found[0]
    columns = ", ".join(map(repr, row)) or "none"
    wanted = ", ".join(name for group in groups for name in group)
    raise ProblemError(f"{where}: no {kind} column (columns: {columns}; looked for {wanted}); {_say_which(kind)}")


def _say_which(kind: str, column: str = "...") -> str:
    """The way out where a column is not found, in a program, in an environment and on the command line."""
    name = repr(column) if column != "..." else column
    return (
        f"name it: load_jsonl(path, {kind}={name}), whose result is what an environment's problems= takes "
        f"(retool demo: --{kind}-column {name})"
    )


def _cell(row: Mapping[str, Any], column: str, where: str) -> Any:
    if column not in row:
        raise ProblemError(f"{where}: column {column!r} is missing (columns: {', '.join(map(repr, row)) or 'none'})")
    return row[column]


def _read_id(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _cell(row, column, where)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ProblemError(f"{where}, column {column!r}: an id must be text or an integer, got {value!r:.80}")
    return str(value)


def _read_question(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _cell(row, column, where)
    if not isinstance(value, str) or not value.strip():
        raise ProblemError(f"{where}, column {column!r}: a question must be text, got {value!r:.80}")
    return value


def _read_gold(row: Mapping[str, Any], column: str, line: str, where: str) -> str:
    value = _cell(row, column, where)
    place = f"{where}, column {column!r}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ProblemError(f"{place}: a gold answer must be text or a number, got {value!r:.80}")
    if isinstance(value, float):
        # Read again without rounding: 0.1 must stay 1/10.
        written = _parse(line, parse_float=str)[column]
        exact: Decimal | None
        try:
            exact = Decimal(written)
        except ArithmeticError:  # an exponent that no Decimal can have
            exact = None
        if exact is None or abs(exact.adjusted()) > _MAX_EXPONENT:
            raise ProblemError(f"{place}: the number {written:.80} is out of range")
        value = format(exact, "f")
    text = str(value).strip()
    _check_gold(text, place)
    return text


def _check_gold(gold: str, place: str) -> None:
    from retool_env.grading import check_gold

    try:
        check_gold(gold)
    except ValueError as error:
        raise ProblemError(f"{place}: the gold answer {gold!r:.80} cannot be parsed: {error}") from error


def _read_item(item: object, number: int) -> Problem:
    place = f"problems[{number}]"
    if not isinstance(item, Problem):
        if not isinstance(item, Mapping):
            raise ConfigurationError(f"{place}: must be a Problem or a mapping, got {type(item).__name__}")
        try:
            item = Problem.model_validate({"id": f"problem-{number}", **item})
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"{place}: field {field!r}: {first['msg'].removeprefix('Value error, ')}"
            ) from error
    _check_gold(item.answer, f"{place}, field 'answer'")
    return item
