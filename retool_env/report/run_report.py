"""``write_report``: the report of a run folder.

| file | who writes it | what it is |
|---|---|---|
| ``trajectories.jsonl`` | the run | the attempts, one ``Trajectory`` a line: all that the figures are taken from |
| ``config.json`` | the run | what was asked for; shown as it is |
| ``metrics.json`` | the report | the figures (``RunMetrics.to_dict``), and ``run``: figures of the run itself |
| ``report.html`` | the report | the figures as tables and pictures |
| ``attempts.html`` | the report | attempts to browse, as ``retool view --html`` makes it: all of them, or a sample |
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from retool_env.errors import ConfigurationError, TrajectoryError
from retool_env.plain import plain_json
from retool_env.report.attempts import Attempt, describe
from retool_env.report.compare import Comparison, compare
from retool_env.report.facts import AttemptFacts, facts_of
from retool_env.report.figures import RunMetrics, notes, plain
from retool_env.report.metrics import measure
from retool_env.report.page import BEGIN as ATTEMPTS_BEGIN
from retool_env.report.page import write_page
from retool_env.report.run_page import BEGIN, run_page
from retool_env.report.visible import visible_html
from retool_env.trajectory import Trajectory

TRAJECTORIES: Final = "trajectories.jsonl"
CONFIG: Final = "config.json"
METRICS: Final = "metrics.json"
PAGE: Final = "report.html"
ATTEMPTS: Final = "attempts.html"

_METRICS_BEGIN: Final = '{\n "retool_metrics":'
_MAX_LISTED: Final = 200
_MAX_LISTED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written.

    Attributes:
        metrics: The figures.
        comparison: With another run, where one was given.
        folder: Where its files are.
        listed: Attempts in ``attempts.html``.
    """

    metrics: RunMetrics
    comparison: Comparison | None
    folder: Path
    listed: int


def write_report(
    folder: Path,
    *,
    run: Mapping[str, Any] | None = None,
    trajectories: Path | None = None,
    n_bootstrap: int = 2000,
    seed: int = 0,
    against: Path | None = None,
) -> Report:
    """Writes the report of a run into its folder. Each file appears when it is whole, in place of an older one.

    Lines that cannot be read (a torn last line, for example) are passed over and counted. Memory does not grow with the
    length of the attempts.

    Args:
        folder: The run's folder. It may be in use: what is there is taken.
        run: Figures of the run itself, which attempts do not tell, such as tokens a second: JSON values by name, shown
            and kept as they are. None keeps those of an older ``metrics.json``.
        trajectories: The attempts; None for those of the folder.
        n_bootstrap: As for ``measure``.
        seed: As for ``measure``.
        against: Attempts of another run to compare with: its folder, or a file.

    Raises:
        ConfigurationError: There are no attempts to read, or a file stands in the way that is no older report.
        OSError: The attempts cannot be read on, or the report not be written.
    """
    source = folder / TRAJECTORIES if trajectories is None else trajectories
    title = source.resolve().parent.name if source.name == TRAJECTORIES else source.name
    _check_free(folder / METRICS, _METRICS_BEGIN)
    _check_free(folder / PAGE, BEGIN)
    _check_free(folder / ATTEMPTS, ATTEMPTS_BEGIN)
    if run is None:
        run = _json(folder / METRICS).get("run")
    run = plain_json(run) if isinstance(run, Mapping) else {}
    metrics = _measured(source, n_bootstrap, seed)
    comparison = None
    if against is not None:
        other = against / TRAJECTORIES if against.is_dir() else against
        comparison = compare(metrics, _measured(other, 0, seed))
    content = {**metrics.to_dict(), "against": plain(comparison), "run": run}
    replace(folder / METRICS, [json.dumps(content, indent=1, allow_nan=False), "\n"])
    step = -(-metrics.attempts // _MAX_LISTED) or 1
    listed: list[int] = []
    with _opened(source) as stream:
        write_page(folder / ATTEMPTS, f"attempts of {title}", _sample(stream, step, listed))
    page = run_page(
        title,
        metrics,
        run=run,
        config=_json(source.parent / CONFIG),
        attempts=_where(len(listed), metrics.attempts, source.name),
        comparison=comparison,
    )
    replace(folder / PAGE, page)
    return Report(metrics, comparison, folder, len(listed))


def replace(path: Path, pieces: Iterable[str]) -> None:
    """Writes a file; what was there stays until it is whole, and after any error.

    Raises:
        OSError: It cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(pieces)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _measured(source: Path, n_bootstrap: int, seed: int) -> RunMetrics:
    lines = _Lines()
    with _opened(source) as stream:
        metrics = measure(lines.facts(stream), n_bootstrap=n_bootstrap, seed=seed)
    metrics = dataclasses.replace(metrics, unread=lines.unread)
    return dataclasses.replace(metrics, notes=notes(metrics))


class _Lines:
    def __init__(self) -> None:
        self.unread = 0

    def facts(self, stream: BinaryIO) -> Iterator[AttemptFacts]:
        for line in stream:
            if not line.strip():
                continue
            try:
                trajectory = Trajectory.from_json(line)
            except TrajectoryError:
                self.unread += 1
            else:
                yield facts_of(trajectory)


def _sample(stream: BinaryIO, step: int, listed: list[int]) -> Iterator[Attempt]:
    """Yields every ``step``-th attempt, as long as the page stays of a size that a browser can hold."""
    size = n = 0
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        wanted = n % step == 0
        n += 1
        if not wanted or size + len(line) > _MAX_LISTED_BYTES:
            continue
        with contextlib.suppress(TrajectoryError):
            attempt = describe(number, Trajectory.from_json(line))
            size += len(line)
            listed.append(number)
            yield attempt


def _where(listed: int, attempts: int, file: str) -> str:
    """HTML that says where the attempts are to be seen."""
    if not attempts:
        return ""
    if listed >= attempts:
        return f'<p class="soft"><a href="{ATTEMPTS}">All attempts</a>, turn by turn.</p>\n'
    name = visible_html(file)
    return (
        f'<p class="soft"><a href="{ATTEMPTS}">A sample of {listed} of the {attempts} attempts</a>, turn by turn; '
        f"for the others, <code>retool view {name} --wrong --html wrong.html</code> or "
        f"<code>retool view {name} -n LINE</code>.</p>\n"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a run's folder or a file of trajectories") from error
    with stream:
        yield stream


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            return value
    return {}


def _check_free(path: Path, begin: str) -> None:
    """Raises ConfigurationError if something stands there that is not of a report."""
    try:
        with path.open("rb") as stream:
            ours = stream.read(len(begin)) == begin.encode()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; the report would be written there") from error
    if not ours:
        raise ConfigurationError(f"{path} exists and is not of a report; move it, or have the report written elsewhere")
