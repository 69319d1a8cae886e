"""What ``retool data`` does: problems and demonstrations into the files that trainers read.

The rows are the trainers' own: each adapter has a module ``rows`` with ``rl_row``, ``sft_row`` and ``OWN_LOOPS``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from retool_env.cold_start import demonstration_messages, read_demonstrations
from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError
from retool_env.problems import Problem, load_problems
from retool_env.problems.export import write_rows
from retool_env.problems.rows import BadRow
from retool_env.protocol.observation import clean

if TYPE_CHECKING:
    from rich.console import Console

TRAINERS: Final = {"verl": "retool_verl.rows", "openrlhf": "retool_openrlhf.rows"}
"""The modules that hold the trainers' rows, by the trainers' names."""

OUR_LOOP: Final = "retool"

_MAX_BAD_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class RlOptions:
    """What ``retool data rl`` was asked for.

    Attributes:
        trainer: A key of ``TRAINERS``.
        problems: Where the problems come from, as for ``load_problems``.
        out: The new file.
        split: What the rows say of themselves.
        loop: ``"retool"``: the bare question, around which the adapter's loop says what is needed. Another name of
            ``OWN_LOOPS``: the whole prompt, for the trainer's own loop.
        load: Further options of ``load_problems``.
        stated: What the whole prompt states: options of ``EpisodeConfig``, without the protocol.
    """

    trainer: str
    problems: str
    out: Path
    split: str
    loop: str
    load: dict[str, Any]
    stated: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SftOptions:
    """What ``retool data sft`` was asked for.

    Attributes:
        trainer: A key of ``TRAINERS``.
        source: Where the demonstrations come from, as for ``read_demonstrations``.
        out: The new file.
        limit: Read only so many rows; None for all.
        rules: Protocol, limits and template of the conversations.
    """

    trainer: str
    source: str
    out: Path
    limit: int | None
    rules: EpisodeConfig


def write_rl(options: RlOptions, console: Console) -> int:
    """Writes problems for reinforcement learning and says how many; returns the exit code, 0.

    Raises:
        ConfigurationError, ProblemError, MissingDependencyError: As ``load_problems`` and ``write_rows``.
    """
    rows = _rows_of(options.trainer)
    loops = (OUR_LOOP, *rows.OWN_LOOPS)
    if options.loop not in loops:
        raise ConfigurationError(f"--loop: must be one of {', '.join(loops)}, got {options.loop!r}")
    rules = EpisodeConfig(protocol=rows.OWN_LOOPS.get(options.loop, "code_tags"), **options.stated)
    problems = load_problems(options.problems, **options.load)

    def prompt(problem: Problem) -> list[dict[str, Any]] | None:
        return None if options.loop == OUR_LOOP else Episode(problem, rules).messages()

    made = (rows.rl_row(problem, n, options.split, prompt(problem)) for n, problem in enumerate(problems))
    n = write_rows(options.out, made)
    console.print(Text(f"{n} problems in {options.out}"), soft_wrap=True)
    return 0


def write_sft(options: SftOptions, console: Console, errors: Console) -> int:
    """Writes demonstrations for supervised training, and says how many and which were left out.

    Returns:
        The exit code: 0, or 1 if rows were left out.

    Raises:
        ConfigurationError, ProblemError, MissingDependencyError: As ``read_demonstrations`` and ``write_rows``.
    """
    rows = _rows_of(options.trainer)
    tools = options.rules.registry().schemas() if options.rules.protocol == "tool_calls" else []
    bad: list[BadRow] = []

    def made() -> Iterator[dict[str, Any]]:
        for shown in read_demonstrations(options.source, options.limit):
            if isinstance(shown, BadRow):
                bad.append(shown)
            else:
                yield rows.sft_row(demonstration_messages(shown, options.rules), tools)

    try:
        n = write_rows(options.out, made())
    finally:
        for row in bad[:_MAX_BAD_SHOWN]:
            errors.print(Text(clean(str(row)), style="red"), soft_wrap=True)
    left_out = f"; rows left out: {len(bad)}" if bad else ""
    console.print(Text(f"{n} demonstrations in {options.out}{left_out}"), soft_wrap=True)
    return 1 if bad else 0


def _rows_of(trainer: str) -> Any:
    if trainer not in TRAINERS:
        raise ConfigurationError(f"--for: must be one of {', '.join(TRAINERS)}, got {trainer!r}")
    return importlib.import_module(TRAINERS[trainer])
