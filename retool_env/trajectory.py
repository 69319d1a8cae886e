"""What is recorded of an attempt: ``Trajectory``, one JSON line out and back.

The format is versioned (``format_version``). A reader refuses versions it does not know; fields are only ever added
with a new version. A record of an older version is read as one of the current version: what it lacks has its default.

| version | what it added |
|---|---|
| 1 | |
| 2 | ``rules.interpreter``; ``queue_s``, ``code_chars`` and ``restarted`` of an execution |
| 3 | ``rules.grader``, ``rules.grade_limit_s``, ``rules.on_grade_timeout``; the end ``grade_timeout`` |
| 4 | ``sample`` |
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from retool_env.errors import ConfigurationError, DamagedTrajectoryError, TrajectoryError
from retool_env.grading.presets import Preset
from retool_env.grading.symbolic import LIMIT_S
from retool_env.plain import plain_json, plain_text
from retool_env.problems.problem import Problem
from retool_env.protocol.base import EndReason, Finish, InterpreterMode
from retool_env.sandbox.api import ExecutionStatus

FORMAT_VERSION: Final = 4
_READABLE: Final = (1, 2, 3, 4)


def _valid(value: object) -> object:
    return plain_text(value) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_valid)]
"""Text without surrogates, which UTF-8 cannot hold: pairs are joined, lone ones become U+FFFD."""

_Json = Annotated[Any, BeforeValidator(plain_json)]
"""What JSON can hold; anything else becomes its text."""

_Name = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=0, le=2**48)]
"""A number of things. No more than arithmetic with floats can tell from one more or half of one more."""

_Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RulesRecord(_Record):
    """The rules of the attempt: ``EpisodeConfig``, with the tools and a custom reward by name only."""

    protocol: _Name
    reward: _Name
    max_turns: int
    max_tool_calls: int
    max_action_chars: int
    max_observation_chars: int
    on_no_action: Literal["end", "feedback"]
    max_no_action: int
    require_box: bool
    timeout_s: float
    memory_mb: int
    tools: tuple[_Text, ...]
    prompt_template: _Text | None
    special_tokens: tuple[_Text, ...]
    interpreter: InterpreterMode = "fresh"
    grader: Preset = "default"
    grade_limit_s: float = LIMIT_S
    on_grade_timeout: Literal["wrong", "fault"] = "wrong"


class CallRecord(_Record):
    """A tool call the policy made."""

    name: _Name
    arguments: _Json


class ExecutionRecord(_Record):
    """What came of a ``code_interpreter`` call: an ``ExecutionResult``, before it was shortened for the policy.

    Attributes:
        restarted: The call ended the interpreter that the attempt's calls share: what was defined in it is gone.

    The other fields are those of ``ExecutionResult``. Version 1 of the format had no ``queue_s`` and ``code_chars``:
    they are 0 there.
    """

    kind: Literal["execution"] = "execution"
    status: ExecutionStatus
    stdout: _Text
    stderr: _Text
    error_class: _Text
    exit_code: int | None
    wall_s: _Seconds
    cpu_s: _Seconds
    truncated: bool
    queue_s: _Seconds = 0.0
    code_chars: _Count = 0
    restarted: bool = False


class ToolRecord(_Record):
    """What came of a call of a user's tool."""

    kind: Literal["tool"] = "tool"
    text: _Text
    is_error: bool


class GradeRecord(_Record):
    """What the grader (``rules.grader``) said about the answer.

    Attributes:
        correct: It is the gold answer.
        method: The layer that decided.
        reason: Why, in a few words.
        timed_out: It could not be compared within the limits; ``rules.on_grade_timeout`` says what that meant.
        elapsed_s: Seconds of the grading.
    """

    correct: bool
    method: _Text
    reason: _Text
    timed_out: bool
    elapsed_s: _Seconds


class TurnRecord(_Record):
    """One turn: what the policy wrote and what came of it.

    Attributes:
        text: The turn as it was given, surrogates apart.
        finish: How generation stopped, as it was given.
        stop_reason: What the engine named as the reason, as it was given; None if it was not a text.
        action: What the turn was taken for.
        kept: What belongs to the turn: the text without what the policy wrote past it, and with the stop string.
        fabricated: The policy invented an observation.
        message: What was wrong with the turn; empty unless ``action`` is ``"feedback"``.
        calls: The calls it made, where they were allowed to run.
        results: What came of them. Fewer than the calls if the sandbox failed on the way.
        retries: Executions that were tried again because the sandbox failed.
        grade: The grade of the answer, where there was one to grade.
        observation: What was shown to the policy for the turn; empty at the end.
        elapsed_s: Seconds from getting the turn to having its observation or outcome.
    """

    text: _Text
    finish: Finish
    stop_reason: _Text | None
    action: Literal["run_code", "answer", "feedback", "ended"]
    kept: _Text
    fabricated: bool
    message: _Text = ""
    calls: tuple[CallRecord, ...] = ()
    results: tuple[Annotated[ExecutionRecord | ToolRecord, Field(discriminator="kind")], ...] = ()
    retries: _Count = 0
    grade: GradeRecord | None = None
    observation: _Text = ""
    elapsed_s: _Seconds = 0.0


class OutcomeRecord(_Record):
    """How the attempt came out; the fields are those of ``Outcome``."""

    reward: _Finite
    correct: bool
    answer: _Text | None
    tool_calls: _Count
    interpreter_calls: _Count
    turns: _Count
    ended: EndReason
    fabricated: bool
    breakdown: dict[_Text, _Finite]


