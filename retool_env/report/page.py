"""Many attempts as one HTML page that needs nothing else: no network, no second file, no library.

The page trusts no text. All of it is escaped when the page is written (``retool_env.report.visible``), JSON in it has
no ``<``, and its Content-Security-Policy lets one script and one sheet be used, by their hashes, and loads nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from retool_env.errors import ConfigurationError
from retool_env.report.attempts import Attempt
from retool_env.report.blocks import blocks, counted, seconds
from retool_env.report.fragment import block_html
from retool_env.report.head import asset, page_head
from retool_env.report.visible import excerpt, visible_html

BEGIN: Final = "<!doctype html>\n<!-- written by retool view -->\n"
"""What every page begins with: such a file may be written over, any other may not."""

_PART_ROWS: Final = 50
"""Rows of one part of the list, which is laid out as a whole when it comes near: see ``viewer.css``."""

_ID_CHARS: Final = 200
_EXCERPT_CHARS: Final = 300


def write_page(
    path: str | os.PathLike[str], title: str, attempts: Iterable[Attempt], skipped: Callable[[], int] = lambda: 0
) -> None:
    """Writes a page. It appears when it is whole; until then, and after any error, what was there stays.

    Args:
        path: The file. One that is there is replaced only if it is such a page, too.
        title: Heading of the page.
        attempts: Taken one at a time.
        skipped: Says in the end how many lines could not be read.

    Raises:
        ConfigurationError: There is another file, or no file can be made there.
        OSError: The page cannot be written (a full disk, for example).
    """
    path = Path(path)
    _check_free(path)
    # In a container every run may have the same process id: a file that a killed one left must not be in the way.
    part = path.with_name(f".retool-view-{secrets.token_hex(8)}.part")
    try:
        stream = part.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}; choose another file") from error
    try:
        with stream:
            stream.writelines(page(title, attempts, skipped))
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def page(title: str, attempts: Iterable[Attempt], skipped: Callable[[], int] = lambda: 0) -> Iterator[str]:
    """Yields a page piece by piece; the arguments are those of ``write_page``."""
    script = asset("viewer.js")
    yield page_head(BEGIN, title, asset("palette.css", "viewer.css"), script)
    yield f"""<body>
<header>
<h1>{visible_html(title)}</h1>
<form id="filters" role="search">
<input type="search" id="search" name="search" placeholder="Search questions, answers and turns" \
aria-label="Search questions, answers and turns" autocomplete="off">
<select name="verdict" aria-label="Outcome"><option value="">every outcome</option></select>
<select name="ended" aria-label="End reason"><option value="">every end</option></select>
<label><input type="checkbox" name="tool"> tool used</label>
<label><input type="checkbox" name="timeout"> timed out</label>
<button type="reset">Clear</button>
<output id="count"></output>
</form>
<p class="keys"><kbd>/</kbd> search, <kbd>j</kbd> next, <kbd>k</kbd> previous, <kbd>Esc</kbd> clears the search</p>
</header>
<nav aria-label="Attempts">
<noscript><p>Without JavaScript there is only this list.</p></noscript>
<div id="attempts">
"""
    started = False
    for position, attempt in enumerate(attempts):
        if position % _PART_ROWS == 0:
            yield "</ol>\n<ol>\n" if started else "<ol>\n"
            started = True
        yield _row(attempt)
    yield "</ol>\n</div>\n" if started else "</div>\n"
    if number := skipped():
        yield f"<p>{counted(number, 'line')} of the file could not be read.</p>\n"
    yield f'</nav>\n<main id="attempt" aria-label="Attempt" tabindex="-1"></main>\n<script>{script}</script>\n'
    yield "</body>\n</html>\n"


def _row(attempt: Attempt) -> str:
    trajectory = attempt.trajectory
    name, question = trajectory.problem.id, trajectory.problem.question
    facts = [] if attempt.reward is None else [f"reward {attempt.reward:.3g}"]
    facts += [counted(len(trajectory.turns), "turn"), counted(attempt.tool_calls, "call"), seconds(attempt.elapsed_s)]
    ended = str(attempt.ended or "goes on")
    timed_out = ' · <span class="timed-out">timed out</span>' if attempt.timed_out else ""
    return (
        f'<li data-number="{attempt.number}" data-verdict="{attempt.verdict}" data-ended="{ended}"'
        f' data-tool="{_yes(attempt.tool_calls > 0)}" data-timeout="{_yes(attempt.timed_out)}">'
        f'<a href="#{attempt.number}"><span class="number">{attempt.number}</span>'
        f' <span class="verdict {attempt.verdict}">{attempt.verdict}</span>'
        f' <span class="id">{visible_html(excerpt(name, _ID_CHARS))}</span>'
        f' <span class="facts">{" · ".join((ended, *facts))}{timed_out}</span>'
        f' <span class="excerpt">{visible_html(excerpt(question, _EXCERPT_CHARS))}</span></a>'
        f'<script type="application/json">{_data(attempt)}</script></li>\n'
    )


def _data(attempt: Attempt) -> str:
    """What the page shows of an attempt once it is looked at, as JSON that can stand in a script element."""
    trajectory = attempt.trajectory
    shown = [*blocks(trajectory)]
    data = {
        "question": visible_html(trajectory.problem.question),
        "opening": "".join(block_html(block) for block in shown if block.kind == "problem"),
        "rest": "".join(block_html(block) for block in shown if block.kind != "problem"),
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _check_free(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(f"--html {path} is a folder; name a file in it")
    try:
        if not path.exists():
            return
        if not path.is_file():  # to read from a pipe or a terminal would wait for a writer
            raise ConfigurationError(f"--html {path} is not a file; choose another")
        with path.open("rb") as stream:
            ours = stream.read(len(BEGIN)) == BEGIN.encode()
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}; choose another file") from error
    if not ours:
        raise ConfigurationError(f"--html {path} exists and is no page of retool view; choose another file")
