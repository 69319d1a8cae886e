"""What ``retool play`` does: a person writes the turns, the environment does the rest, and all of it is shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

from retool_env.cli_demo import place
from retool_env.env import ReToolEnv
from retool_env.errors import ConfigurationError
from retool_env.report.blocks import Block, came_of_it_blocks, opening_blocks, outcome_blocks, turn_blocks
from retool_env.report.terminal import print_blocks
from retool_env.report.visible import visible
from retool_env.trajectory import Trajectory, TurnRecord, write_jsonl

if TYPE_CHECKING:
    from rich.console import Console

    from retool_env.grading.presets import Preset
    from retool_env.problems import Problem
    from retool_env.protocol.base import Finish, InterpreterMode

_END: Final = "."
_PROMPT: Final = "> "
_GAVE_UP: Final[Finish] = "abort"


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """What the command line asked for.

    Attributes:
        n: Number of problems.
        seed: Of the built-in problems.
        problems: A file, or what else ``load_problems`` takes as text; None for the built-in problems.
        question_column: Column of the question in that file, or None to find it by its name.
        answer_column: Column of the gold answer in that file, or None to find it by its name.
        protocol: Name of the protocol.
        reward: Name of the reward table.
        interpreter: Whether the blocks of an attempt share one interpreter ("session") or not ("fresh").
        grader: Name of the grader's preset.
        tier: Name of the sandbox tier.
        timeout_s: Seconds a block of code may run.
        out: File for the trajectories, or None.
    """

    n: int
    seed: int
    problems: str | None
    question_column: str | None
    answer_column: str | None
    protocol: str
    reward: str
    interpreter: InterpreterMode
    grader: Preset
    tier: str
    timeout_s: float
    out: Path | None


def run(options: PlayOptions, console: Console, errors: Console) -> int:
    """Plays the problems, one after the other.

    Args:
        options: What to play.
        console: For all that belongs to the attempts.
        errors: For what is said while code runs.

    Returns:
        0, whatever the answers were.

    Raises:
        ConfigurationError: An option has a value that cannot work.
        ProblemError: The file of problems is not good.
        ReToolError: The sandbox tier cannot run here, or an optional package is missing.
        OSError: The trajectories could not be written.
        KeyboardInterrupt: The player pressed Ctrl-C. The sandbox is closed by then.
    """
    problems = _problems(options)
    env = ReToolEnv(
        problems,
        protocol=options.protocol,
        reward=options.reward,
        interpreter=options.interpreter,
        grader=options.grader,
        sandbox={"tier": options.tier, "timeout_s": options.timeout_s},
    )
    if sys.stdin is None:
        raise ConfigurationError("play: standard input is closed, and turns are read from there")
    with contextlib.closing(env), _line_editing(), _file(options.out) as out:
        lines = _lines()
        for index in range(min(options.n, len(problems))):
            trajectory = _play(env, index, lines, console, errors)
            if out is not None:
                write_jsonl(out, trajectory)
    return 0


def _play(env: ReToolEnv, index: int, lines: Iterator[str | None], console: Console, errors: Console) -> Trajectory:
    env.reset(options={"problem": index})
    print_blocks(opening_blocks(env.trajectory()), console)
    _explain(env, console)
    over = False
    while not over:
        number, limit = env.episode.turns + 1, env.config.max_turns
        console.print(Text(f"── your turn, {number} of {limit}; a line with only {_END} ends it", style="bold"))
        text, finish = _read_turn(lines)
        with errors.status("running"):
            _, _, terminated, truncated, _ = env.step(text, finish=finish)
        over = terminated or truncated
        print_blocks(_what_came_of_it(number, env.trajectory().turns[-1]), console)
    trajectory = env.trajectory()
    print_blocks(outcome_blocks(trajectory), console)
    return trajectory


def _explain(env: ReToolEnv, console: Console) -> None:
    stops = env.episode.stop
    lines = [
        f"You are the policy. Write a turn of several lines; a line with only a dot ({_END}) ends it.",
        "Ctrl-D gives up and shows the gold answer; Ctrl-C leaves.",
        "A turn with neither code nor an answer ends the attempt, as it would for a model.",
    ]
    if stops:
        lines.append(f"What you write past {' or '.join(stops)} is dropped.")
    console.print(Text(visible("\n".join(lines)), style="dim"), soft_wrap=True)


def _lines() -> Iterator[str | None]:
    """Yields what the player types, line by line, without an end; None for Ctrl-D, or the end of a file.

    A pasted text comes as one line, and may hold the lines of several turns.
    """
    while True:
        try:
            typed = input(_PROMPT if sys.stdin.isatty() else "")
            yield from typed.removesuffix("\n").split("\n")
        except EOFError:
            if sys.stdin.isatty():
                print()
            yield None


def _read_turn(lines: Iterator[str | None]) -> tuple[str, Finish]:
    """Returns what the player typed, and whether it is a turn or giving up."""
    turn: list[str] = []
    for line in lines:
        if line is None:
            break
        if line.rstrip("\r") == _END:
            return "\n".join(turn), "stop"
        turn.append(line[1:] if line.rstrip("\r") == 2 * _END else line)
    return "\n".join(turn), _GAVE_UP


def _what_came_of_it(number: int, turn: TurnRecord) -> Iterator[Block]:
    """What is shown of a turn to the one who wrote it: all but the text."""
    block = next(turn_blocks(number, turn))
    parts = tuple(part for part in block.parts if part.label and part.kind == "text")
    yield Block(block.kind, block.title, block.notes, parts, look=block.look)
    yield from came_of_it_blocks(turn)


def _problems(options: PlayOptions) -> Sequence[Problem]:
    if options.problems is None:
        from retool_env.problems import builtin_problems

        return builtin_problems(options.n, options.seed)
    from retool_env.problems import load_problems

    question, answer = options.question_column, options.answer_column
    return load_problems(options.problems, options.seed, limit=options.n, question=question, answer=answer)


@contextlib.contextmanager
def _file(out: Path | None) -> Iterator[Path | None]:
    """Makes the file for the trajectories; it is removed in the end if nothing came of it."""
    if out is None:
        yield None
        return
    place(out)
    try:
        yield out
    finally:
        with contextlib.suppress(OSError):  # whatever stands in the way is not worth hiding an error for
            if out.stat().st_size == 0:
                out.unlink()


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """Lets ``input`` edit lines and recall them, and take lines longer than the 4096 bytes of a bare terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 - its import is what input looks at
    yield
