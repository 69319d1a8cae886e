"""The agent files in OpenRLHF's own loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError

FOLDER = Path(__file__).parents[2] / "adapters" / "openrlhf" / "retool_openrlhf"


def test_the_executor_is_loaded_and_built_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
    from retool_openrlhf.executor import RetoolExecutor

    monkeypatch.setenv("RETOOL_AGENT_MAX_TURNS", "3")
    executor = _load_agent_executor(str(FOLDER / "agent_func.py"))
    assert isinstance(executor, RetoolExecutor)
    assert executor._settings.attempt.episode.max_turns == 3


def test_the_instance_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
    from retool_openrlhf.instance import RetoolInstance

    monkeypatch.setenv("RETOOL_AGENT_REWARD", "paper")
    executor = _load_agent_executor(str(FOLDER / "instance_func.py"))
    assert issubclass(executor.agent_instance_cls, RetoolInstance)
    assert executor.agent_instance_cls()._settings.attempt.episode.reward == "paper"


@pytest.mark.parametrize(
    ("file", "variable", "value"),
    [
        ("agent_func.py", "RETOOL_AGENT_MAX_TURN", "3"),
        ("agent_func.py", "RETOOL_AGENT_REWARD", "mine"),
        ("instance_func.py", "RETOOL_AGENT_PROTOCOL", "tool_calls"),
        ("instance_func.py", "RETOOL_AGENT_INTERPRETER", "session"),
    ],
)
def test_a_mistake_is_an_error_when_the_file_is_loaded(
    monkeypatch: pytest.MonkeyPatch, file: str, variable: str, value: str
) -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError):
        _load_agent_executor(str(FOLDER / file))


def test_why_the_files_only_import(tmp_path: Path) -> None:
    """OpenRLHF does not put the file into ``sys.modules``; should this fail, it does by now."""
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    file = tmp_path / "agent.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from openrlhf.utils.agent import AgentExecutorBase\n"
        "@dataclass\nclass Settings:\n    a: ClassVar[int] = 1\n"
        "class AgentExecutor(AgentExecutorBase):\n    async def execute(self): ...\n"
    )
    with pytest.raises(AttributeError):
        _load_agent_executor(str(file))