class SampleRecord(_Record):
    """Which attempt of a run this is, and what the run knows of it beside the text.

    Attributes:
        id: Names the attempt in the run, and its line in ``tokens.jsonl``: ``"17/3"`` is sample 3 of problem 17.
        problem_number: Number of the problem in the run's problems, from 0.
        sample: Number of the attempt among those at its problem, from 0.
        seed: Given to the engine.
        n_prompt: Tokens of the prompt.
        n_sampled: Tokens the policy sampled.
        n_appended: Tokens after the prompt that it was shown.
        resumes: Turns that were lost and generated again.
        generate_s: Seconds spent waiting for the engine.
        work_s: Seconds spent running code and grading.
        fault: What failed, in words; empty if nothing did.
    """

    id: _Name
    problem_number: _Count
    sample: _Count
    seed: int
    n_prompt: _Count = 0
    n_sampled: _Count = 0
    n_appended: _Count = 0
    resumes: _Count = 0
    generate_s: _Seconds = 0.0
    work_s: _Seconds = 0.0
    fault: _Text = ""


def _plain_problem(value: object) -> object:
    return plain_json(dict(value) if isinstance(value, Problem) else value)


class Trajectory(_Record):
    """An attempt, complete enough to be shown, counted, replayed or turned into training data.

    Attributes:
        format_version: Version of this format.
        package_version: Version of retool_env that recorded it.
        problem: The problem, gold answer included.
        rules: The rules of the attempt.
        sandbox_tier: Tier that ran the code; None if no code ran.
        opening: The chat messages that opened the attempt.
        prompt: The opening as plain text.
        turns: The turns, in order.
        outcome: How it came out; None while it goes on.
        sample: Which attempt of a run it is; None outside a run.
    """

    format_version: Literal[4] = FORMAT_VERSION
    package_version: str
    problem: Annotated[Problem, BeforeValidator(_plain_problem)]
    rules: RulesRecord
    sandbox_tier: str | None
    opening: tuple[Annotated[dict[str, Any], BeforeValidator(plain_json)], ...]
    prompt: _Text
    turns: tuple[TurnRecord, ...] = ()
    outcome: OutcomeRecord | None = None
    sample: SampleRecord | None = None

    @property
    def ended(self) -> EndReason | None:
        """Why the attempt ended, or None while it goes on."""
        return None if self.outcome is None else self.outcome.ended

    @property
    def text(self) -> str:
        """What the policy saw and wrote, as one text: the prompt, then kept text and observation of each turn."""
        return self.prompt + "".join(turn.kept + turn.observation for turn in self.turns)

    def to_json(self) -> str:
        """Returns the attempt as one line of JSON, without the line's end."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str | bytes, *, where: str = "trajectory") -> Trajectory:
        """Reads one line of JSON.

        Args:
            line: The line.
            where: Names the place in the message of an error.

        Raises:
            DamagedTrajectoryError: The line is damaged.
            TrajectoryError: Its format version is not known.
        """
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamagedTrajectoryError(f"{where}: damaged: not valid JSON: {error}") from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if version is None:
            raise DamagedTrajectoryError(f"{where}: not a trajectory: there is no format_version")
        if type(version) is not int or version not in _READABLE:
            readable = f"{', '.join(map(str, _READABLE[:-1]))} and {_READABLE[-1]}"
            raise TrajectoryError(
                f"{where}: unknown format_version {version!r:.80}; this release reads {readable}; "
                "read the file with the release that wrote it, or a later one"
            )
        try:
            return cls.model_validate({**data, "format_version": FORMAT_VERSION})
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise DamagedTrajectoryError(f"{where}: damaged: field {field!r}: {first['msg']}") from error


def write_jsonl(path: str | os.PathLike[str], trajectories: Trajectory | Iterable[Trajectory]) -> None:
    """Appends trajectories to a file, one a line; makes the file where there is none.

    Several processes may append to one file: each call locks it and writes whole lines, all of them or none. If the
    file ends in the middle of a line (a writer was killed), that line is closed first, so that only it is lost.

    Raises:
        OSError: The file cannot be written. It is then as it was before.
    """
    import fcntl  # POSIX only, and needed only here

    if isinstance(trajectories, Trajectory):
        trajectories = [trajectories]
    lines = "".join(trajectory.to_json() + "\n" for trajectory in trajectories).encode()
    # Without a buffer, which would try again to write what is left in it when the file is closed.
    with Path(path).open("a+b", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        length = stream.seek(0, os.SEEK_END)
        if length > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                lines = b"\n" + lines
        try:
            _write_all(stream, lines)
        except BaseException:
            with contextlib.suppress(OSError):
                stream.truncate(length)
            raise


def read_jsonl(path: str | os.PathLike[str], on_damaged: Literal["raise", "skip"] = "raise") -> Iterator[Trajectory]:
    """Yields the trajectories of a file, in order; blank lines are skipped.

    Args:
        path: The file.
        on_damaged: What to do at a line that is damaged or has an unknown format version: ``"raise"``, or ``"skip"`` it
            with a ``UserWarning`` for each such line.

    Raises:
        TrajectoryError: There is such a line. Names the file and the line, from 1.
        ConfigurationError: ``on_damaged`` is not one of the two words.
        OSError: The file cannot be read.
    """
    if on_damaged not in ("raise", "skip"):
        raise ConfigurationError(f"on_damaged: must be 'raise' or 'skip', got {on_damaged!r}")
    return _read(Path(path), skip=on_damaged == "skip")


def _read(path: Path, skip: bool) -> Iterator[Trajectory]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                trajectory = Trajectory.from_json(line, where=f"{path}, line {number}")
            except TrajectoryError as error:
                if not skip:
                    raise
                warnings.warn(f"skipped: {error}", stacklevel=2)
            else:
                yield trajectory


def _write_all(stream: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]
