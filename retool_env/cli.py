"""The ``retool`` command: ``rollout`` evaluates a model, ``demo`` shows the environment, ``grade`` scores old runs, ...

Exit codes: 0 it worked; 1 something failed (an attempt raised, no sandbox tier works); 2 the command was called
wrongly; 130 interrupted with Ctrl-C. The table goes to standard output, progress and messages to standard error.

The one setting that the package takes from the environment, ``OPENAI_API_KEY``, is read here. Apart from it,
``sandbox/launch.py`` and ``grading/workers.py`` read facts about the machine (``LD_LIBRARY_PATH``,
``OPENBLAS_CORETYPE``, ``OPENBLAS_L2_SIZE``), only to hand them on to the interpreters they start.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from retool_env.cli_data_commands import data
from retool_env.errors import ConfigurationError, ProblemError, ReToolError

if TYPE_CHECKING:
    from retool_env.grading.presets import Preset
    from retool_env.protocol.base import InterpreterMode

# Tracebacks with local variables would show an API key.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_show_locals=False)
bench = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)
app.add_typer(bench, name="bench", help="Measures parts of the package on this machine.")
app.add_typer(data, name="data", help="Writes the data sets of the field as files that a trainer reads.")


def _print_version(wanted: bool) -> None:
    if wanted:
        import retool_env

        typer.echo(f"retool_env {retool_env.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The environment side of ReTool: a sandboxed Python tool, maths grading and a tool-aware reward."""


