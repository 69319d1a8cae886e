"""verl has what the adapter relies on, in a version that the documents name."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "adapters" / "verl" / "README.md"


def test_nothing_that_is_relied_on_has_changed() -> None:
    from retool_verl.signatures import find_changes

    assert find_changes() == []


def test_the_installed_version_is_one_that_is_named_as_tested() -> None:
    from retool_verl.signatures import IN_PART, TESTED

    version = importlib.metadata.version("verl")
    assert version in (*TESTED, *IN_PART)
    named = re.findall(r"^\| (\d[\d.]*) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [*TESTED, *IN_PART]


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.9.1", "(tested)"), ("0.8.0", "(tested but for what it does not have)"), ("0.7.0", "0.9.1, 0.9.0, 0.8.0")],
)
def test_the_command_says_what_was_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, said: str
) -> None:
    from retool_verl.signatures import main

    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert main() == 0
    assert said in capsys.readouterr().out


def test_a_change_is_said_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from retool_verl.signatures import find_changes
    from verl.experimental.agent_loop import agent_loop
    from verl.workers.rollout import llm_server

    async def run(self: Any, sampling: dict[str, Any]) -> None: ...

    monkeypatch.setattr(agent_loop.AgentLoopBase, "run", run)
    monkeypatch.delattr(llm_server.LLMServerClient, "generate")
    first, second = find_changes()
    assert "AgentLoopBase.run: lacks the parameters sampling_params, kwargs (it has self, sampling)" in first
    assert "LLMServerClient.generate: there is no such thing any more" in second
