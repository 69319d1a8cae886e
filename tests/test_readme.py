"""The README keeps its promises: its example runs, its reward table is the one in force, its links lead somewhere."""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retool_env.protocol.base import EndReason
from retool_env.reward import RewardFacts, tool_aware

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _examples() -> list[str]:
    examples: list[str] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(examples) == 2
    return examples


def _example() -> str:
    return _examples()[0]


def test_the_example_works_when_pasted(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::UserWarning", "-c", _example()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "5117" in done.stdout
    assert "<interpreter>" in done.stdout
    assert done.stdout.splitlines()[-1] == "1.05 True"
    assert done.stderr == ""


def test_the_example_of_a_file_works_beside_it(tmp_path: Path) -> None:
    (tmp_path / "aime.jsonl").write_text('{"ID": 1, "Problem": "What is 6 times 7?", "Integer Answer": 42}\n')
    code = f"import gymnasium as gym\nimport retool_env\n{_examples()[1]}\nprint(env.reset(seed=0)[0])\nenv.close()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Problem:\nWhat is 6 times 7?\n")


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_files_that_are_named_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:retool_env|tests|scripts|benchmarks|docs|adapters)/[\w./-]+)`", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    # design.md calls the modules by their name within the package or a room of it.
    modules = {path.name for path in (ROOT / "retool_env").rglob("*.py")}
    code = {name for name in re.findall(r"`([\w/]+\.py)`", text) if not name.startswith("tests/")}
    assert {name.rpartition("/")[2] for name in code} - modules == set()


def test_the_design_names_every_module_at_the_top() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w*/]+\.py)`", text)
    top = [path.name for path in (ROOT / "retool_env").glob("[!_]*.py")]
    assert [name for name in top if not any(fnmatch.fnmatch(name, pattern) for pattern in named)] == []


def test_the_options_of_the_command_exist() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "retool_env.cli", "demo", "--help"],
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    options = set(re.findall(r"(?<!\S)--[a-z-]+", " ".join(re.findall(r"retool demo[^`\n]*", README))))
    assert options >= {"--base-url", "--question-column"}
    assert {option for option in options if option not in help_text} == set()


def test_the_example_is_short() -> None:
    lines = [line for line in _example().splitlines() if line.strip()]
    assert len(lines) <= 15


@pytest.mark.parametrize("name", ["demo", "test", "doctor"])
def test_the_commands_are_targets_of_the_makefile(name: str) -> None:
    assert f"make {name}" in README
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (path.parent / target).exists()] == []


def _reward_rows() -> dict[tuple[bool, bool], str]:
    rows = re.findall(r"^\| (correct|wrong) \| (no|yes) \| (.+?) \|$", README, flags=re.MULTILINE)
    return {(answer == "correct", tool == "yes"): formula for answer, tool, formula in rows}


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("calls", [0, 1, 2, 4, 5, 6, 16])
def test_the_reward_table_is_the_one_in_force(correct: bool, calls: int) -> None:
    facts = RewardFacts(
        correct=correct,
        answer="1",
        ended=EndReason.ANSWERED,
        interpreter_calls=calls,
        tool_calls=calls,
        turns=calls + 1,
        observations=calls,
        fabricated=False,
    )
    formula = _reward_rows()[correct, calls > 0]
    stated = eval(formula.replace("×", "*"), {"__builtins__": {}, "min": min, "turns": calls})
    assert sum(tool_aware(facts).values()) == pytest.approx(stated)