@app.command()
def demo(
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Number of problems.")] = 64,
    seed: Annotated[int, typer.Option(help="Fixes the built-in problems and what the scripted policy does.")] = 0,
    problems: Annotated[
        str | None,
        typer.Option(
            help="A JSONL or parquet file, a preset (aime-2024), hf:owner/name, reasoning-gym:task, ...",
            show_default="built-in problems",
        ),
    ] = None,
    question_column: Annotated[
        str | None, typer.Option(help="Column of the question in that file.", show_default="found by its name")
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(help="Column of the gold answer in that file.", show_default="found by its name")
    ] = None,
    protocol: Annotated[str, typer.Option(help="code_tags, tool_calls or markdown.")] = "code_tags",
    reward: Annotated[str, typer.Option(help="tool_aware, paper, verl or accuracy.")] = "tool_aware",
    interpreter: Annotated[
        str, typer.Option(help="fresh: one for every block of code; session: one for all blocks of an attempt.")
    ] = "fresh",
    grader: Annotated[str, typer.Option(help="strict, default or lenient: how answers are compared.")] = "default",
    tier: Annotated[str, typer.Option(help="Sandbox tier: auto, nsjail or landlock; none isolates nothing.")] = "auto",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds a block of code may run.")] = 5.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Attempts that run at the same time.")] = 16,
    out: Annotated[
        Path | None,
        typer.Option(help="A new file for the trajectories.", show_default="runs/demo-TIME/trajectories.jsonl"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="scripted, openai (a server) or transformers (a model in this process).",
            show_default="scripted, or openai with --base-url",
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Use the model behind this OpenAI-compatible server, e.g. http://host:8000/v1.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name on that server, or its folder for transformers.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's key, if it wants one.", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of the model.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens the model may write in one turn.")] = 4096,
    continue_turn: Annotated[
        bool,
        typer.Option(help="Ask the server to continue the model's turn; off for servers that ignore the request."),
    ] = True,
    few_shot: Annotated[
        bool, typer.Option("--few-shot", help="Put solved problems before the question, for models that need them.")
    ] = False,
) -> None:
    """Runs problems through a policy, concurrently, with a real sandbox; prints a table and writes the trajectories.

    Without --base-url or --engine transformers the policy is a script that knows the built-in problems: it exercises
    the environment and says nothing about any model.
    """
    from retool_env.cli_demo import DemoOptions, ServerOptions, run
    from retool_env.cli_demo_model import ModelOptions

    errors = Console(stderr=True)
    policy: ServerOptions | ModelOptions | None = None
    if engine not in (None, "scripted", "openai", "transformers"):
        raise typer.BadParameter(f"--engine: must be scripted, openai or transformers, got {engine!r}")
    if engine == "transformers":
        if model is None or base_url is not None:
            raise typer.BadParameter("--engine transformers needs --model, the model's folder, and no --base-url")
        policy = ModelOptions(Path(model), temperature, max_tokens, seed)
    elif base_url is not None and model is not None and engine != "scripted":
        policy = ServerOptions(base_url, model, api_key, temperature, max_tokens, continue_turn)
    elif base_url is not None or model is not None or engine == "openai":
        raise typer.BadParameter("--base-url and --model go together: give both, or neither for the scripted policy")
    if few_shot and (policy is None or protocol != "code_tags"):
        raise typer.BadParameter("--few-shot is for a model and protocol code_tags")
    if problems is None and (question_column or answer_column) is not None:
        raise typer.BadParameter("--question-column and --answer-column are of a file: give it with --problems")
    options = DemoOptions(
        n=n, seed=seed, problems=problems, question_column=question_column, answer_column=answer_column,
        protocol=protocol, reward=reward, interpreter=cast("InterpreterMode", interpreter),
        grader=cast("Preset", grader), few_shot=few_shot, tier=tier, timeout_s=timeout_s, concurrency=concurrency,
        out=out, policy=policy,
    )  # fmt: skip
    try:
        code = run(options, Console(), errors)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except (ConfigurationError, ProblemError) as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except (ReToolError, OSError) as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def rollout(
    out: Annotated[Path, typer.Option(help="The run's folder: a new one, or one whose run is to be continued.")],
    problems: Annotated[
        str, typer.Option(help="A file, a data set, a preset such as aime-2024, builtin, or reasoning-gym:TASK.")
    ] = "builtin",
    question_column: Annotated[
        str | None, typer.Option(help="Column of the question.", show_default="found by its name")
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(help="Column of the gold answer.", show_default="found by its name")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only so many problems.", show_default="all")] = None,
    engine: Annotated[
        str, typer.Option(help="vllm, vllm-generate, sglang, openai, transformers or scripted.")
    ] = "vllm",
    base_url: Annotated[
        list[str] | None, typer.Option(help="A server's address; give it again for each further server.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model's name on the server, or its folder.", show_default="the server's only one"),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer.", show_default="the model's")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The servers' key.", show_default=False)
    ] = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Attempts at each problem.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Attempts that run at the same time.")] = 64,
    seed: Annotated[int, typer.Option(help="Fixes the attempts' seeds, and problems that are made.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus that is sampled.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Likeliest tokens that are sampled.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens after the prompt, outputs included.")] = 16_384,
    max_turn_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of one turn.")] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in all.", show_default="what the server can hold")
    ] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Most turns of an attempt.")] = 16,
    max_tool_calls: Annotated[int, typer.Option(min=0, help="Most calls of an attempt that may run.")] = 16,
    protocol: Annotated[str, typer.Option(help="code_tags, tool_calls or markdown.")] = "code_tags",
    prompt_template: Annotated[
        Path | None, typer.Option(help="A prompt of your own, with {question}; few-shot examples go here.")
    ] = None,
    reward: Annotated[str, typer.Option(help="tool_aware, paper, verl or accuracy.")] = "tool_aware",
    interpreter: Annotated[
        str, typer.Option(help="fresh: one for every block of code; session: one for all blocks of an attempt.")
    ] = "fresh",
    grader: Annotated[str, typer.Option(help="strict, default or lenient: how answers are compared.")] = "default",
    tier: Annotated[str, typer.Option(help="Sandbox tier: auto, nsjail or landlock; none isolates nothing.")] = "auto",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds a block of code may run.")] = 5.0,
    turn_timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds that generating a turn may take.")] = 600.0,
    deadline_s: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds that an attempt may take.", show_default="no limit")
    ] = None,
    wait_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for a server when all are down.")] = 300.0,
    parquet: Annotated[bool, typer.Option("--parquet", help="In the end write attempts.parquet, too.")] = False,
) -> None:
    """Makes several attempts at each problem with a model, and writes trajectories, tokens, metrics and a report.

    A run that was interrupted, or killed, is continued by the same command: attempts that are done are not made again,
    those that ended in a fault are. Exit code 1 if attempts ended in faults.
    """
    from retool_env.cli_rollout import ProblemOptions, RolloutOptions, run, sandbox_config
    from retool_env.config import EpisodeConfig
    from retool_env.rollout.attempt import AttemptConfig
    from retool_env.rollout.engines.named import SERVERS, EngineChoice
    from retool_env.tokens import TokenBudget

    errors = Console(stderr=True)
    try:
        episode = EpisodeConfig(
            protocol=protocol, reward=reward, interpreter=cast("InterpreterMode", interpreter),
            grader=cast("Preset", grader), max_turns=max_turns, max_tool_calls=max_tool_calls,
            prompt_template=cast("str | None", prompt_template),
        )  # fmt: skip
        attempt = AttemptConfig(
            episode=episode, budget=TokenBudget(response=max_tokens, turn=max_turn_tokens, context=context),
            temperature=temperature, top_p=top_p, top_k=top_k, deadline_s=deadline_s,
            # Servers' time-outs are their engines': the balancer must learn of them, and waits are none.
            turn_timeout_s=None if engine in SERVERS else turn_timeout_s,
        )  # fmt: skip
        choice = EngineChoice(
            engine, tuple(base_url or ()), model, tokenizer, api_key, turn_timeout_s, temperature, top_p,
            max_turn_tokens or max_tokens, seed,
        )  # fmt: skip
        options = RolloutOptions(
            problems=ProblemOptions(problems, question_column, answer_column, limit), engine=choice, attempt=attempt,
            sandbox=sandbox_config(tier=tier, timeout_s=timeout_s), n=n, concurrency=concurrency,
            seed=seed, wait_s=wait_s, parquet=parquet, out=out,
        )  # fmt: skip
        code = run(options, Console(), errors)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except (ConfigurationError, ProblemError) as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except (ReToolError, OSError) as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def grade(
    file: Annotated[
        Path, typer.Argument(help="JSONL with a text and a gold answer in each row, or trajectories; - reads stdin.")
    ],
    text_column: Annotated[
        str | None, typer.Option(help="Column of what the model wrote.", show_default="found by its name")
    ] = None,
    gold_column: Annotated[
        str | None, typer.Option(help="Column of the gold answer.", show_default="found by its name")
    ] = None,
    preset: Annotated[str, typer.Option(help="strict, default or lenient: what counts as an answer.")] = "default",
    limit_s: Annotated[float, typer.Option(min=0.1, help="Seconds that one comparison may take.")] = 4.0,
    workers: Annotated[int, typer.Option(min=1, help="Rows that are graded at the same time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="A new file for the grades, one row for each.", show_default="none")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="Column of an old score to compare with (0.5 and more: correct).", show_default="none"),
    ] = None,
) -> None:
    """Grades a file of texts and gold answers, and prints a summary by method: to score old runs again.

    A column can be a field of an object: reward_model.ground_truth. Exit code 1 if a row could not be read.
    """
    from retool_env.cli_grade import GradeOptions, run
    from retool_env.cli_grade_rows import Columns

    errors = Console(stderr=True)
    options = GradeOptions(
        file=file, columns=Columns(text_column, gold_column, compare), preset=preset,
        limit_s=limit_s, workers=workers, out=out,
    )  # fmt: skip
    try:
        code = run(options, Console(), errors)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except (ConfigurationError, ProblemError) as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except (ReToolError, OSError) as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def view(
    file: Annotated[Path, typer.Argument(help="Trajectories, as retool demo writes them; - reads stdin.")],
    number: Annotated[
        int | None, typer.Option("-n", "--number", min=1, help="Show the attempt on this line in full.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Show the attempts at the problem with this id in full.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only attempts that are not correct; faults are not.")] = False,
    timed_out: Annotated[
        bool, typer.Option("--timed-out", help="Only where code, or the comparison of the answer, ran out of time.")
    ] = False,
    tool_used: Annotated[bool, typer.Option("--tool-used", help="Only where a tool call ran.")] = False,
    ended: Annotated[
        str | None, typer.Option(help="Only attempts that ended for this reason: answered, max_turns, ...")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write them as one HTML page that needs no network.")] = None,
) -> None:
    """Lists recorded attempts, shows one in full, or writes a page to browse them; all options can be combined.

    Exit code 1 if a line could not be read; it is reported and passed over.
    """
    from retool_env.cli_view import ViewOptions, end_reason, run
    from retool_env.report.attempts import Filter

    errors = Console(stderr=True)
    try:
        reason = None if ended is None else end_reason(ended)
        wanted = Filter(wrong, timed_out, tool_used, reason, number, problem)
        code = run(ViewOptions(file=file, wanted=wanted, html=html), Console(), errors)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except ConfigurationError as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except OSError as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a file of trajectories.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report.", show_default="the run's folder")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another run to compare with, problem by problem: its folder, or a file.")
    ] = None,
    n_bootstrap: Annotated[int, typer.Option(min=0, help="Draws for the intervals; 0 for none.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Fixes these draws.")] = 0,
) -> None:
    """Makes the report of a run: metrics.json, report.html and attempts.html, and its first tables here.

    pass@k, maj@k and mean@n with intervals, and how code was used. Exit code 1 if a line could not be read.
    """
    from retool_env.cli_report import ReportOptions
    from retool_env.cli_report import run as make

    errors = Console(stderr=True)
    try:
        code = make(ReportOptions(run, out, against, n_bootstrap, seed), Console())
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except ConfigurationError as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except OSError as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def play(
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Number of problems, one after the other.")] = 1,
    seed: Annotated[int, typer.Option(help="Fixes the built-in problems.")] = 0,
    problems: Annotated[
        str | None,
        typer.Option(
            help="A JSONL or parquet file, a preset (aime-2024), hf:owner/name, reasoning-gym:task, ...",
            show_default="built-in problems",
        ),
    ] = None,
    question_column: Annotated[
        str | None, typer.Option(help="Column of the question in that file.", show_default="found by its name")
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(help="Column of the gold answer in that file.", show_default="found by its name")
    ] = None,
    protocol: Annotated[str, typer.Option(help="code_tags, tool_calls or markdown.")] = "code_tags",
    reward: Annotated[str, typer.Option(help="tool_aware, paper, verl or accuracy.")] = "tool_aware",
    interpreter: Annotated[
        str, typer.Option(help="fresh: one for every block of code; session: one for all blocks of an attempt.")
    ] = "fresh",
    grader: Annotated[str, typer.Option(help="strict, default or lenient: how answers are compared.")] = "default",
    tier: Annotated[str, typer.Option(help="Sandbox tier: auto, nsjail or landlock; none isolates nothing.")] = "auto",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds a block of code may run.")] = 5.0,
    out: Annotated[
        Path | None, typer.Option(help="A new file for the trajectories.", show_default="none is written")
    ] = None,
) -> None:
    """Makes you the policy: you read the prompt, write the turns, see the interpreter's output and the reward."""
    from retool_env.cli_play import PlayOptions, run

    errors = Console(stderr=True)
    if problems is None and (question_column or answer_column) is not None:
        raise typer.BadParameter("--question-column and --answer-column are of a file: give it with --problems")
    options = PlayOptions(
        n=n, seed=seed, problems=problems, question_column=question_column, answer_column=answer_column,
        protocol=protocol, reward=reward, interpreter=cast("InterpreterMode", interpreter),
        grader=cast("Preset", grader), tier=tier, timeout_s=timeout_s, out=out,
    )  # fmt: skip
    try:
        code = run(options, Console(), errors)
    except KeyboardInterrupt:
        errors.print("\ninterrupted", style="yellow")
        raise typer.Exit(130) from None
    except (ConfigurationError, ProblemError) as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except (ReToolError, OSError) as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@bench.command("env")
