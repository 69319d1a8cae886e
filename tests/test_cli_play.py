"""``retool play`` in a real terminal: a person types, the sandbox runs, the reward comes."""

from __future__ import annotations

import json
import os
import re
import readline
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from retool_env.trajectory import read_jsonl

COMMAND = [sys.executable, "-m", "retool_env.cli_start", "play"]
ASKED = r"your turn, (\d+) of \d+[^\n]*\r\n.*> "

Play = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [
        {"question": "What is 6 times 7?\x1b[2J\u202e", "answer": "42"},
        {"question": "What is 20 plus 1?", "answer": "21"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def play(problems: Path) -> Iterator[Play]:
    """Returns a function that starts the command in a terminal of its own."""
    started = []

    def start(*arguments: object, term: str = "dumb") -> pexpect.spawn[str]:
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "--problems", str(problems), *map(str, arguments)],
            encoding="utf-8",
            timeout=60,
            dimensions=(50, 200),
            env={**os.environ, "TERM": term, "INPUTRC": "/dev/null"},
        )
        child.delaybeforesend = None
        started.append(child)
        return child

    yield start
    for child in started:
        if child.isalive():
            child.kill(signal.SIGKILL)
            child.wait()  # close would give it a tenth of a second, which is not enough on a busy machine
        child.close()


def left(child: pexpect.spawn[str]) -> tuple[str, int | None]:
    """What else it says, and its exit code."""
    child.expect(pexpect.EOF)
    child.close()
    return child.before or "", child.exitstatus


