"""What ``retool view`` does between the command line and the report: read, filter, list or show, write a page."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from rich.text import Text

from retool_env.errors import ConfigurationError
from retool_env.protocol.base import EndReason
from retool_env.report.attempts import Attempt, Damaged, Filter, read_attempts
from retool_env.report.blocks import blocks, counted
from retool_env.report.terminal import LOOKS, print_blocks
from retool_env.report.visible import excerpt, visible

if TYPE_CHECKING:
    from rich.console import Console

    from retool_env.report.blocks import Look, Verdict

_MAX_BAD_SHOWN: Final = 10
_ID_CHARS: Final = 200
_QUESTION_CHARS: Final = 60
_LOOKS: Final[dict[Verdict, Look]] = {"correct": "good", "wrong": "bad", "fault": "warn", "unfinished": "neutral"}


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What the command line asked for.

    Attributes:
        file: The trajectories; ``-`` for standard input.
        wanted: Which attempts.
        html: File for a page, or None to show the attempts in the terminal.
    """

    file: Path
    wanted: Filter
    html: Path | None


@dataclass(slots=True)
class Tally:
    """What was found on the way.

    Attributes:
        attempts: Attempts in the file, as far as it was read.
        shown: Those that were wanted.
        bad: Lines that could not be read.
        verdicts: How those that were wanted came out.
    """

    attempts: int = 0
    shown: int = 0
    bad: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Returns the tally in a line."""
        parts = [f"{self.shown} of {counted(self.attempts, 'attempt')}"]
        parts += [f"{self.verdicts[verdict]} {verdict}" for verdict in _LOOKS if self.verdicts[verdict]]
        if self.bad:
            parts.append(f"{counted(self.bad, 'line')} could not be read")
        return ", ".join(parts)


def run(options: ViewOptions, console: Console, errors: Console) -> int:
    """Lists attempts, shows those that were asked for by number or problem in full, or writes a page.

    Args:
        options: What to show.
        console: For the attempts.
        errors: For messages.

    Returns:
        0, or 1 if a line could not be read.

    Raises:
        ConfigurationError: The file cannot be opened, there is no such attempt, or the page cannot be put there.
        OSError: The file could not be read on, or the page not be written.
    """
    tally = Tally()
    with _opened(options.file) as stream, contextlib.closing(_wanted(stream, options, tally, errors)) as attempts:
        if options.html is not None:
            from retool_env.report.page import write_page

            name = "standard input" if options.file == Path("-") else options.file.name
            write_page(options.html, name, attempts, skipped=lambda: tally.bad)
        else:
            in_full = options.wanted.number is not None or options.wanted.problem is not None
            for attempt in attempts:
                console.print(_row(attempt), soft_wrap=True)
                if in_full:
                    print_blocks(blocks(attempt.trajectory), console)
    _check_found(options, tally)
    if options.html is not None:
        console.print(Text.assemble(("page  ", "bold"), visible(str(options.html))), soft_wrap=True)
    errors.print(Text(tally.line(), style="dim"), soft_wrap=True)
    return 1 if tally.bad else 0


def end_reason(name: str) -> EndReason:
    """Returns the end reason with that name.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return EndReason(name)
    except ValueError:
        raise ConfigurationError(f"--ended: must be one of {', '.join(EndReason)}, got {name!r}") from None


def _wanted(stream: BinaryIO, options: ViewOptions, tally: Tally, errors: Console) -> Generator[Attempt]:
    for found in read_attempts(stream, last=options.wanted.number):
        if isinstance(found, Damaged):
            tally.bad += 1
            _complain(found, tally.bad, errors)
            continue
        tally.attempts += 1
        if options.wanted.matches(found):
            tally.shown += 1
            tally.verdicts[found.verdict] += 1
            yield found


def _row(attempt: Attempt) -> Text:
    trajectory = attempt.trajectory
    reward = "" if attempt.reward is None else f"{attempt.reward:+.3g}"
    row = Text(f"{attempt.number:>5}  ")
    row.append(f"{attempt.verdict:<10}", LOOKS[_LOOKS[attempt.verdict]])
    row.append(f" {reward:>6}  {counted(len(trajectory.turns), 'turn'):<8}  {counted(attempt.tool_calls, 'call'):<8}  ")
    row.append(f"{attempt.ended or 'goes on':<14}")
    row.append("  timed out" if attempt.timed_out else "           ", "yellow")
    row.append(f"  {visible(excerpt(trajectory.problem.id, _ID_CHARS))}", "bold")
    row.append(f"  {visible(excerpt(trajectory.problem.question, _QUESTION_CHARS))}", "dim")
    return row


def _complain(line: Damaged, number: int, errors: Console) -> None:
    if number <= _MAX_BAD_SHOWN:
        errors.print(Text(f"skipped: {visible(line.reason)}", style="red"), soft_wrap=True)
    elif number == _MAX_BAD_SHOWN + 1:
        errors.print(Text("more lines cannot be read; their number is said at the end", style="red"), soft_wrap=True)


def _check_found(options: ViewOptions, tally: Tally) -> None:
    """An attempt that is named and is not there is a mistake; a filter that nothing meets is an answer."""
    wanted = options.wanted
    if tally.shown or (wanted.number is None and wanted.problem is None):
        return
    named = f"on line {wanted.number}" if wanted.number is not None else f"at problem {wanted.problem!r}"
    if wanted.number is not None and wanted.problem is not None:
        named += f" at problem {wanted.problem!r}"
    raise ConfigurationError(
        f"{options.file}: there is no attempt {named} that meets all the options; "
        "without -n and --problem, retool view lists the attempts with their lines and problems"
    )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file == Path("-"):
        if sys.stdin is None:
            raise ConfigurationError("-: standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    with stream:
        yield stream
