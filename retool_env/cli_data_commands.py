"""The commands ``retool data rl`` and ``retool data sft``: the data sets of the field as files that a trainer reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from retool_env.errors import ConfigurationError, ProblemError, ReToolError

data = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)

_Trainer = Annotated[str, typer.Option("--for", help="The trainer that reads the file: verl or openrlhf.")]
_Out = Annotated[Path, typer.Option(help="The new parquet file.")]
_Limit = Annotated[int | None, typer.Option(min=1, help="Take only so many.", show_default="all")]
_Template = Annotated[
    Path | None, typer.Option(help="A prompt of your own, with {question} in it.", show_default="the protocol's")
]
_MaxTurns = Annotated[int, typer.Option(min=1, help="Turns that the prompt states.")]
_TimeoutS = Annotated[float, typer.Option(min=0.1, help="Seconds of a block that the prompt states.")]


@data.command()
def rl(
    trainer: _Trainer,
    problems: Annotated[
        str, typer.Option(help="A file, hf:owner/name, or a preset: dapo-math-17k, aime-2024, aime-2025.")
    ],
    out: _Out,
    split: Annotated[str, typer.Option(help="What the rows say they are of.")] = "train",
    loop: Annotated[
        str,
        typer.Option(
            help="retool: this package's loop, the prompt is its own; tool_agent (verl) or agent_instance (openrlhf): "
            "the trainer's own loop."
        ),
    ] = "retool",
    preset: Annotated[str | None, typer.Option(help="The preset whose form a file has.", show_default="none")] = None,
    question_column: Annotated[
        str | None, typer.Option(help="Column of the question.", show_default="found by its name")
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(help="Column of the gold answer.", show_default="found by its name")
    ] = None,
    limit: _Limit = None,
    template: _Template = None,
    max_turns: _MaxTurns = 16,
    timeout_s: _TimeoutS = 5.0,
) -> None:
    """Writes problems for reinforcement learning.

    Template, turns and seconds are for the trainer's own loop: the package's has them in its configuration.
    """

    def run() -> int:
        from retool_env.cli_data import RlOptions, write_rl

        asked = {"preset": preset, "question": question_column, "answer": answer_column, "limit": limit}
        load = {key: value for key, value in asked.items() if value is not None}
        stated: dict[str, Any] = {"prompt_template": template, "max_turns": max_turns, "timeout_s": timeout_s}
        return write_rl(RlOptions(trainer, problems, out, split, loop, load, stated), Console())

    _exit_with(run)


@data.command()
def sft(
    trainer: _Trainer,
    out: _Out,
    source: Annotated[
        str, typer.Option(help="ReTool-SFT on the hub, or a file or folder in its form.")
    ] = "JoeYing/ReTool-SFT",
    protocol: Annotated[str, typer.Option(help="code_tags or tool_calls: what is trained after this.")] = "code_tags",
    limit: _Limit = None,
    template: _Template = None,
    max_turns: _MaxTurns = 16,
    max_tool_calls: Annotated[int, typer.Option(min=1, help="Blocks or calls that the prompt states.")] = 16,
    max_observation_chars: Annotated[int, typer.Option(min=100, help="Characters shown of an output.")] = 1024,
    timeout_s: _TimeoutS = 5.0,
    memory_mb: Annotated[int, typer.Option(min=16, help="MiB of a block that the prompt states.")] = 512,
) -> None:
    """Writes solved problems for supervised training, in the form of the attempts that follow.

    The limits are to be those of the training that follows, because the prompt states them.

    Exit code 1 if rows were left out; the first are shown, and the rest of the file is good.
    """

    def run() -> int:
        from retool_env.cli_data import SftOptions, write_sft
        from retool_env.config import EpisodeConfig

        stated: dict[str, Any] = {
            "prompt_template": template, "max_turns": max_turns, "max_tool_calls": max_tool_calls,
            "max_observation_chars": max_observation_chars, "timeout_s": timeout_s, "memory_mb": memory_mb,
        }  # fmt: skip
        rules = EpisodeConfig(protocol=protocol, **stated)
        return write_sft(SftOptions(trainer, source, out, limit, rules), Console(), Console(stderr=True))

    _exit_with(run)


def _exit_with(run: Callable[[], int]) -> None:
    """Runs a command and ends with its exit code; what it raises is said in one line."""
    errors = Console(stderr=True)
    try:
        code = run()
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except (ReToolError, OSError) as error:
        errors.print("error:", style="bold red", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, ConfigurationError | ProblemError) else 1) from None
    raise typer.Exit(code)