def test_a_person_solves_a_problem_with_the_tool(play: Play, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    child = play("--out", out)
    child.expect(ASKED)
    before = child.before + child.after
    assert "What is 6 times 7?" in before
    assert "a line with only a dot (.) ends it" in before
    assert "Ctrl-D gives up" in before
    for line in ("I compute.", "<code>", "print(6 * 7)", "</code>", "."):
        child.sendline(line)
    child.expect(ASKED)
    assert child.match[1] == "2"
    said = child.before
    assert re.search(r"interpreter: ok.* ms", said)
    assert "<interpreter>\r\n42\r\n</interpreter>" in said
    child.sendline(r"So <answer>\boxed{42}</answer>")
    child.sendline(".")
    said, code = left(child)
    assert code == 0
    assert "grade: correct" in said
    assert re.search(r"reward +1\.05 = base \+1, tool_bonus \+0\.05", said)
    (attempt,) = read_jsonl(out)
    assert [turn.text for turn in attempt.turns] == [
        "I compute.\n<code>\nprint(6 * 7)\n</code>",
        r"So <answer>\boxed{42}</answer>",
    ]


def test_control_d_gives_up_and_the_next_problem_comes(play: Play) -> None:
    child = play("-n", 2)
    child.expect(ASKED)
    child.sendline("I begin, and")
    child.expect("> ")
    child.sendeof()
    child.expect(r"end: aborted.*gold +42.*What is 20 plus 1\?.*your turn, 1 of")
    child.expect("> ")
    child.sendline(r"<answer>\boxed{22}</answer>")
    child.sendline(".")
    said, code = left(child)
    assert code == 0
    assert re.search(r"gold +21", said)
    assert re.search(r"verdict +wrong", said)


def test_control_c_at_the_prompt_leaves_cleanly(play: Play, tmp_path: Path) -> None:
    child = play("--out", tmp_path / "out.jsonl")
    child.expect(ASKED)
    child.sendintr()
    said, code = left(child)
    assert code == 130
    assert not (tmp_path / "out.jsonl").exists()
    assert "interrupted" in said
    assert "Traceback" not in said


def test_control_c_while_code_runs_leaves_cleanly(play: Play) -> None:
    child = play("--timeout-s", 50)
    child.expect(ASKED)
    for line in ("<code>", "while True: pass", "</code>", "."):
        child.sendline(line)
    pid = child.pid
    _wait_for_a_child(pid)
    child.sendintr()
    said, code = left(child)
    assert code == 130
    assert "Traceback" not in said
    assert _session_of(pid) == []


def _wait_for_a_child(pid: int) -> None:
    """Waits until the command has begun to start a sandbox."""
    while not Path(f"/proc/{pid}/task/{pid}/children").read_text():
        os.sched_yield()


def _session_of(pid: int) -> list[str]:
    """The processes whose parent is that one, or that are of its process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if str(pid) in (fields[1], fields[2], fields[3]) and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.skipif("libedit" in (readline.__doc__ or ""), reason="only GNU readline knows where a paste ends")
def test_a_paste_may_hold_several_turns(play: Play, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    child = play("--out", out, term="xterm")
    child.expect("ends it.*> ")
    turns = ["<code>\nprint(6 * 7)\n</code>", "<answer>\\boxed{42}</answer>"]
    child.send("\x1b[200~" + "".join(f"{turn}\n.\n" for turn in turns) + "\x1b[201~\n")
    said, code = left(child)
    assert code == 0, said
    (attempt,) = read_jsonl(out)
    assert [turn.text for turn in attempt.turns] == turns


def test_nothing_from_a_problem_or_a_program_commands_the_terminal(play: Play) -> None:
    child = play()
    child.expect(ASKED)
    before = child.before
    assert r"What is 6 times 7?\x1b[2J[U+202E RLO]" in before
    for line in ("<code>", "print('\\x1b]0;pwned\\x07\\u202eevil')", "raise ValueError('\\x1b[2J')", "</code>", "."):
        child.sendline(line)
    child.expect(ASKED)
    assert "evil" in child.before
    for text in (before, child.before):
        assert not set("\x1b\x07\u202e") & set(text)


def test_what_is_written_past_the_turn_is_told(play: Play) -> None:
    child = play()
    child.expect(ASKED)
    for line in ("<code>print(1)</code>", "<interpreter>7</interpreter>", "."):
        child.sendline(line)
    child.expect(ASKED)
    assert "invents tool output" in child.before
    assert "written past the turn, dropped" in child.before


def test_a_dot_can_be_written(play: Play, tmp_path: Path) -> None:
    child = play("--out", tmp_path / "out.jsonl")
    child.expect(ASKED)
    for line in ("..", "...", " .", ".5", "."):
        child.sendline(line)
    assert left(child)[1] == 0
    (attempt,) = read_jsonl(tmp_path / "out.jsonl")
    assert attempt.turns[0].text == ".\n...\n .\n.5"


@pytest.mark.parametrize("protocol", ["tool_calls", "markdown"])
def test_every_protocol_can_be_played(protocol: str, play: Play) -> None:
    turns = {
        "tool_calls": ['<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6*7)"}}</tool_call>'],
        "markdown": ["```python", "print(6*7)", "```"],
    }
    child = play("--protocol", protocol)
    child.expect(ASKED)
    for line in (*turns[protocol], "."):
        child.sendline(line)
    child.expect(ASKED)
    assert "interpreter: ok" in child.before
    assert "42" in child.before


def _piped(problems: Path, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--problems", str(problems), *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60)


def test_turns_can_come_from_a_pipe(problems: Path) -> None:
    typed = "<code>\nx = 6\n</code>\n.\n<code>\nprint(x * 7)\n</code>\n.\n<answer>\\boxed{42}</answer>\n.\n"
    done = _piped(problems, typed, "--interpreter", "session")
    assert done.returncode == 0, done.stderr
    assert "<interpreter>\n42\n</interpreter>" in done.stdout
    assert "1.1 = base +1, tool_bonus +0.1" in done.stdout
    assert "\x1b" not in done.stdout


def test_text_of_any_encoding_can_be_typed_and_shown(problems: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = subprocess.run(
        [*COMMAND, "--problems", str(problems), "--out", str(out)],
        input="é\n".encode("latin-1") + "é\n<answer>\\boxed{42}</answer>\n.\n".encode(),
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    (attempt,) = read_jsonl(out)
    assert attempt.turns[0].text.startswith("\N{REPLACEMENT CHARACTER}\né\n")
    shown = subprocess.run(
        [sys.executable, "-m", "retool_env.cli_start", "view", str(out), "-n", "1"],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert shown.returncode == 0, shown.stderr
    assert rb"\xe9" in shown.stdout


def test_without_an_input_it_says_so(problems: Path) -> None:
    for command in ([*COMMAND, "--problems", str(problems)], [*COMMAND[:-1], "view", "-"]):
        closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
        done = subprocess.run(closed, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stderr
        assert "standard input is closed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--protocol", "morse"], "code_tags"),
        (["--tier", "cardboard"], "landlock"),
        (["--interpreter", "immortal"], "'session'"),
        (["--out", "/proc/retool.jsonl"], "--out"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], said: str, problems: Path) -> None:
    done = _piped(problems, "", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_empty_file_is_left(problems: Path, tmp_path: Path) -> None:
    done = _piped(problems, "", "--out", str(tmp_path / "new.jsonl"), "--protocol", "morse")
    assert done.returncode == 2
    assert not (tmp_path / "new.jsonl").exists()
