"""``retool view``, run as a user runs it, on the record of a real run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from retool_env.cli import app
from retool_env.trajectory import read_jsonl

runner = CliRunner()
COMMAND = [sys.executable, "-m", "retool_env.cli_start", "view"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty attempts of the demo, a few of them wrong, a few without any call."""
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    done = runner.invoke(app, ["demo", "-n", "20", "--seed", "3", "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


def view(*arguments: object, input: bytes | None = None) -> Result:
    return runner.invoke(app, ["view", *map(str, arguments)], input=input)


def rows(result: Result) -> list[int]:
    """The lines of the file that were listed."""
    return [int(found) for found in re.findall(r"^ *(\d+)  (?:correct|wrong|fault|unfinished) ", result.stdout, re.M)]


def test_lists_all_attempts_with_their_outcome(run: Path) -> None:
    result = view(run)
    assert result.exit_code == 0, result.output
    attempts = list(read_jsonl(run))
    lines = result.stdout.splitlines()
    assert len(lines) == 20
    for line, attempt in zip(lines, attempts, strict=True):
        assert attempt.outcome is not None
        for part in ("correct" if attempt.outcome.correct else "wrong", str(attempt.ended), attempt.problem.id):
            assert part in line
    assert "20 of 20 attempts" in result.stderr


def test_filters_pick_and_can_be_combined(run: Path) -> None:
    outcomes = {number: attempt.outcome for number, attempt in enumerate(read_jsonl(run), start=1) if attempt.outcome}
    wrong = [number for number, outcome in outcomes.items() if not outcome.correct]
    used = [number for number, outcome in outcomes.items() if outcome.tool_calls]
    assert 0 < len(wrong) < 20
    assert 0 < len(used) < 20
    assert rows(view(run, "--wrong")) == wrong
    assert rows(view(run, "--tool-used")) == used
    assert rows(view(run, "--tool-used", "--wrong")) == [number for number in used if number in wrong]
    answered = [number for number, outcome in outcomes.items() if outcome.ended == "answered"]
    assert rows(view(run, "--ended", "answered")) == answered
    nothing = view(run, "--ended", "aborted")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "0 of 20 attempts" in nothing.stderr


def test_code_that_timed_out_is_found(run: Path, tmp_path: Path) -> None:
    lines = run.read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines) if json.loads(line)["turns"][0]["results"])
    attempt = json.loads(lines[number])
    attempt["turns"][0]["results"][0]["status"] = "timeout"
    (tmp_path / "run.jsonl").write_text("\n".join([*lines[:number], json.dumps(attempt), *lines[number + 1 :]]))
    assert number + 1 in rows(view(tmp_path / "run.jsonl", "--timed-out"))


@pytest.mark.parametrize("by", ["number", "problem"])
def test_one_attempt_in_full(by: str, run: Path) -> None:
    number, attempt = next(
        (number, one)
        for number, one in enumerate(read_jsonl(run), start=1)
        if len(one.turns) == 2 and one.outcome is not None and one.outcome.reward == 1.05
    )
    result = view(run, *(["-n", number] if by == "number" else ["--problem", attempt.problem.id]))
    assert result.exit_code == 0, result.output
    assert rows(result) == [number]
    text = " ".join(result.stdout.split())
    for part in (attempt.prompt, attempt.turns[0].kept, attempt.turns[0].observation, attempt.turns[1].kept):
        assert " ".join(part.split()) in text
    assert "turn 1: run_code" in text
    assert re.search(r"reward +1\.05 = base \+1, tool_bonus \+0\.05", result.stdout)


