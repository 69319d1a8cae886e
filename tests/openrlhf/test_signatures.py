"""OpenRLHF has what the adapter relies on, in a version that the documents name."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "adapters" / "openrlhf" / "README.md"


def test_nothing_that_is_relied_on_has_changed() -> None:
    from retool_openrlhf.signatures import find_changes

    assert find_changes() == []


def test_the_installed_version_is_one_that_is_named_as_tested() -> None:
    from retool_openrlhf.signatures import TESTED

    version = importlib.metadata.version("openrlhf")
    assert version in TESTED
    text = README.read_text(encoding="utf-8")
    for each in TESTED:
        assert f"| {each} |" in text


def test_a_change_is_said_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    from retool_openrlhf import signatures

    folder = tmp_path / "openrlhf"
    shutil.copytree(signatures._folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(signatures, "_folder", lambda: folder)
    agent = folder / "utils" / "agent.py"
    agent.write_text(agent.read_text().replace("hf_tokenizer, llm_engine, images=None", "tokenizer, engine"))
    loader = folder / "trainer" / "ray" / "vllm_engine.py"
    loader.write_text(loader.read_text().replace("def _load_agent_executor", "def load_agent"))
    changes = signatures.find_changes()
    assert "AgentExecutorBase.execute: lacks the parameters hf_tokenizer, llm_engine, images" in changes[0]
    assert "_load_agent_executor: there is no such thing any more" in changes[1]


def test_the_command_says_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from retool_openrlhf.signatures import main

    assert main() == 0
    assert "(tested)" in capsys.readouterr().out
