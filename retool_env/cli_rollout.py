"""What ``retool rollout`` does between the command line and the runner: choose, open, run, report."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from retool_env.errors import ConfigurationError, ReToolError
from retool_env.protocol.observation import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from retool_env.problems import Problem
    from retool_env.report.figures import RunMetrics
    from retool_env.rollout.attempt import AttemptConfig
    from retool_env.rollout.engines import Engine
    from retool_env.rollout.engines.named import EngineChoice
    from retool_env.rollout.progress import RunFigures
    from retool_env.rollout.store import RunFolder
    from retool_env.sandbox import Sandbox, SandboxConfig
    from retool_env.tokenizer import TokenCodec

_MOST_PROBLEMS: Final = 100_000
_MOST_SESSIONS: Final = 2048
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Which problems.

    Attributes:
        spec: What ``load_problems`` takes as text.
        question_column: Column of the question, or None to find it by its name.
        answer_column: Column of the gold answer, or None to find it by its name.
        limit: Take only so many.
    """

    spec: str
    question_column: str | None
    answer_column: str | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """What the command line asked for.

    Attributes:
        problems: The problems.
        engine: What generates.
        attempt: How attempts are made.
        sandbox: Where code runs.
        n: Attempts at each problem.
        concurrency: Attempts at the same time.
        seed: Of the attempts, and of problems that are made.
        wait_s: Seconds to wait for a server when all are down.
        parquet: Write the attempts as parquet, too.
        out: The run's folder.
        every_s: Seconds between lines of progress where there is no terminal.
    """

    problems: ProblemOptions
    engine: EngineChoice
    attempt: AttemptConfig
    sandbox: SandboxConfig
    n: int
    concurrency: int
    seed: int
    wait_s: float
    parquet: bool
    out: Path
    every_s: float = 10.0


def sandbox_config(**options: Any) -> SandboxConfig:
    """Returns a sandbox's configuration.

    Raises:
        ConfigurationError: An option has a value that cannot work.
    """
    from pydantic import ValidationError

    from retool_env.config import explain
    from retool_env.sandbox import SandboxConfig

    try:
        return SandboxConfig(**options)
    except ValidationError as error:
        raise ConfigurationError(explain(error)) from None


def run(options: RolloutOptions, console: Console, errors: Console) -> int:
    """Makes the attempts that are not done yet, and writes the report.

    Args:
        options: What to run.
        console: For the table.
        errors: For progress and messages.

    Returns:
        0, or 1 if an attempt ended in a fault.

    Raises:
        ConfigurationError: An option has a value that cannot work, or the folder holds another run.
        ProblemError: The problems are not good.
        ReToolError: A server cannot be reached or refuses, the sandbox tier cannot run here, or a package is missing.
        OSError: The folder cannot be written.
        KeyboardInterrupt: Interrupted. After this and any other error the report is of what is there.
    """
    from retool_env.rollout.attempt import make_codec
    from retool_env.rollout.engines.named import SERVERS, ask_servers, load_tokenizer, make_engines
    from retool_env.rollout.progress import RunFigures
    from retool_env.rollout.store import RunFolder

    if options.parquet:
        from retool_env.rollout.parquet import has_pyarrow

        has_pyarrow()
    problems = _problems(options)
    choice = options.engine
    served = ask_servers(choice) if choice.name in SERVERS else None
    config = options.attempt
    if served is not None and config.budget.context is None and served.max_len is not None:
        budget = config.budget.model_copy(update={"context": served.max_len})
        config = config.model_copy(update={"budget": budget})
    codec = make_codec(load_tokenizer(choice, served), config)
    asked = _asked(options, config, len(problems), choice.model if served is None else served.name)
    _allow_open_files()
    figures = RunFigures()
    with RunFolder(options.out, problems, asked, _how(options)) as folder:
        figures.total = len(problems) * options.n
        figures.before, figures.correct_before = folder.found.attempts, folder.found.correct
        console.print(_headline(options, folder, len(problems)), soft_wrap=True)
        if folder.found.damaged:
            errors.print(_damage(folder), soft_wrap=True)
        engines = make_engines(choice, served, codec) if figures.before < figures.total else []
        with _reported(folder, figures, options, errors) as run_figures:
            if engines:
                asyncio.run(_run(options, config, problems, engines, codec, folder, figures, run_figures, errors))
    console.print(_table(options.out, figures, run_figures.get("turns_lost", 0)))
    if figures.faults:
        told = f"{figures.faults} attempts ended in faults and are not counted; the same command makes them again"
        errors.print(Text(told, style="red"), soft_wrap=True)
        return 1
    return 0


async def _run(
    options: RolloutOptions,
    config: AttemptConfig,
    problems: Sequence[Problem],
    engines: Sequence[Engine],
    codec: TokenCodec,
    folder: RunFolder,
    figures: RunFigures,
    run_figures: dict[str, Any],
    errors: Console,
) -> None:
    from retool_env.rollout.balancer import Balancer
    from retool_env.rollout.progress import Display
    from retool_env.rollout.progress import run_figures as figures_of
    from retool_env.rollout.runner import run as make_attempts
    from retool_env.rollout.runner import settled_heap

    balancer = Balancer(engines, wait_s=options.wait_s)
    try:
        with settled_heap(), _sandbox(options) as sandbox:
            try:
                async with Display(figures, sandbox, errors, every_s=options.every_s).shown():
                    await make_attempts(
                        problems,
                        balancer,
                        codec,
                        sandbox,
                        folder,
                        config,
                        n=options.n,
                        concurrency=options.concurrency,
                        seed=options.seed,
                        figures=figures,
                    )
            finally:
                run_figures |= figures_of(figures, sandbox)
                run_figures |= {"turns_moved": balancer.n_moved, "turns_lost": balancer.n_lost + figures.resumes}
    finally:
        await balancer.aclose()


