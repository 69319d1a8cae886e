"""``retool rollout``, run as a user runs it: its own process, a real sandbox, a real HTTP server, real signals."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from retool_env.cli import app
from retool_env.rollout.attempt import AttemptConfig, make_codec
from retool_env.rollout.engines import GenerateParams, ScriptedEngine
from retool_env.trajectory import read_jsonl

from .rollout.model_server import MODEL, ModelServer
from .tokenizers import load

pytest.importorskip("httpx", reason="the httpx package is not installed (extra `rollout`)")

runner = CliRunner()
COMMAND = [sys.executable, "-m", "retool_env.cli_start", "rollout"]
N_PROBLEMS, N = 12, 4
TOTAL = N_PROBLEMS * N


class Served:
    """A model server on a thread of its own, whose event loop others may be called in."""

    def __init__(self, delay_s: float = 0.01):
        codec = make_codec(load("small"), AttemptConfig())

        def turns(prompt_ids: Sequence[int], params: GenerateParams) -> str:
            seen = codec.decode(prompt_ids[-40:])
            return "<answer>\\boxed{42}</answer>" if "</interpreter>" in seen else "<code>\nprint(6 * 7)\n</code>"

        engine = ScriptedEngine(codec, turns, delay_s=lambda n_tokens: delay_s)
        self.loop = asyncio.new_event_loop()
        self.server = ModelServer(engine)
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.call(self.server.start())

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.call(self.server.kill())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def serve(**options: float) -> Served:
        served.append(Served(**options))
        return served[-1]

    yield serve
    for server in served:
        server.close()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    load("small").save_pretrained(folder)
    return folder


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    rows = [{"question": f"What is 6 * 7, {number}?", "answer": "42"} for number in range(N_PROBLEMS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def options(problems: Path, tokenizer: Path, out: Path, *servers: Served) -> list[str]:
    addresses = [text for server in servers for text in ("--base-url", server.url)]
    return [
        *("--problems", str(problems), "--tokenizer", str(tokenizer), "--out", str(out), *addresses),
        *("-n", str(N), "--concurrency", "8"),
    ]


def rollout(*arguments: str) -> Result:
    return runner.invoke(app, ["rollout", *arguments], env={"COLUMNS": "200"})


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def wait_for_lines(process: subprocess.Popen[str], file: Path, n: int) -> None:
    deadline = time.monotonic() + 120
    while len(lines(file)) < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_whole(out: Path, total: int = TOTAL) -> None:
    """Every attempt is there once, in both files, in one order."""
    names = [record.sample.id for record in read_jsonl(out / "trajectories.jsonl") if record.sample]
    assert len(set(names)) == len(names) == total
    assert [json.loads(line)["id"] for line in lines(out / "tokens.jsonl")] == names


def test_a_run_over_two_servers(serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path) -> None:
    servers, out = [serve(), serve()], tmp_path / "run"
    result = rollout(*options(problems, tokenizer, out, *servers), "--top-p", "0.7", "--seed", "5", "--parquet")
    assert result.exit_code == 0, result.output
    assert "48 of 48" in result.stdout
    assert "100.0 %" in result.stdout
    check_whole(out)
    asked = json.loads((out / "config.json").read_text())["asked"]
    assert (asked["model"], asked["n"], asked["attempt"]["top_p"]) == (MODEL, N, 0.7)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["estimates"]["pass@1"]["value"] == 1.0
    assert metrics["counted"] == TOTAL
    assert (out / "report.html").stat().st_size > 1000
    assert (out / "attempts.parquet").stat().st_size > 1000
    bodies = [body for server in servers for body in server.server.bodies]
    assert len(bodies) == 2 * TOTAL
    assert all(len(server.server.bodies) > TOTAL / 2 for server in servers)
    assert len({body["seed"] for body in bodies}) == TOTAL
    assert {(body["model"], body["top_p"]) for body in bodies} == {(MODEL, 0.7)}
    viewed = runner.invoke(app, ["view", str(out / "trajectories.jsonl"), "-n", "1"])
    assert viewed.exit_code == 0

    again = rollout(*options(problems, tokenizer, out, *servers), "--top-p", "0.7", "--seed", "5")
    assert again.exit_code == 0
    assert "48 are done" in again.stdout
    assert "48 of 48" in again.stdout
    assert sum(len(server.server.bodies) for server in servers) == len(bodies)


def test_a_run_that_is_killed_goes_on_where_it_was(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(delay_s=0.05), tmp_path / "run"
    arguments = options(problems, tokenizer, out, server)
    kept: list[bytes] = []
    for wanted in (7, 20):
        process = start(arguments)
        wait_for_lines(process, out / "trajectories.jsonl", wanted)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = [line for line in lines(out / "trajectories.jsonl") if line.endswith(b"\n")]
        assert now[: len(kept)] == kept  # nothing is lost, nothing made again
        kept = now
        assert len(kept) < TOTAL
    asked_before = len(server.server.bodies)
    process = start(arguments)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert f"{len(kept)} are done" in stdout
    assert lines(out / "trajectories.jsonl")[: len(kept)] == kept
    check_whole(out)
    assert len(server.server.bodies) - asked_before == 2 * (TOTAL - len(kept))


def test_ctrl_c_keeps_what_is_done_and_reports_it(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(delay_s=0.1), tmp_path / "run"
    process = start(options(problems, tokenizer, out, server))
    wait_for_lines(process, out / "trajectories.jsonl", 5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    done = len(lines(out / "trajectories.jsonl"))
    assert 5 <= done < TOTAL
    assert f"{done} of {TOTAL} attempts are done" in stderr
    assert "Traceback" not in stderr
    check_whole(out, done)
    assert json.loads((out / "metrics.json").read_text())["counted"] == done
    assert (out / "report.html").exists()
    assert server.server.abandoned > 0  # the turns under way were not left to run


def test_a_second_process_is_refused(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(delay_s=0.1), tmp_path / "run"
    arguments = options(problems, tokenizer, out, server)
    process = start(arguments)
    try:
        wait_for_lines(process, out / "trajectories.jsonl", 1)
        result = rollout(*arguments)
        assert result.exit_code == 2
        assert "another run writes to this folder" in result.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_all_servers_die(serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path) -> None:
    server, out = serve(), tmp_path / "run"

    ends = []

    def die() -> None:
        if len(server.server.bodies) == 40:
            ends.append(asyncio.ensure_future(server.server.kill()))

    server.server.on_request = die
    arguments = [*options(problems, tokenizer, out, server), "--wait-s", "0.5"]
    result = rollout(*arguments)
    assert result.exit_code == 1
    assert "no server is up" in result.stderr
    assert "attempts are done in" in result.stderr
    done = len(lines(out / "trajectories.jsonl"))
    assert 0 < done < TOTAL
    assert json.loads((out / "metrics.json").read_text())["counted"] == done
    server.call(server.server.start())
    assert rollout(*arguments).exit_code == 0
    check_whole(out)


def test_a_server_that_hangs_loses_its_turns_to_another(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Though it says that it is well: the time-out is what shows it."""
    hangs, answers, out = serve(), serve(), tmp_path / "run"
    hangs.server.status = None
    result = rollout(*options(problems, tokenizer, out, hangs, answers), "--limit", "2", "--turn-timeout-s", "1")
    assert result.exit_code == 0, result.output
    check_whole(out, 2 * N)
    assert len(hangs.server.bodies) > 0
    assert json.loads((out / "metrics.json").read_text())["run"]["resumes"] == 0


