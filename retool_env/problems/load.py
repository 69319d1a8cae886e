"""``load_problems``: a sequence of problems from whatever an environment's ``problems=`` option takes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from pydantic import ValidationError

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.plain import plain_text
from retool_env.problems.builtin import BuiltinProblems
from retool_env.problems.files import file_rows
from retool_env.problems.gold import gold_fault
from retool_env.problems.hub import hub_rows
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.presets import PRESETS, bare_question
from retool_env.problems.problem import Problem
from retool_env.problems.reasoning import ReasoningGym
from retool_env.problems.rows import OnBad, RowRules, check_limit, read_problems

ProblemSource = str | os.PathLike[str] | Sequence[Problem | Mapping[str, Any]] | None
"""What ``load_problems`` takes, and an environment's ``problems=`` with it."""

_TASK: Final = "reasoning-gym:"
_HUB: Final = "hf:"
_HUB_ID: Final = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_FORMATS: Final = frozenset(
    "arrow audiofolder cache conll csv eval fasta fastq generator genbank harbor hdf5 iceberg imagefolder json lance "
    "meshfolder mmcif niftifolder pandas parquet pdb pdffolder spark sql text tsfile videofolder vortex webdataset "
    "xml".split()
)
"""What ``datasets`` (5.2.0) takes for a format of files where the hub's id of a data set would stand."""

_FILE_NAME: Final = re.compile(r".*\.(?:jsonl?|parquet|csv|tsv|txt|gz|zst)", re.IGNORECASE)


def load_problems(
    spec: ProblemSource = None,
    seed: int = 0,
    *,
    limit: int | None = None,
    preset: str | None = None,
    question: str | None = None,
    answer: str | None = None,
    id: str | None = None,
    unique: bool | None = None,
    on_bad: OnBad | None = None,
    name: str | Sequence[str] | None = None,
    split: str | None = None,
    revision: str | None = None,
) -> Sequence[Problem]:
    """Returns the problems that ``spec`` stands for, their gold answers checked.

    | ``spec`` | problems |
    |---|---|
    | None, ``"builtin"`` | the built-in mix |
    | ``"reasoning-gym:leg_counting?size=500&max_animals=9"`` | a reasoning-gym task, as ``ReasoningGym`` makes it |
    | the path of a file | its rows: parquet if the name ends so, else JSONL |
    | the path of a folder | a data set's files, read as the hub's are |
    | ``"owner/name"``, ``"hf:owner/name?split=test"`` | a data set on the Hugging Face hub |
    | ``"dapo-math-17k"``, ``"aime-2024"``, ``"aime-2025"`` | that one, with its preset |
    | a sequence of ``Problem`` or of mappings | these; an ``id`` is made where it is missing |
    | ``BuiltinProblems``, ``ReasoningGym``, ``Mix``, a shard | itself |

    A string is a path before it is an id on the hub: a file or folder of that name wins.

    Args:
        spec: Where the problems come from.
        seed: Chooses the problems of the built-in mix and of a reasoning-gym task given as text.
        limit: Take only this many.
        preset: For rows: the name of the data set whose form they have (see ``PRESETS``).
        question: For rows: column of the question; found by its name if None.
        answer: For rows: column of the gold answer; found by its name if None.
        id: For rows: column of the id; by default it is made of the source's name and the row's number.
        unique: For rows: keep the first of several rows with the same question. Rows that ask the same and differ in
            the answer are bad rows: none of them is kept. By default only with a preset.
        on_bad: For rows: "raise" ``ProblemError`` at a row that gives no problem (the default, but for a preset that
            says otherwise), "skip" such rows with one ``ProblemWarning``, or a function that is called with each
            ``BadRow``, which is then skipped.
        name: For data sets: the configuration, or several, which are read one after the other.
        split: For data sets: the split; may be left out where there is only one.
        revision: For data sets: branch, tag or commit on the hub.

    Raises:
        ConfigurationError: The source is none of these, cannot be reached or is empty; an item is not a valid problem;
            an option has a value that cannot work, or is not for this kind of source.
        ProblemError: A row, or the gold answer of an item, is not good, or an id appears twice. Names the place.
        MissingDependencyError: An optional package is needed and not installed.
    """
    for_rows: dict[str, Any] = {
        "preset": preset, "question": question, "answer": answer, "id": id, "unique": unique, "on_bad": on_bad
    }  # fmt: skip
    for_sets: dict[str, Any] = {"name": name, "split": split, "revision": revision}
    for options in (for_rows, for_sets):
        for unused in [key for key, value in options.items() if value is None]:
            del options[unused]
    if isinstance(spec, str | os.PathLike) and spec != "builtin" and not str(spec).startswith(_TASK):
        return _from_rows(spec, limit, for_rows, for_sets)
    if for_rows or for_sets:
        names = ", ".join(for_rows | for_sets)
        raise ConfigurationError(f"{names}: for the rows of a file or a data set; these problems are {spec!r:.80}")
    check_limit(limit)
    problems = _not_rows(spec, seed)
    return problems if limit is None else problems[:limit]