@contextlib.contextmanager
def _reported(
    folder: RunFolder, figures: RunFigures, options: RolloutOptions, errors: Console
) -> Iterator[dict[str, Any]]:
    """Writes the report in the end, whatever the end is; and says what is there if it is not a good one."""
    run_figures: dict[str, Any] = {}
    try:
        yield run_figures
    except BaseException:
        told = f"{figures.finished} of {figures.total} attempts are done in {folder.path}; the same command continues"
        errors.print(Text(told, style="yellow"), soft_wrap=True)
        try:
            _report(folder.path, run_figures)
        except (ReToolError, OSError) as error:
            errors.print(Text(f"and no report can be written: {clean(str(error))}", style="yellow"), soft_wrap=True)
        raise
    metrics = _report(folder.path, run_figures)
    if metrics.no_room:
        from retool_env.report.figures import no_room

        errors.print(Text(no_room(metrics), style="yellow"), soft_wrap=True)
    if options.parquet:
        from retool_env.rollout.parquet import write_parquet

        write_parquet(folder.path)


def _report(path: Path, run_figures: dict[str, Any]) -> RunMetrics:
    from retool_env.report.run_report import write_report

    return write_report(path, run=run_figures or None).metrics


def _problems(options: RolloutOptions) -> Sequence[Problem]:
    from retool_env.problems import load_problems

    chosen = options.problems
    problems = load_problems(
        chosen.spec,
        options.seed,
        limit=chosen.limit,
        question=chosen.question_column,
        answer=chosen.answer_column,
    )
    if chosen.limit is None and len(problems) > _MOST_PROBLEMS:
        raise ConfigurationError(f"--limit: there are {len(problems):,} problems in {chosen.spec!r:.80}; say how many")
    return problems


def _asked(options: RolloutOptions, config: AttemptConfig, n_problems: int, model: str | None) -> dict[str, Any]:
    """Returns what decides what the attempts are."""
    from retool_env.rollout.runner import describe

    sandbox = options.sandbox
    return {
        "problems": asdict(options.problems),
        "n_problems": n_problems,
        "n": options.n,
        "seed": options.seed,
        "engine": options.engine.name,
        "model": model,
        "tokenizer": options.engine.tokenizer,
        "attempt": describe(config),
        "sandbox": {"tier": sandbox.tier, "timeout_s": sandbox.timeout_s, "memory_mb": sandbox.memory_mb},
    }


def _how(options: RolloutOptions) -> dict[str, Any]:
    config = options.attempt
    return {
        "base_urls": list(options.engine.base_urls),
        "concurrency": options.concurrency,
        "turn_timeout_s": options.engine.timeout_s,
        "deadline_s": config.deadline_s,
        "max_resumes": config.max_resumes,
    }


def _sandbox(options: RolloutOptions) -> Sandbox:
    from retool_env.sandbox import Sandbox

    config = options.sandbox
    if options.attempt.episode.interpreter == "session" and config.max_sessions is None:
        config = config.model_copy(update={"max_sessions": min(_MOST_SESSIONS, max(512, options.concurrency))})
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        return Sandbox(config)


def _allow_open_files() -> None:
    """Every attempt has a connection: the usual 1024 files are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _headline(options: RolloutOptions, folder: RunFolder, n_problems: int) -> Text:
    line = Text.assemble(("run  ", "bold"), clean(str(folder.path)))
    line.append(f": {options.n} x {n_problems} attempts")
    found = folder.found
    if found.attempts:
        line.append(f", {found.attempts} are done")
    again = found.faults + found.unfinished
    if again:
        line.append(f", {again} that ended in faults or were cut off are made again")
    return line


def _damage(folder: RunFolder) -> Text:
    from retool_env.rollout.store import ASIDE

    damaged = folder.found.damaged
    more = "" if len(damaged) <= _MOST_NAMED else f" and {len(damaged) - _MOST_NAMED} more"
    lines = "; ".join(damaged[:_MOST_NAMED]) + more
    told = f"damaged, and set aside in files named *{ASIDE} beside them: {lines}; their attempts are made again"
    return Text(clean(told), style="yellow")


def _table(path: Path, figures: RunFigures, turns_lost: int) -> Table:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    accuracy = "n/a" if math.isnan(figures.accuracy) else f"{100 * figures.accuracy:.1f} %"
    rows = [
        ("attempts", f"{figures.finished} of {figures.total}"),
        ("accuracy", accuracy),
        ("faults", str(figures.faults)),
        ("turns lost", str(turns_lost)),
        ("this time", f"{figures.done} attempts, {figures.turns} turns, {figures.tokens:,} tokens"),
        ("wall time", f"{figures.elapsed_s:.1f} s"),
        ("report", str(path / "report.html")),
    ]
    for name, value in rows:
        table.add_row(Text(name), Text(clean(value)))
    return table