def test_waiting_for_a_server_is_no_time_of_a_turn(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(), tmp_path / "run"
    ends: list[asyncio.Future[None]] = []
    server.server.on_request = lambda: ends or ends.append(asyncio.ensure_future(server.server.kill()))
    result = rollout(*options(problems, tokenizer, out, server), "--turn-timeout-s", "0.2", "--wait-s", "2")
    assert result.exit_code == 1
    assert "no server is up" in result.stderr
    assert "faults" not in result.stderr


def test_faults_are_exit_code_1_and_made_again(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(), tmp_path / "run"

    def refuse() -> None:
        server.server.status = 400 if len(server.server.bodies) % 10 == 0 else 200

    server.server.on_request = refuse
    result = rollout(*options(problems, tokenizer, out, server))
    assert result.exit_code == 1
    assert "attempts ended in faults" in result.stderr
    server.server.on_request = lambda: None
    server.server.status = 200
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["faults"] > 0
    assert metrics["counted"] == metrics["correct"] == TOTAL - metrics["faults"]
    again = rollout(*options(problems, tokenizer, out, server))
    assert again.exit_code == 0
    assert f"{metrics['faults']} that ended in faults or were cut off are made again" in again.stdout
    check_whole(out)


def test_another_run_in_the_folder_is_refused(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server, out = serve(), tmp_path / "run"
    assert rollout(*options(problems, tokenizer, out, server)).exit_code == 0
    result = rollout(*options(problems, tokenizer, out, server), "--temperature", "0.5")
    assert result.exit_code == 2
    assert "attempt.temperature was 1.0 and is 0.5" in result.stderr
    problems.write_text(problems.read_text().replace("6 * 7", "7 * 6"))
    result = rollout(*options(problems, tokenizer, out, server))
    assert result.exit_code == 2
    assert "over other problems" in result.stderr


def test_a_folder_that_cannot_be_written_is_a_clear_error(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = rollout(*options(problems, tokenizer, tmp_path / "file" / "run", serve()))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_a_full_disk_ends_the_run_with_a_clear_error(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the disk."""
    out = tmp_path / "run"
    arguments = " ".join(options(problems, tokenizer, out, serve()))
    command = f"ulimit -f 40; trap '' XFSZ; exec {' '.join(COMMAND)} {arguments}"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 1, process.stderr
    assert "File too large" in process.stderr
    assert str(out) in process.stderr.replace("\n", "")
    assert "Traceback" not in process.stderr
    assert rollout(*options(problems, tokenizer, out, serve())).exit_code == 0
    check_whole(out)


def test_mistakes_are_told_before_anything_runs(
    serve: Callable[..., Served], problems: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out, server = tmp_path / "run", serve()
    base = options(problems, tokenizer, out)
    at = ["--base-url", server.url]
    for extra, code, complaint in [
        ([], 2, "needs the address of a server"),
        (["--engine", "magic"], 2, "engine: must be one of"),
        (["--base-url", "127.0.0.1"], 2, "must start with http"),
        (["--base-url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9/v1/models: cannot be reached"),
        ([*at, "--model", "gpt"], 2, f"has no 'gpt'; it has {MODEL}"),
        ([*at, "--tokenizer", str(tmp_path / "none")], 2, "cannot be loaded"),
        ([*at, "--protocol", "morse"], 2, "morse"),
        ([*at, "--top-p", "0"], 2, "top_p"),
        ([*at, "--tier", "vault"], 2, "tier"),
        ([*at, *at], 2, "twice"),
        (["--engine", "scripted", *at], 2, "has no server"),
        (["--engine", "transformers"], 2, "needs the folder"),
        ([*at, "--problems", "builtin"], 2, "say how many"),
    ]:
        result = rollout(*base, *extra)
        assert (result.exit_code, complaint in result.stderr.replace("\n", "")) == (code, True), (extra, result.stderr)
        assert not out.exists()


def test_the_script_needs_neither_server_nor_tokenizer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = rollout("--engine", "scripted", "--limit", "4", "-n", "2", "--timeout-s", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    check_whole(out, 8)


def test_a_chat_server_is_evaluated_without_ids(tmp_path: Path, problems: Path, tokenizer: Path) -> None:
    from .test_cli import ChatServer

    server = ChatServer("<answer>\\boxed{42}</answer>")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        arguments = ["--engine", "openai", "--model", "m", "--api-key", "k", "--base-url", server.base_url]
        base = ["--problems", str(problems), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "run")]
        result = rollout(*base, *arguments)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in lines(tmp_path / "run" / "tokens.jsonl")]
    assert {row["exact"] for row in rows} == {False}
    assert not any(value == "k" for value in json.loads((tmp_path / "run" / "config.json").read_text())["how"].values())


def test_prompts_that_do_not_fit_are_counted_and_said(tmp_path: Path) -> None:
    file, out = tmp_path / "problems.jsonl", tmp_path / "run"
    rows = [{"question": f"What is 6 * 7? {'Think. ' * n}", "answer": "42"} for n in (0, 2000, 0)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = rollout(
        *("--problems", str(file), "--engine", "scripted", "--out", str(out), "-n", "2", "--context", "12000")
    )
    assert result.exit_code == 0, result.output
    assert "The prompts of 1 problem left no room for a turn: 2 attempts ended as max_length" in result.output
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["no_room"], metrics["problems_no_room"], metrics["ended"]["max_length"]) == (2, 1, 2)
    assert any("left no room for a turn" in note for note in metrics["notes"])


def test_a_damaged_line_is_said_and_its_attempt_made_again(tmp_path: Path) -> None:
    file, out = tmp_path / "problems.jsonl", tmp_path / "run"
    file.write_text(json.dumps({"question": "What is 6 * 7?", "answer": "42"}) + "\n")
    command = ["--problems", str(file), "--engine", "scripted", "--out", str(out), "-n", "3"]
    assert rollout(*command).exit_code == 0
    attempts = out / "trajectories.jsonl"
    first, second, third = lines(attempts)
    damaged = second[:-100] + b"\n"
    attempts.write_bytes(first + damaged + third)
    result = rollout(*command)
    assert result.exit_code == 0, result.output
    assert "trajectories.jsonl, line 2: damaged" in result.output
    assert len(list(read_jsonl(attempts))) == 3
    assert lines(out / "trajectories.jsonl.damaged") == [damaged]


def test_a_tokenizer_alone_says_nothing_about_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the transformers package is not installed (extra `transformers`)")
    code = (
        "import logging, sys\n"
        "from retool_env.errors import ConfigurationError\n"
        "from retool_env.rollout.engines.named import EngineChoice, load_tokenizer\n"
        "try:\n    load_tokenizer(EngineChoice('vllm', tokenizer=sys.argv[1]), None)\n"
        "except ConfigurationError:\n    logging.getLogger('transformers').warning('what else it says')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "PyTorch was not found" not in done.stderr
    assert "what else it says" in done.stderr
