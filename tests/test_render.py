"""What ``render`` shows. All text in it is untrusted."""

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
    with Sandbox(timeout_s=20) as shared:
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
    for part in ("<script>alert(1)</script>[bold]", "run_code", "print(1)", "observation", "end: answered", "1.05"):
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
