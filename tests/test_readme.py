"""The README keeps its promises: its example runs, its reward table is the one in force, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from retool_env.protocol.base import EndReason
from retool_env.reward import RewardFacts, tool_aware

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _example() -> str:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert isinstance(example, str)
    return example


def test_the_example_works_when_pasted(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::UserWarning", "-c", _example()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "5117" in done.stdout
    assert "<interpreter>" in done.stdout
    assert done.stdout.splitlines()[-1] == "1.05 True"
    assert done.stderr == ""


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