def test_a_named_attempt_that_is_not_there_is_wrong_use(run: Path) -> None:
    for arguments, said in ((["-n", 99], "line 99"), (["--problem", "nowhere"], "'nowhere'")):
        result = view(run, *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
    result = view(run, "--ended", "tired")
    assert result.exit_code == 2
    assert "max_turns" in result.stderr
    result = view(run.with_name("nothing.jsonl"))
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_bad_lines_are_reported_and_passed_over(run: Path, tmp_path: Path) -> None:
    good = run.read_bytes().splitlines()[0]
    file = tmp_path / "run.jsonl"
    file.write_bytes(b"\n".join([good, b"{", b'{"format_version": 9}', good[:200], good, *[b"\x1b[2J\xff"] * 20]))
    result = view(file)
    assert result.exit_code == 1
    assert rows(result) == [1, 5]
    assert "line 2" in result.stderr
    assert "unknown format_version 9" in result.stderr
    assert "23 lines could not be read" in result.stderr
    assert result.stderr.count("skipped:") == 10
    assert "\x1b" not in result.output


def test_reads_standard_input(run: Path) -> None:
    assert rows(view("-", input=run.read_bytes())) == list(range(1, 21))


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]])
def test_a_pipe_gets_whole_lines_without_colour(arguments: list[str], run: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    done = subprocess.run(
        [*COMMAND, str(run), *arguments],
        capture_output=True, text=True, env={**environment, "TERM": "xterm-256color"}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    if not arguments:
        assert len(done.stdout.splitlines()) == 20  # none was wrapped
        assert max(map(len, done.stdout.splitlines())) > 100


def test_a_reader_that_leaves_early_gets_no_traceback(run: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_bytes(run.read_bytes() * 100)
    with subprocess.Popen([*COMMAND, str(many)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert b"Traceback" not in errors
    assert b"Broken pipe" not in errors


def test_hostile_text_commands_no_terminal(run: Path, tmp_path: Path) -> None:
    attempt = json.loads(run.read_bytes().splitlines()[0])
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e[bold red]\r\n\x00\ud800"
    attempt["problem"]["id"] = attempt["problem"]["question"] = attempt["prompt"] = evil
    attempt["turns"][0]["kept"] = attempt["turns"][0]["text"] = evil
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps(attempt) + "\n")
    result = view(file, "-n", "1")
    assert result.exit_code == 0
    assert not set("\x1b\x07\u202e\x00\r") & set(result.stdout)
    assert result.stdout.count(r"\x1b]0;pwned\a\x1b[2J[U+202E RLO][bold red]") >= 3


class TestPage:
    def test_holds_the_attempts_that_are_wanted(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.html"
        result = view(run, "--tool-used", "--html", out)
        assert result.exit_code == 0, result.output
        assert f"page  {out}" in result.stdout
        text = out.read_text(encoding="utf-8")
        listed = [int(number) for number in re.findall(r'<li data-number="(\d+)"', text)]
        assert listed == rows(view(run, "--tool-used"))
        assert "<h1>run.jsonl</h1>" in text

    def test_says_how_many_lines_are_missing(self, run: Path, tmp_path: Path) -> None:
        file, out = tmp_path / "run.jsonl", tmp_path / "out.html"
        file.write_bytes(b"{\n" + run.read_bytes())
        assert view(file, "--html", out).exit_code == 1
        assert "1 line of the file could not be read" in out.read_text(encoding="utf-8")

    def test_never_writes_over_the_record(self, run: Path) -> None:
        before = run.read_bytes()
        result = view(run, "--html", run)
        assert result.exit_code == 2
        assert "exists" in result.stderr
        assert run.read_bytes() == before

    def test_memory_does_not_grow_with_the_file(self, run: Path, tmp_path: Path) -> None:
        def peak_kb(copies: int) -> int:
            many = tmp_path / "many.jsonl"
            many.write_bytes(run.read_bytes() * copies)
            code = (
                "import resource, sys\nfrom typer.testing import CliRunner\nfrom retool_env.cli import app\n"
                "done = CliRunner().invoke(app, ['view', *sys.argv[1:]])\nassert done.exit_code == 0, done.output\n"
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
            )
            command = [sys.executable, "-c", code, str(many), "--html", str(tmp_path / "out.html")]
            return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)

        few, many = peak_kb(1), peak_kb(100)
        written_kb = (tmp_path / "out.html").stat().st_size / 1024
        assert many - few < written_kb / 4
