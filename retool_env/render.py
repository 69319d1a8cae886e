"""Showing an attempt: as plain text, on a terminal, as HTML.

All of its text is untrusted: ``clean`` takes out what could command a terminal or reorder what
is read, and HTML is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from retool_env.protocol.observation import clean
from retool_env.trajectory import Trajectory, TurnRecord

Block = tuple[str, str]
"""A heading and its text."""


def opening_blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields what is shown of the opening."""
    yield f"problem {trajectory.problem.id}", trajectory.prompt


def turn_blocks(number: int, turn: TurnRecord) -> Iterator[Block]:
    """Yields what is shown of a turn; numbers start at 1."""
    flag = ", invents tool output" if turn.fabricated else ""
    yield f"turn {number}: {turn.action}{flag}", turn.kept
    if turn.observation:
        yield "observation", turn.observation


def outcome_blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields what is shown of the end; nothing while the attempt goes on."""
    outcome = trajectory.outcome
    if outcome is not None:
        verdict = "correct" if outcome.correct else "not correct"
        parts = ", ".join(f"{name} {part:+.3g}" for name, part in outcome.breakdown.items())
        answer = "no answer" if outcome.answer is None else f"answer {outcome.answer}"
        yield (
            f"end: {outcome.ended}",
            f"{answer} (gold {trajectory.problem.answer}): {verdict}; reward {outcome.reward:.3g}"
            + (f" = {parts}" if parts else ""),
        )


def blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields all that is shown of an attempt, in order."""
    yield from opening_blocks(trajectory)
    for number, turn in enumerate(trajectory.turns, start=1):
        yield from turn_blocks(number, turn)
    yield from outcome_blocks(trajectory)


def as_text(trajectory: Trajectory) -> str:
    """Returns an attempt as plain text."""
    return "\n".join(f"--- {clean(heading)} ---\n{clean(text)}" for heading, text in blocks(trajectory)) + "\n"


def as_html(trajectory: Trajectory) -> str:
    """Returns an attempt as an HTML fragment; every text is escaped, and no script or style is used."""
    sections = (
        f"<section><h3>{html.escape(clean(heading))}</h3><pre>{html.escape(clean(text))}</pre></section>"
        for heading, text in blocks(trajectory)
    )
    return '<article class="retool-attempt">' + "".join(sections) + "</article>"


def print_blocks(shown: Iterator[Block]) -> None:
    """Prints blocks on the terminal with rich, which reads no markup in them."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    console = Console()
    for heading, text in shown:
        console.print(Rule(Text(clean(heading)), align="left"))
        console.print(Text(clean(text)))
