"""An attempt as an HTML fragment: escaped, without script or style, one ``<details>`` for each block."""

from __future__ import annotations

from collections.abc import Iterable

from retool_env.report.blocks import Block, Part
from retool_env.report.highlight import pieces
from retool_env.report.visible import visible_html


def fragment(blocks: Iterable[Block]) -> str:
    """Returns blocks as HTML. Its classes are styled by the page's sheet; without one it reads well, too."""
    return '<article class="retool-attempt">' + "".join(map(block_html, blocks)) + "</article>"


def block_html(block: Block) -> str:
    """Returns a block as HTML."""
    notes = "".join(f' <span class="note">{visible_html(note)}</span>' for note in block.notes)
    head = f"<h3>{visible_html(block.title)}</h3>{notes}"
    body = _facts(block) + "".join(map(_part, block.parts))
    names = f"block {block.kind} {block.look}"
    if not body:
        return f'<div class="{names}">{head}</div>'
    return f'<details open class="{names}"><summary>{head}</summary>{body}</details>'


def _facts(block: Block) -> str:
    rows = "".join(f"<dt>{visible_html(name)}</dt><dd>{visible_html(value)}</dd>" for name, value in block.facts)
    return f"<dl>{rows}</dl>" if rows else ""


def _part(part: Part) -> str:
    """A part without the empty lines around it. HTML's parsers drop a newline right after the tag: it is for them."""
    label = f"<p>{visible_html(part.label)}:</p>" if part.label else ""
    if part.kind == "code":
        return f'{label}<pre class="code">\n{"".join(_piece(*piece) for piece in pieces(part.text))}</pre>'
    text = part.text.strip("\n")
    return f"{label}<pre>\n{visible_html(text)}</pre>" if text else ""


def _piece(kind: str, text: str) -> str:
    return f'<span class="{kind}">{visible_html(text)}</span>' if kind else visible_html(text)
