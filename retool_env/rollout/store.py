"""``RunFolder``: a run's files, written so that a run can be killed at any moment and continued.

| file | what it holds |
|---|---|
| ``config.json`` | what was ``asked`` for (who continues the run must ask for the same), and ``how`` it was run |
| ``tokens.jsonl`` | the tokens of each attempt, one line each, begun with its ``id`` |
| ``trajectories.jsonl`` | the attempts, one ``Trajectory`` a line, with that id as ``sample.id`` |

An attempt is done when both its lines are there and no fault has ended it. Its tokens are written first, so whatever is
in ``trajectories.jsonl`` is whole; both files have their attempts in the same order. A folder that is opened again is
tidied: what is left of lines that were being written, tokens without a trajectory, and attempts that ended in a fault
are taken out, to be made again. So are damaged lines, by whatever came to them; these, and what is taken out with them,
are kept in ``trajectories.jsonl.damaged`` and ``tokens.jsonl.damaged``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Final, Self

from pydantic_core import to_json

from retool_env._version import __version__
from retool_env.errors import ConfigurationError, DamagedTrajectoryError, TrajectoryError
from retool_env.outcome import FAULTS
from retool_env.plain import plain_text
from retool_env.problems.problem import Problem
from retool_env.rollout.attempt import AttemptResult
from retool_env.trajectory import Trajectory

TRAJECTORIES: Final = "trajectories.jsonl"
TOKENS: Final = "tokens.jsonl"
CONFIG: Final = "config.json"
ASIDE: Final = ".damaged"
"""What the name of a file ends in that damaged lines are set aside in."""

_LOCK: Final = ".lock"
_FORMAT: Final = 1
_ID: Final = re.compile(rb'\{"id":"(\d+/\d+)"')
_MAX_DIFFERENCES_SHOWN: Final = 10


@dataclass(slots=True)
class Found:
    """What a folder held when it was opened.

    Attributes:
        attempts: Attempts that are done.
        correct: Those that are right.
        faults: Attempts that ended in a fault, to be made again.
        unfinished: Attempts of which only a part was there, to be made again.
        damaged: Lines that were set aside, whose attempts are to be made again: the file, the line, what is wrong.
    """

    attempts: int = 0
    correct: int = 0
    faults: int = 0
    unfinished: int = 0
    damaged: list[str] = field(default_factory=list)


class RunFolder:
    """The folder of one run, open for one process. A context manager.

    Attributes:
        path: Where.
        found: What was there.
    """

    def __init__(
        self,
        path: Path,
        problems: Sequence[Problem],
        asked: Mapping[str, Any],
        how: Mapping[str, Any] | None = None,
    ):
        """Opens a new folder, or one to be continued; its attempts are read once.

        Args:
            path: Where.
            problems: The run's problems, in order.
            asked: All that decides what the attempts are, as JSON values by name.
            how: What does not: noted, not compared.

        Raises:
            ConfigurationError: The folder cannot be written, another process writes to it, it holds something else than
                a run, or a run that asked for something else (the message says what differs).
            TrajectoryError: An attempt in it was written by a later release.
            OSError: It cannot be tidied, for example because the disk is full.
        """
        self.path = path
        self.found = Found()
        self._done: dict[int, int] = {}
        self._problems = problems
        with contextlib.ExitStack() as stack:
            stack.enter_context(_lock(path))
            self._check_config(asked, how or {})
            self._tidy()
            try:
                self._tokens = stack.enter_context((path / TOKENS).open("ab", buffering=0))
                self._trajectories = stack.enter_context((path / TRAJECTORIES).open("ab", buffering=0))
            except OSError as error:
                raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the folder."""
        self._stack.close()

    def is_done(self, problem_number: int, sample: int) -> bool:
        """Whether the attempt is done."""
        return bool(self._done.get(problem_number, 0) >> sample & 1)

    def add(self, record: Trajectory, result: AttemptResult | None) -> None:
        """Writes an attempt: all of it or, if that fails, nothing.

        Args:
            record: The attempt, with its ``sample``.
            result: Its tokens; None if it came to none.

        Raises:
            OSError: It cannot be written; the message names the file.
        """
        assert record.sample is not None
        _append(self._tokens, _token_line(record.sample.id, result))
        _append(self._trajectories, record.to_json().encode() + b"\n")

    def _check_config(self, asked: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        file = self.path / CONFIG
        try:
            before = json.loads(file.read_bytes())
        except FileNotFoundError:
            others = sorted(set(os.listdir(self.path)) - {_LOCK, _part(file).name})
            if others:
                raise ConfigurationError(
                    f"{self.path}: holds {others[0]!r:.100} and no {CONFIG}, so it is no run to be continued; "
                    "choose another folder"
                ) from None
            content = {"retool_run": _FORMAT, "package_version": __version__, "asked": asked, "how": how}
            _replace(file, [json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"])
            return
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file}: cannot be read: {error}") from error
        if not isinstance(before, dict) or before.get("retool_run") != _FORMAT:
            raise ConfigurationError(f"{file}: is not of a run that this release can continue; choose another folder")
        differences = list(_differences(before.get("asked"), json.loads(json.dumps(asked))))
        if differences:
            shown = "; ".join(differences[:_MAX_DIFFERENCES_SHOWN])
            raise ConfigurationError(
                f"{self.path}: holds a run that asked for something else: {shown}; "
                "ask for the same to continue it, or choose another folder"
            )

    def _tidy(self) -> None:
        """Finds out what is done, and takes out what is to be made again."""
        tokens, trajectories = self.path / TOKENS, self.path / TRAJECTORIES
        for file in (tokens, trajectories):
            _part(file).unlink(missing_ok=True)
        with_tokens = set(map(_id_of, _whole_lines(tokens)))
        found = self.found
        lost = [
            number
            for number, line in enumerate(_whole_lines(trajectories), start=1)
            if not self._take(line, number, with_tokens)
        ]
        seen: set[str] = set()
        lost_tokens = []
        for number, line in enumerate(_whole_lines(tokens), start=1):
            id = _id_of(line)
            if not id or id in seen:
                found.damaged.append(f"{TOKENS}, line {number}: {f'attempt {id} is there twice' if id else 'cut off'}")
            if not id or id in seen or not self.is_done(*map(int, id.split("/"))):
                lost_tokens.append(number)
            seen.add(id)
        if found.damaged:
            _set_aside(trajectories, lost)
            _set_aside(tokens, lost_tokens)
        for file, numbers in ((trajectories, lost), (tokens, lost_tokens)):
            if numbers or _is_torn(file):
                _replace(file, _without(file, numbers))

    def _take(self, line: bytes, number: int, with_tokens: set[str]) -> bool:
        """Notes that an attempt is done, if it is."""
        found = self.found
        try:
            record = Trajectory.from_json(line, where=f"{TRAJECTORIES}, line {number}")
        except DamagedTrajectoryError as error:
            found.damaged.append(str(error))
            return False
        except TrajectoryError as error:
            raise TrajectoryError(f"{self.path}: {error}") from error
        sample = record.sample
        if sample is None:
            found.damaged.append(f"{TRAJECTORIES}, line {number}: the attempt is not one of a run")
            return False
        if record.outcome is None or record.outcome.ended in FAULTS:
            found.faults += 1
            return False
        if sample.id not in with_tokens:
            found.unfinished += 1
            return False
        problem_number = sample.problem_number
        if problem_number >= len(self._problems) or _asks(record.problem) != _asks(self._problems[problem_number]):
            raise ConfigurationError(
                f"{self.path}: holds a run over other problems: number {problem_number} was {record.problem.id!r:.80}; "
                "give the same ones to continue it, or choose another folder"
            )
        if self.is_done(problem_number, sample.sample):
            found.damaged.append(f"{TRAJECTORIES}, line {number}: attempt {sample.id} is there twice")
            return False
        self._done[problem_number] = self._done.get(problem_number, 0) | 1 << sample.sample
        found.attempts += 1
        found.correct += record.outcome.correct
        return True


def _asks(problem: Problem) -> list[str]:
    return [plain_text(text) for text in (problem.id, problem.question, problem.answer)]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Keeps every other process from the folder, which is made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        stream = (path / _LOCK).open("ab")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}; choose another folder") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"{path}: another run writes to this folder; wait for its end") from None
        yield


def _token_line(id: str, result: AttemptResult | None) -> bytes:
    line: dict[str, Any] = {"id": id}
    if result is not None:
        tokens = result.tokens
        line |= {
            "prompt_ids": tokens.prompt_ids,
            "response_ids": tokens.response_ids,
            "response_mask": result.response_mask,
            "response_logprobs": tokens.response_logprobs,
            "has_logprobs": tokens.has_logprobs,
            "exact": tokens.exact,
            "dropped": tokens.dropped,
            "template_drift": tokens.template_drift,
        }
    return to_json(line) + b"\n"


def _append(stream: FileIO, data: bytes) -> None:
    length = stream.seek(0, os.SEEK_END)
    left = memoryview(data)
    try:
        while left:
            left = left[stream.write(left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            stream.truncate(length)
        raise OSError(error.errno, error.strerror, stream.name) from error


def _whole_lines(file: Path) -> Iterator[bytes]:
    """Yields the lines that have an end."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield line


def _id_of(line: bytes) -> str:
    """Returns the attempt that a line of tokens is of; empty if the line is damaged."""
    found = _ID.match(line)
    return found[1].decode() if found is not None and line.endswith(b"}\n") else ""


def _is_torn(file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            return stream.read() != b"\n"
    return False


def _set_aside(file: Path, numbers: Sequence[int]) -> None:
    """Appends lines of a file (numbered from 1) to the file of those that are set aside."""
    if numbers:
        wanted = set(numbers)
        with file.with_name(file.name + ASIDE).open("ab") as stream:
            stream.writelines(line for number, line in enumerate(_whole_lines(file), start=1) if number in wanted)


def _without(file: Path, numbers: Sequence[int]) -> Iterator[bytes]:
    unwanted = set(numbers)
    return (line for number, line in enumerate(_whole_lines(file), start=1) if number not in unwanted)


def _replace(file: Path, pieces: Iterator[bytes] | list[bytes]) -> None:
    """Writes a file anew; the old one stays until the new one is whole."""
    part = _part(file)
    try:
        with part.open("wb") as stream:
            stream.writelines(pieces)
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(part)) from error


def _part(file: Path) -> Path:
    return file.with_name(file.name + ".part")


def _differences(before: object, now: object, name: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield f"{name} was {json.dumps(before):.80} and is {json.dumps(now):.80}"
