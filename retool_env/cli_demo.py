"""What ``retool demo`` does between the command line and the engine room: choose, run, show.

The engine room is ``retool_env.demo``; here are the problems and the policy that the options ask for, the place of the
trajectories, the progress bar and the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from retool_env.errors import ConfigurationError
from retool_env.protocol.observation import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from retool_env.cli_demo_model import ModelOptions
    from retool_env.demo import DemoSummary
    from retool_env.grading.presets import Preset
    from retool_env.problems import Problem
    from retool_env.protocol.base import InterpreterMode
    from retool_env.rollout import TextPolicy
    from retool_env.rollout.token_policy import TokenPolicy

_MAX_FAILURES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The chat server that takes the scripted policy's place.

    Attributes:
        base_url: Root of its OpenAI-compatible API, with the version (``http://host:8000/v1``).
        model: The model's name there.
        api_key: Its key, or None for a server that wants none.
        temperature: Sampling temperature.
        max_tokens: Most tokens of one turn.
        continue_turn: Ask the server to continue the model's own turn after an output (see ``ChatPolicy``).
    """

    base_url: str
    model: str
    api_key: str | None
    temperature: float
    max_tokens: int
    continue_turn: bool


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asked for.

    Attributes:
        n: Number of problems.
        seed: Of the built-in problems and the scripted policy.
        problems: A file, or what else ``load_problems`` takes as text; None for the built-in problems.
        question_column: Column of the question in that file, or None to find it by its name.
        answer_column: Column of the gold answer in that file, or None to find it by its name.
        protocol: Name of the protocol.
        reward: Name of the reward table.
        interpreter: Whether the blocks of an attempt share one interpreter ("session") or not ("fresh").
        grader: Name of the grader's preset.
        few_shot: Put solved problems before the question.
        tier: Name of the sandbox tier.
        timeout_s: Seconds a block of code may run.
        concurrency: Attempts at the same time.
        out: File for the trajectories, or None for a new folder below ``runs/``.
        policy: The chat server or the model to use, or None for the scripted policy.
    """

    n: int
    seed: int
    problems: str | None
    question_column: str | None
    answer_column: str | None
    protocol: str
    reward: str
    interpreter: InterpreterMode
    grader: Preset
    few_shot: bool
    tier: str
    timeout_s: float
    concurrency: int
    out: Path | None
    policy: ServerOptions | ModelOptions | None


def run(options: DemoOptions, console: Console, errors: Console) -> int:
    """Runs the demo and prints its table.

    Args:
        options: What to run.
        console: For the table.
        errors: For the progress bar and messages.

    Returns:
        0, or 1 if an attempt raised.

    Raises:
        ConfigurationError: An option has a value that cannot work.
        ProblemError: The file of problems is not good.
        ReToolError: The sandbox tier cannot run here, or an optional package is missing.
        OSError: The trajectories could not be written; the run ended there.
        KeyboardInterrupt: Interrupted. After this and any other error a message says what has been written.
    """
    problems = _problems(options)
    policy = _policy(options)
    out = place(options.out)
    with _removed_if_empty(out, with_folder=options.out is None):
        console.print(Text.assemble(("policy  ", "bold"), clean(policy.describe())), soft_wrap=True)
        try:
            summary = asyncio.run(_run(options, problems, policy, out, errors))
        except BaseException:
            if _holds_something(out):
                errors.print(f"what was finished before is in {out}", markup=False, highlight=False, soft_wrap=True)
            raise
    console.print(_table(summary.rows()))
    written = str(out) if out.exists() else "none were written"
    console.print(Text.assemble(("trajectories  ", "bold"), written), soft_wrap=True)
    return _report_failures(summary, errors)


def place(out: Path | None, root: Path = Path("runs")) -> Path:
    """Makes the file for the trajectories, empty, and its folder; never takes one that exists already.

    The file is made before anything runs, so that a place that cannot be written costs nobody the results of a run.

    Args:
        out: The file asked for, or None for a new folder below ``root`` named after the time.
        root: Parent of the new folders.

    Returns:
        The path of the new file.

    Raises:
        ConfigurationError: ``out`` exists, or it or its folder cannot be made.
    """
    if out is None:
        stamp = time.strftime("demo-%Y%m%d-%H%M%S")
        for number in range(1, 1000):
            folder = root / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue  # another demo started in the same second
            except OSError as error:
                raise ConfigurationError(f"cannot make {folder}: {error.strerror}; choose a file with --out") from error
            return _make(folder / "trajectories.jsonl", f"cannot write in {folder}")
        raise ConfigurationError(f"{root / stamp} and 999 others exist; choose a file with --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}; choose another file") from error
    return _make(out, f"--out {out}")


def _make(file: Path, complaint: str) -> Path:
    """Makes a new, empty file: whether it exists and whether it can be written is found out in one step."""
    try:
        file.open("xb").close()
    except FileExistsError as error:
        mend = "is a folder; name a file in it" if file.is_dir() else "exists; choose another, or remove it first"
        raise ConfigurationError(f"{complaint} {mend}") from error
    except OSError as error:
        raise ConfigurationError(f"{complaint}: {error.strerror}; choose another file with --out") from error
    return file


@contextlib.contextmanager
def _removed_if_empty(file: Path, with_folder: bool) -> Iterator[None]:
    """Removes the file in the end if nothing came of it, and with it the folder that was made for it."""
    try:
        yield
    finally:
        if not _holds_something(file):
            with contextlib.suppress(OSError):  # whatever stands in the way is not worth hiding an error for
                file.unlink(missing_ok=True)
                if with_folder:
                    file.parent.rmdir()


def _holds_something(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def _problems(options: DemoOptions) -> Sequence[Problem]:
    if options.problems is None:
        from retool_env.problems import builtin_problems

        return builtin_problems(options.n, options.seed)
    from retool_env.problems import load_problems

    question, answer = options.question_column, options.answer_column
    return load_problems(options.problems, options.seed, limit=options.n, question=question, answer=answer)


def _policy(options: DemoOptions) -> TextPolicy | TokenPolicy:
    server = options.policy
    if server is None:
        from retool_env.rollout import ScriptedSolver

        return ScriptedSolver(seed=options.seed)
    if not isinstance(server, ServerOptions):
        from retool_env.cli_demo_model import load_policy

        return load_policy(server)
    from retool_env.rollout import ChatPolicy

    return ChatPolicy(
        base_url=server.base_url,
        model=server.model,
        api_key=server.api_key,
        temperature=server.temperature,
        max_tokens=server.max_tokens,
        continue_turn=server.continue_turn,
    )


async def _run(
    options: DemoOptions, problems: Sequence[Problem], policy: TextPolicy | TokenPolicy, out: Path, errors: Console
) -> DemoSummary:
    from retool_env.demo import run_demo
    from retool_env.protocol.prompts import builtin_template

    columns = (SpinnerColumn(), TextColumn("attempts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("attempts", total=len(problems))
        try:
            return await run_demo(
                problems,
                policy,
                protocol=options.protocol,
                reward=options.reward,
                interpreter=options.interpreter,
                grader=options.grader,
                prompt_template=builtin_template("code_tags_few_shot") if options.few_shot else None,
                tier=options.tier,
                timeout_s=options.timeout_s,
                concurrency=options.concurrency,
                out=out,
                progress=lambda: progress.advance(task),
            )
        finally:
            await policy.aclose()


def _table(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _report_failures(summary: DemoSummary, errors: Console) -> int:
    """Lists the attempts that raised; returns the exit code."""
    if not summary.failures:
        return 0
    errors.print(Text(f"{len(summary.failures)} of {summary.attempts} attempts failed; the first ones:", style="red"))
    for failure in summary.failures[:_MAX_FAILURES_SHOWN]:
        # What a server says comes from outside: no control character of it may reach the terminal.
        said = clean(f"{type(failure.error).__name__}: {failure.error}")
        errors.print(Text(f"  {failure.problem_id}: {said}"), soft_wrap=True)
    return 1