def bench_env(
    only: Annotated[
        list[str] | None, typer.Option(help="own, length, rates or memory; can be repeated.", show_default="all")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: does it run? Not for figures.")] = False,
    num_envs: Annotated[int, typer.Option(min=1, max=900, help="Size of the vector and of the group.")] = 16,
    tier: Annotated[str, typer.Option(help="Sandbox tier: auto, nsjail or landlock; none isolates nothing.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for env.json and env.png.")] = Path("runs/bench"),
) -> None:
    """Measures the environment: its own time for a step, by length, turns a second, memory. Takes about two minutes.

    Own time is that of a step outside the sandbox. The figures stand beside their targets. What they are is documented
    in the module retool_env.bench.
    """
    from retool_env.bench.env import TOPICS, BenchOptions, run

    errors = Console(stderr=True)
    options = BenchOptions(tuple(only or TOPICS), quick, num_envs, tier, out)
    try:
        code = run(options, Console(), errors)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except ConfigurationError as error:
        _complain(errors, error)
        raise typer.Exit(2) from None
    except (ReToolError, OSError) as error:
        _complain(errors, error)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


@app.command()
def doctor() -> None:
    """Says which sandbox tier this machine gets and why, and what to install for a better one."""
    from retool_env.cli_doctor import show
    from retool_env.sandbox.doctor import examine

    raise typer.Exit(show(examine(), Console()))


def _complain(console: Console, error: Exception) -> None:
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), markup=False, highlight=False)


def main() -> None:
    """Runs the command. The console script comes here through ``retool_env.cli_start``."""
    # Text may be more than an ASCII terminal can show, and what a player types need not be UTF-8: no reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    app()


if __name__ == "__main__":
    main()
