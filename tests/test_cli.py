"""The ``retool`` command, run as a user runs it: real sandbox, real files, a real chat server on this machine."""

import http.server
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from retool_env.cli import app
from retool_env.cli_demo import place
from retool_env.cli_doctor import show
from retool_env.errors import ConfigurationError
from retool_env.sandbox.doctor import Check, Report, TierReport, examine
from retool_env.trajectory import read_jsonl

runner = CliRunner()


class ChatServer(http.server.ThreadingHTTPServer):
    """Answers every chat completion with one fixed turn, or never, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, turn: str | None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turn = turn
        self.requests: list[dict[str, object]] = []
        self.asked = threading.Event()
        self.released = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**body, "authorization": self.headers["Authorization"]})
        self.server.asked.set()
        if self.server.turn is None:
            self.server.released.wait()
            return
        message = {"role": "assistant", "content": self.server.turn}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[str | None], ChatServer]]:
    servers: list[ChatServer] = []

    def start(turn: str | None) -> ChatServer:
        server = ChatServer(turn)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [{"question": f"What is {n} times 2?", "answer": str(2 * n)} for n in (3, 21, 40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_help_lists_the_commands_that_exist_and_no_others() -> None:
    names = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert names == {"demo", "play", "view", "grade", "doctor", "report", "rollout"}
    assert {group.name for group in app.registered_groups} == {"bench", "data"}
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
    assert "doctor" in result.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"retool_env \d+\.\d+\.\d+\S*\n", result.output)


class TestDemo:
    def test_runs_built_in_problems_and_says_that_a_script_solved_them(self, tmp_path: Path) -> None:
        out = tmp_path / "new" / "folder" / "out.jsonl"
        result = runner.invoke(app, ["demo", "-n", "8", "--concurrency", "4", "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert "scripted" in result.output.lower()
        assert str(out) in result.output.replace("\n", "")
        for row in ("accuracy", "mean reward", "tier", "p50", "p99"):
            assert row in result.output.lower()
        assert len(list(read_jsonl(out))) == 8

    @pytest.mark.parametrize("protocol", ["tool_calls", "markdown"])
    def test_runs_every_protocol(self, protocol: str, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        result = runner.invoke(app, ["demo", "-n", "4", "--protocol", protocol, "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert len(list(read_jsonl(out))) == 4

    def test_one_interpreter_can_serve_all_blocks_of_an_attempt(self, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        result = runner.invoke(app, ["demo", "-n", "4", "--interpreter", "session", "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert re.search(r"interpreter\W+session", result.output)
        assert {attempt.rules.interpreter for attempt in read_jsonl(out)} == {"session"}

    @pytest.mark.parametrize("grader", ["strict", "lenient"])
    def test_grades_by_the_preset_that_is_asked_for(self, grader: str, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        result = runner.invoke(app, ["demo", "-n", "4", "--grader", grader, "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert re.search(rf"grader\W+{grader}", result.output)
        assert {attempt.rules.grader for attempt in read_jsonl(out)} == {grader}

    def test_takes_problems_from_a_file(self, problems: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        result = runner.invoke(app, ["demo", "--problems", str(problems), "-n", "2", "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert [attempt.problem.answer for attempt in read_jsonl(out)] in (["6", "42"], ["42", "6"])

    def test_takes_columns_of_any_name(self, tmp_path: Path) -> None:
        path, out = tmp_path / "odd.jsonl", tmp_path / "out.jsonl"
        path.write_text('{"Aufgabe": "What is 6 times 7?", "answer": "0", "Lösung": "42"}\n', encoding="utf-8")
        columns = ["--question-column", "Aufgabe", "--answer-column", "Lösung"]
        result = runner.invoke(app, ["demo", "--problems", str(path), *columns, "--out", str(out)])
        assert result.exit_code == 0, result.output
        (attempt,) = read_jsonl(out)
        assert (attempt.problem.question, attempt.problem.answer) == ("What is 6 times 7?", "42")

    def test_uses_a_chat_server_and_keeps_its_key_to_itself(
        self, serve: Callable[[str | None], ChatServer], problems: Path, tmp_path: Path
    ) -> None:
        server = serve(r"It is <answer>\boxed{42}</answer>")
        out = tmp_path / "out.jsonl"
        arguments = ["demo", "--base-url", server.base_url, "--model", "mini", "--problems", str(problems)]
        result = runner.invoke(app, [*arguments, "--out", str(out)], env={"OPENAI_API_KEY": "sesame-1"})
        assert result.exit_code == 0, result.output
        assert "mini" in result.output
        assert "scripted" not in result.output.lower()
        assert {request["model"] for request in server.requests} == {"mini"}
        assert {request["authorization"] for request in server.requests} == {"Bearer sesame-1"}
        assert "sesame-1" not in result.output + out.read_text(encoding="utf-8")
        attempts = list(read_jsonl(out))
        assert sorted(attempt.outcome.correct for attempt in attempts if attempt.outcome) == [False, False, True]

    def test_never_overwrites_a_file(self, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        out.write_text("precious")
        result = runner.invoke(app, ["demo", "-n", "1", "--out", str(out)])
        assert result.exit_code == 2
        assert "exists" in result.output
        assert out.read_text() == "precious"

    def test_an_attempt_that_raises_is_reported_and_is_exit_code_1(self, problems: Path, tmp_path: Path) -> None:
        with socket.socket() as unused:  # bound, never listening: whoever connects is refused
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
            arguments = ["demo", "--problems", str(problems), "-n", "1", "--base-url", url, "--model", "mini"]
            result = runner.invoke(app, [*arguments, "--out", str(tmp_path / "out.jsonl")])
        assert result.exit_code == 1, result.output
        assert "1 of 1 attempts failed" in result.output
        assert "Traceback" not in result.output
        # No file was written, so none is named and none is left.
        assert "none were written" in result.output
        assert "out.jsonl" not in result.output.replace("\n", "")
        assert not (tmp_path / "out.jsonl").exists()

    def test_a_place_that_cannot_be_written_is_said_before_anything_runs(self) -> None:
        # Not even root can make a file there, though its folder exists.
        result = runner.invoke(app, ["demo", "-n", "1", "--out", "/proc/retool.jsonl"])
        assert result.exit_code == 2
        assert "--out /proc/retool.jsonl" in result.output.replace("\n", "")
        assert "policy" not in result.output

    def test_a_disk_that_fills_up_ends_the_run_and_costs_nothing_that_is_written(self, tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        assert runner.invoke(app, ["demo", "-n", "4", "--concurrency", "1", "--out", str(out)]).exit_code == 0
        whole = out.read_bytes().splitlines(keepends=True)
        room = len(whole[0]) + len(whole[1]) + len(whole[2]) // 2
        out.unlink()
        done = subprocess.run(
            [sys.executable, "-m", "retool_env.cli", "demo", "-n", "4", "--concurrency", "1", "--out", str(out)],
            # Stands for a full disk: files can't grow beyond this size.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stderr.replace("\n", "")
        assert done.returncode == 1, done.stderr
        assert "File too large" in said
        assert f"what was finished before is in {out}" in said
        assert "Traceback" not in done.stderr
        kept = out.read_bytes().splitlines(keepends=True)
        assert [json.loads(line)["problem"]["id"] for line in kept[:2]] == ["builtin-0-0", "builtin-0-1"]

    def test_nothing_is_left_where_nothing_was_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert runner.invoke(app, ["demo", "-n", "1", "--protocol", "morse"]).exit_code == 2
        assert list(Path("runs").glob("*")) == []

    def test_the_default_file_is_in_a_folder_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            assert runner.invoke(app, ["demo", "-n", "1"]).exit_code == 0
        found = list(Path("runs").glob("demo-*/trajectories.jsonl"))
        assert len(found) == 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["-n", "0"], "equal to 1"),
            (["--base-url", "http://127.0.0.1:9/v1"], "--model"),
            (["--model", "mini"], "--base-url"),
            (["--protocol", "morse"], "code_tags"),
            (["--reward", "gold_stars"], "tool_aware"),
            (["--tier", "cardboard"], "landlock"),
            (["--interpreter", "immortal"], "'session'"),
            (["--grader", "generous"], "'lenient'"),
            (["--problems", "no_such_file.jsonl"], "no_such_file.jsonl"),
            (["--question-column", "Aufgabe"], "--problems"),
            (["--answer-column", "Lösung"], "--problems"),
        ],
    )
    def test_wrong_use_is_exit_code_2_and_says_what_would_be_right(
        self, arguments: list[str], said: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out.jsonl"
        result = runner.invoke(app, ["demo", "--out", str(out), *arguments])
        assert result.exit_code == 2, result.output
        assert said in result.output
        assert "Traceback" not in result.output
        assert not out.exists()

    def test_a_message_is_shown_as_it_is(self, tmp_path: Path) -> None:
        # Markup in the name of a file (or in a problem) must not be read as the terminal's.
        path = tmp_path / "[bold]x.jsonl"
        path.write_text("not json\n")
        result = runner.invoke(app, ["demo", "--problems", str(path), "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert "[bold]x.jsonl" in result.output.replace("\n", "")

    def test_control_c_leaves_cleanly(
        self, serve: Callable[[str | None], ChatServer], problems: Path, tmp_path: Path
    ) -> None:
        server = serve(None)
        command = [sys.executable, "-m", "retool_env.cli", "demo", "--problems", str(problems), "--model", "mini"]
        process = subprocess.Popen(
            [*command, "--base-url", server.base_url, "--out", str(tmp_path / "out.jsonl")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert server.asked.wait(60), "the demo never asked the server"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in output + errors
        assert "interrupted" in errors
        with pytest.raises(ProcessLookupError):  # nothing of its process group is left
            os.killpg(process.pid, 0)

    def test_an_impatient_second_control_c_leaves_cleanly_too(
        self, serve: Callable[[str | None], ChatServer], problems: Path, tmp_path: Path
    ) -> None:
        server = serve(None)
        out = tmp_path / "out.jsonl"
        command = [sys.executable, "-m", "retool_env.cli_start", "demo", "--problems", str(problems), "--model", "mini"]
        process = subprocess.Popen(
            [*command, "--base-url", server.base_url, "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert server.asked.wait(60), "the demo never asked the server"
        while process.poll() is None:  # at any moment of the shutdown
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT), errors  # the shell calls the latter 130, too


class TestStart:
    """What the console script does before the command is loaded: the script as pip writes it, an import of ours cut."""

    def _start(self, cut: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / f"{cut}.py").write_text("raise KeyboardInterrupt")  # the Ctrl-C comes in there
        script = tmp_path / "retool"
        script.write_text("import sys\nfrom retool_env.cli_start import main\nsys.exit(main())\n")
        paths = [str(tmp_path / "modules"), str(Path(__file__).parents[1])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, str(script), "doctor"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    @pytest.mark.parametrize("cut", ["typer", "rich"])
    def test_control_c_while_it_is_being_imported_is_exit_code_130_and_no_traceback(
        self, cut: str, tmp_path: Path
    ) -> None:
        done = self._start(cut, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


class TestPlace:
    def test_makes_the_file(self, tmp_path: Path) -> None:
        assert place(tmp_path / "new" / "out.jsonl").read_bytes() == b""

    def test_an_existing_file_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        for name in ("out.jsonl", "dangling"):
            if name != "dangling":
                (tmp_path / name).write_text("precious")
            with pytest.raises(ConfigurationError, match="exists"):
                place(tmp_path / name)
        assert (tmp_path / "out.jsonl").read_text() == "precious"

    def test_a_name_that_cannot_be_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="too long"):
            place(tmp_path / ("x" * 300))

    def test_two_runs_in_one_second_get_folders_of_their_own(self, tmp_path: Path) -> None:
        places = {place(None, root=tmp_path) for _ in range(3)}
        assert len(places) == 3
        assert all(path.parent.is_dir() and path.parent.parent == tmp_path for path in places)

    def test_a_folder_is_not_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="folder"):
            place(tmp_path, root=tmp_path)

    def test_a_folder_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="file"):
            place(tmp_path / "file" / "out.jsonl")
        with pytest.raises(ConfigurationError, match="--out"):
            place(None, root=tmp_path / "file")


class TestDoctor:
    def test_tells_of_this_machine(self) -> None:
        report = examine()
        result = runner.invoke(app, ["doctor"])
        assert result.exit_code == (1 if report.chosen is None else 0)
        for tier in report.tiers:
            assert tier.tier in result.output
        if report.chosen is not None:
            assert f"picks here: {report.chosen}" in result.output

    def _show(self, report: Report, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
        code = show(report, Console(width=100))
        return code, capsys.readouterr().out

    def test_exit_code_1_and_the_mends_when_no_tier_works(self, capsys: pytest.CaptureFixture[str]) -> None:
        check = Check(
            name="binary", ok=False, detail="libnl-route-3.so.200 [lib] is missing", mend="apt-get install it"
        )
        tier = TierReport(tier="nsjail", available=False, why="the binary does not start", checks=(check,))
        code, output = self._show(Report(chosen=None, tiers=(tier,), system=()), capsys)
        assert code == 1
        for text in ("No sandbox tier works", "does not start", "3.so.200 [lib] is missing", "apt-get install it"):
            assert text in output

    def test_a_check_that_is_ok_needs_no_mend(self, capsys: pytest.CaptureFixture[str]) -> None:
        check = Check(name="kernel", ok=True, detail="6.1", mend="install a newer kernel")
        tier = TierReport(tier="landlock", available=True, why="everything it needs is here", checks=(check,))
        code, output = self._show(Report(chosen="landlock", tiers=(tier,), system=(check,)), capsys)
        assert code == 0
        assert "picks here: landlock" in output
        assert "newer kernel" not in output
