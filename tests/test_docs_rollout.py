"""``docs/rollout.md``: the options it names exist, its files are those that are written, its example runs."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from retool_env.cli import app
from retool_env.rollout.attempt import AttemptConfig, make_codec
from retool_env.rollout.balancer import Balancer
from retool_env.rollout.engines import GenerateParams, ScriptedEngine

from .rollout.model_server import MODEL, ModelServer
from .tokenizers import load

pytestmark = pytest.mark.once  # a document says the same on every Python

PAGE = (Path(__file__).parents[1] / "docs" / "rollout.md").read_text(encoding="utf-8")
OTHERS = {
    *("--port", "--max-model-len", "--enable-prefix-caching", "--enable-scale-out", "--help", "--host", "--dtype"),
    *("--enforce-eager", "--max-num-seqs", "--no-enable-chunked-prefill", "--max-num-batched-tokens"),
}
"""Options of vLLM's, and the one of every command."""


def options(command: str) -> set[str]:
    found = get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {name for parameter in found for name in parameter.opts}


def test_its_options_exist() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert len(named) > 15
    assert named - options("rollout") == OTHERS
    assert "-n" in options("rollout")


def test_its_command_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up to the servers, which are not there."""
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```sh\nretool (rollout .*?)\n```", PAGE, re.DOTALL)
    row = re.search(r'^\{"problem".*\}$', PAGE, re.MULTILINE)
    assert row is not None
    Path("aime_2024.jsonl").write_text(row[0])
    command = command.replace(":8000", ":9").replace(":8001", ":19")
    result = CliRunner().invoke(app, command.replace("\\\n", "").split())
    assert result.exit_code == 1
    assert "http://127.0.0.1:9/v1/models: cannot be reached" in result.stderr


def test_its_files_and_columns_are_those_that_are_written(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    out = tmp_path / "run"
    done = CliRunner().invoke(
        app, ["rollout", "--engine", "scripted", "--limit", "2", "--parquet", "--timeout-s", "1", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    table = PAGE[PAGE.index("| file in") :].split("\n\n")[0]
    files = {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert files == {path.name for path in out.iterdir() if not path.name.startswith(".")}
    (row,) = [row for row in table.splitlines() if "`tokens.jsonl`" in row]
    named = set(re.findall(r"`(\w+)`", row)) - {"TokenTrajectory"}
    assert named == json.loads((out / "tokens.jsonl").read_text().splitlines()[0]).keys()


def test_the_numbers_it_gives_are_the_defaults() -> None:
    defaults = Balancer.__init__.__kwdefaults__
    assert (defaults["check_every_s"], defaults["move_margin"]) == (5.0, 8)
    assert "every five seconds" in " ".join(PAGE.split())
    assert "eight more" in PAGE


async def test_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx", reason="the httpx package is not installed (extra `rollout`)")
    monkeypatch.chdir(tmp_path)
    Path("aime_2024.jsonl").write_text('{"problem": "What is 6 * 7?", "answer": "42"}\n')
    codec = make_codec(load("small"), AttemptConfig())

    def turns(prompt_ids: Sequence[int], params: GenerateParams) -> str:
        return "<answer>\\boxed{42}</answer>"

    server = ModelServer(ScriptedEngine(codec, turns))
    await server.start()
    try:
        names: dict[str, object] = {}
        (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        exec(compile(example, "docs/rollout.md", "exec"), names)
        evaluate = names["evaluate"]
        assert callable(evaluate)
        figures = await evaluate([server.url], MODEL, load("small"), "run")
    finally:
        await server.kill()
    assert (figures.done, figures.correct) == (32, 32)
    assert asyncio.all_tasks() == {asyncio.current_task()}
