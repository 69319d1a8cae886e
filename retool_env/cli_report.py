"""What ``retool report`` does between the command line and the report: find the attempts, write the report, show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from retool_env.errors import ConfigurationError
from retool_env.report.run_report import PAGE, write_report
from retool_env.report.run_terminal import print_metrics
from retool_env.report.visible import visible

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the command line asked for.

    Attributes:
        run: A run's folder, or a file of trajectories.
        out: Folder for the report; None for the run's own.
        against: A run to compare with, or None.
        n_bootstrap: How often problems are drawn again for an interval.
        seed: Fixes these draws.
    """

    run: Path
    out: Path | None
    against: Path | None
    n_bootstrap: int
    seed: int


def run(options: ReportOptions, console: Console) -> int:
    """Writes the report and prints its first tables.

    Args:
        options: What to report.
        console: For the tables.

    Returns:
        0, or 1 if a line could not be read.

    Raises:
        ConfigurationError: The attempts cannot be opened, or the report cannot be put there.
        OSError: The attempts could not be read on, or the report not be written.
    """
    is_folder = options.run.is_dir()
    folder = options.out or (options.run if is_folder else None)
    if folder is None:
        raise ConfigurationError(f"{options.run} is no folder; name one for the report with --out")
    if options.out is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--out {folder}: {error.strerror}; choose another folder") from error
    report = write_report(
        folder,
        trajectories=options.run / "trajectories.jsonl" if is_folder else options.run,
        against=options.against,
        n_bootstrap=options.n_bootstrap,
        seed=options.seed,
    )
    print_metrics(report.metrics, console, report.comparison)
    console.print(Text.assemble(("report  ", "bold"), visible(str(folder / PAGE))), soft_wrap=True)
    return 1 if report.metrics.unread else 0
