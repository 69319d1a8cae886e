"""docs/viewer.md keeps its promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retool_env.report.visible import visible

pytestmark = pytest.mark.once  # a document says the same on every Python

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "viewer.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["view", "play", "demo"])
def test_the_options_exist(command: str) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "retool_env.cli", command, "--help"],
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    lines = re.findall(rf"retool {command}\b[^#|\n]*", "\n".join(re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)))
    assert lines
    options = {option for line in lines for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)}
    assert {option for option in options if not re.search(rf"(?<!\S){option}\b", help_text)} == set()


def test_the_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:scripts|retool_env)/[\w./]+)`", DOCUMENT):
        assert (ROOT / name).exists()
    for name in re.findall(r"\]\(([^)]+)\)", DOCUMENT):
        assert (ROOT / "docs" / name).exists()


def test_hidden_characters_are_named_as_it_says() -> None:
    for char in "\x1b\x00\r\u202e\u2066\u200b\ufeff\U000e0041":
        assert f"`{visible(char)}" in DOCUMENT


def test_the_example_of_a_pipe_works(tmp_path: Path) -> None:
    (tmp_path / "six.jsonl").write_text('{"question": "What is 6 times 7?", "answer": "42"}\n')
    (example,) = re.findall(r"^printf .*$", DOCUMENT, re.MULTILINE)
    command = example.replace("retool play", f'"{sys.executable}" -m retool_env.cli_start play')
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1.05 = base +1, tool_bonus +0.05" in done.stdout
