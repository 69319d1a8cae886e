"""An attempt as plain text and on a terminal. rich reads no markup in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from retool_env.report.blocks import Block, Look
from retool_env.report.highlight import Kind, pieces
from retool_env.report.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LOOKS: Final[dict[Look, str]] = {"neutral": "bold", "good": "bold green", "bad": "bold red", "warn": "bold yellow"}

_CODE: Final[dict[Kind, str]] = {
    "": "",
    "keyword": "magenta",
    "builtin": "cyan",
    "name": "blue",
    "string": "green",
    "number": "yellow",
    "operator": "",
    "comment": "dim",
    "error": "red",
}


def plain(blocks: Iterable[Block]) -> str:
    """Returns blocks as text without any control character but tab and newline."""
    return "".join(f"--- {_heading(block)} ---\n" + "".join(f"{line}\n" for line in _lines(block)) for block in blocks)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Prints blocks with colours, where the console has them; lines are not cut."""
    from rich.text import Text

    for block in blocks:
        heading = Text.assemble(("── ", "dim"), (visible(block.title), LOOKS[block.look]))
        for note in block.notes:
            heading.append(f" · {visible(note)}", "dim")
        console.print(heading, soft_wrap=True)
        for name, value in block.facts:
            console.print(Text(_fact(name, value)), soft_wrap=True)
        body = Text()
        for part in block.parts:
            if part.label:
                _on_a_new_line(body).append(f"{visible(part.label)}:\n", "dim italic")
            if part.kind == "code":
                for kind, text in pieces(part.text):
                    body.append(visible(text), _CODE[kind])
            else:
                body.append(visible(part.text if body else part.text.lstrip("\n")))
        if block.parts:
            body.rstrip()
            console.print(body, soft_wrap=True)


def _heading(block: Block) -> str:
    return " · ".join(map(visible, (block.title, *block.notes)))


def _lines(block: Block) -> Iterator[str]:
    yield from (_fact(name, value) for name, value in block.facts)
    text = ""
    for part in block.parts:
        if part.label:
            text += ("" if not text or text.endswith("\n") else "\n") + f"{visible(part.label)}:\n"
        text += visible(part.text)
    if block.parts:
        yield text.strip("\n").rstrip()


def _fact(name: str, value: str) -> str:
    return f"{visible(name):<8} {visible(value)}"


def _on_a_new_line(text: Text) -> Text:
    return text if not text.plain or text.plain.endswith("\n") else text.append("\n")
