"""What ``render`` shows. All text in it is untrusted."""

import html
import io
import re
import sys
from collections.abc import Iterator

import pytest

from retool_env.env import ReToolEnv
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"


def code(source: str) -> str:
    return f"<code>\n```python\n{source}\n```\n</code>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20, preload=()) as shared:
        yield shared


HOSTILE = "\x1b[2J<script>alert(1)</script>\u202e[bold]"


def test_text_cannot_command_the_terminal(sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, render_mode="ansi")
    env.reset(options={"problem": {"question": HOSTILE, "answer": "42"}})
    env.step(HOSTILE + code("print(1)"))
    env.step(ANSWER)
    shown = env.render()
    assert isinstance(shown, str)
    assert not set("\x1b\u202e") & set(shown)
    for part in (
        r"\x1b[2J<script>alert(1)</script>[U+202E RLO][bold]",
        "run_code",
        "print(1)",
        "observation",
        "end: answered",
        "1.05",
    ):
        assert part in shown


def test_text_cannot_write_html(sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, render_mode="html")
    env.reset(options={"problem": {"question": HOSTILE, "answer": "42", "id": "<b>"}})
    env.step(HOSTILE + code("print(1)"))
    shown = env.render()
    assert isinstance(shown, str)
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown
    assert not set("\x1b\u202e") & set(shown)
    assert shown.startswith("<article")


def test_human_rendering_prints_what_is_new_at_each_step(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, render_mode="human")
    env.reset(options={"problem": 6})
    assert "What is 6 * 7?" in capsys.readouterr().out
    env.step(HOSTILE + code("print(1)"))
    printed = capsys.readouterr().out
    assert "What is 6 * 7?" not in printed
    assert not set("\x1b\u202e") & set(printed)
    assert "[bold]" in printed
    env.step(ANSWER)
    printed = capsys.readouterr().out
    assert "1.05" in printed
    assert "print(1)" not in printed
    assert env.render() is None


def test_all_modes_show_the_same(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, render_mode="human")
    env.reset(options={"problem": 6})
    env.step("Let me see." + code("import sys\nprint('out' * 600)\nsys.exit(3)"))
    env.step("<code></code>")
    env.step(ANSWER)
    shown = {"human": capsys.readouterr().out}
    for mode in ("ansi", "html"):
        env.render_mode = mode
        shown[mode] = str(env.render())
    without_spans = re.sub(r"</?span[^>]*>", "", shown["html"])
    shown["html"] = html.unescape(re.sub(r"<[^>]*>", "\n", without_spans))
    words = {mode: re.findall(r"[\w.:+=]+", text) for mode, text in shown.items()}
    assert words["human"] == words["ansi"] == words["html"]
    for part in ("What is 6 * 7?", "Let me see.", "interpreter: error", "exit code 3", "out" * 600, "turn 2: feedback"):
        assert part in shown["ansi"]
    assert "1.05 = base +1, tool_bonus +0.05" in shown["ansi"]


def test_human_rendering_raises_in_no_encoding(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, render_mode="human")
    env.reset(seed=0)
    env.step("½ \N{GRINNING FACE}")
    sys.stdout.flush()
    assert rb"\xbd \U0001f600" in printed.getvalue()
