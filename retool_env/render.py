"""What ``ReToolEnv.render`` shows: the same blocks as ``retool view``, as plain text, on a terminal, as HTML.

All of their text is untrusted: what could command a terminal or reorder what is read is named
(``retool_env.report.visible``), and HTML is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable

from retool_env.report.blocks import Block, blocks, opening_blocks, outcome_blocks, turn_blocks
from retool_env.report.fragment import fragment
from retool_env.report.terminal import plain
from retool_env.trajectory import Trajectory

__all__ = ["as_html", "as_text", "opening_blocks", "outcome_blocks", "print_blocks", "turn_blocks"]


def as_text(trajectory: Trajectory) -> str:
    """Returns an attempt as plain text."""
    return plain(blocks(trajectory))


def as_html(trajectory: Trajectory) -> str:
    """Returns an attempt as an HTML fragment; every text is escaped, and no script or style is used."""
    return fragment(blocks(trajectory))


def print_blocks(shown: Iterable[Block]) -> None:
    """Prints blocks on the terminal; what its encoding lacks as escapes."""
    from rich.console import Console

    from retool_env.report import terminal

    console = Console()
    with console.capture() as printed:
        terminal.print_blocks(shown, console)
    # Not the console's own writing: it raises where a terminal is not UTF-8, and no text of a policy's may raise.
    encoding = console.encoding
    console.file.write(printed.get().encode(encoding, "backslashreplace").decode(encoding))
    console.file.flush()