def _from_rows(
    spec: str | os.PathLike[str], limit: int | None, for_rows: dict[str, Any], for_sets: dict[str, Any]
) -> list[Problem]:
    place, path = str(spec), Path(spec)
    if not place:
        raise ConfigurationError("problems: the source is an empty text; None stands for the built-in problems")
    try:
        is_local = path.exists() or not isinstance(spec, str)
    except OSError as error:  # too long, for example: the text of a problem, and not the name of a file
        raise ConfigurationError(f"problems: no such file: {place:.200}: {error.strerror}") from error
    if not is_local:
        place, said = _hub_id(place)
        for_rows = {key: value for key, value in said.items() if key == "preset"} | for_rows
        for_sets = {key: value for key, value in said.items() if key != "preset"} | for_sets
    preset = _preset(for_rows.pop("preset", None))
    rules = _rules(preset, limit, for_rows)
    if is_local and not path.is_dir():
        if for_sets:
            raise ConfigurationError(f"{', '.join(for_sets)}: for data sets of the hub, and {path} is a file")
        return read_problems(file_rows(path), place, preset or plain_text(path.stem), rules)
    name = for_sets.get("name")
    names = [name] if name is None or isinstance(name, str) else list(name)
    rows = hub_rows(place, names, for_sets.get("split"), for_sets.get("revision"))
    return read_problems(rows, place, preset or plain_text(path.name if is_local else place), rules)


def _not_rows(spec: object, seed: int) -> Sequence[Problem]:
    if spec is None or spec == "builtin":
        return BuiltinProblems(seed)
    if isinstance(spec, LazyProblems):
        return spec
    if isinstance(spec, str):
        return _task(spec, seed)
    if isinstance(spec, Sequence) and not isinstance(spec, bytes | bytearray):
        return _from_items(spec)
    raise ConfigurationError(
        'problems: takes "builtin", a path, the name of a data set or a sequence of problems, '
        f"got {type(spec).__name__}"
    )


def _hub_id(spec: str) -> tuple[str, dict[str, Any]]:
    """Reads "hf:owner/name?split=test" or a preset's name; returns the id, and the options that go with it."""
    if spec in PRESETS:
        return PRESETS[spec].repository, {"preset": spec, "split": PRESETS[spec].split}
    place, _, query = spec.removeprefix(_HUB).partition("?")
    is_id = _HUB_ID.fullmatch(place) is not None
    if spec.startswith(_HUB):
        if not is_id:
            raise ConfigurationError(f'problems: {spec:.200}: no id of the hub, which looks like "owner/name"')
        if place in _FORMATS:
            raise ConfigurationError(
                f"problems: {spec:.200}: {place} is a format of files and no data set; give the path of the file or "
                'folder, or the id of a data set, "owner/name"'
            )
    elif not is_id or "/" not in place or _FILE_NAME.fullmatch(place) is not None:
        raise ConfigurationError(
            f'problems: no such file: {spec:.200} (and it is no id of the hub, "owner/name", and none of '
            f"{', '.join(PRESETS)})"
        )
    options: dict[str, Any] = {}
    for key, value in _query(query, spec):
        if key not in ("name", "split", "revision", "preset"):
            raise ConfigurationError(f"problems: {spec}: unknown {key!r}; there are name, split, revision and preset")
        options[key] = [*options.get("name", []), value] if key == "name" else value
    return place, options


def _task(spec: str, seed: int) -> ReasoningGym:
    """Reads "reasoning-gym:leg_counting?size=500&max_animals=9"; values are JSON, or else text."""
    task, _, query = spec.removeprefix(_TASK).partition("?")
    options: dict[str, Any] = {"seed": seed}
    for key, value in _query(query, spec):
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    if "task" in options:
        raise ConfigurationError(f"problems: {spec}: the task is named before the '?'")
    for key in ("size", "seed"):
        if key in options and (isinstance(options[key], bool) or not isinstance(options[key], int)):
            raise ConfigurationError(f"problems: {spec}: {key} must be an integer, got {options[key]!r}")
    return ReasoningGym(task, **options)


def _query(query: str, spec: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigurationError(f"problems: {spec}: after the '?' come name=value pairs joined by '&'") from error


def _preset(name: str | None) -> str | None:
    if name is not None and name not in PRESETS:
        raise ConfigurationError(f"preset: {name!r} is not one of {', '.join(PRESETS)}")
    return name


def _rules(preset: str | None, limit: int | None, options: dict[str, Any]) -> RowRules:
    if preset is None:
        return RowRules(limit=limit, **options)
    known = PRESETS[preset]
    defaults = {"unique": True, "on_bad": known.on_bad, "bare": bare_question, "canonical": known.canonical}
    return RowRules(limit=limit, **(defaults | options))


def _from_items(items: Sequence[object]) -> list[Problem]:
    if not items:
        raise ConfigurationError("problems: the sequence is empty; give at least one problem")
    problems = [_read_item(item, number) for number, item in enumerate(items)]
    seen: dict[str, int] = {}
    for number, problem in enumerate(problems):
        first = seen.setdefault(problem.id, number)
        if first != number:
            raise ProblemError(
                f"problems[{number}], field 'id': the id {problem.id!r:.80} was already used by problems[{first}]"
            )
    return problems


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
    if (fault := gold_fault(item.answer)) is not None:
        raise ProblemError(f"{place}, field 'answer': {fault}")
    return item
