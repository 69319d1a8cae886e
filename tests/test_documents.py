"""The examples of the manual's pages run as they stand, and print what they say they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once  # a document says the same on every Python

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("vector.md", "group.md")
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in PAGES
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_and_prints_what_it_says(example: str, tmp_path: Path) -> None:
    if "retool_env.group" in example:
        pytest.importorskip("pettingzoo", reason="needs the extra `multiagent`")
    command = [sys.executable, "-W", "error::UserWarning", "-c", example]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.splitlines()
    said = re.findall(r"^print\(.*\)  # (.*)$", example, flags=re.MULTILINE)
    assert said
    assert [line for line in printed if line in said] == said


def test_every_page_has_examples() -> None:
    assert {str(example.id).split("-")[0] for example in EXAMPLES} == set(PAGES)
