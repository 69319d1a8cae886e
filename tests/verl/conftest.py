"""The real verl with a scripted server: its configuration, a small model's folder, and a worker in this process."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retool_env.shared_sandbox import close_shared_sandboxes

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path

PACKAGES = ("verl", "torch", "ray", "transfer_queue", "hydra", "datasets")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.verl)


@pytest.fixture(scope="session", autouse=True)
def _verl(pytestconfig: pytest.Config) -> None:
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            missing = f"{package} is not installed: make an environment with scripts/setup_verl.sh"
            if pytestconfig.getoption("--require-verl"):
                pytest.fail(f"the tests in the real verl are required: {missing}", pytrace=False)
            pytest.skip(missing)


@pytest.fixture(scope="session", autouse=True)
def _no_traces(_verl: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """verl reads parquet through ``datasets``, which keeps a copy."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = str(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session", autouse=True)
def _sandboxes() -> Any:
    yield
    close_shared_sandboxes()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that makes a model's folder: a tiny Qwen2's configuration, the tokenizer of that name."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            from transformers import Qwen2Config

            tokenizer = load(name)
            folder = made[name] = tmp_path_factory.mktemp(name)
            tokenizer.save_pretrained(folder)
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                architectures=["Qwen2ForCausalLM"],
            ).save_pretrained(folder)
        return made[name]

    return make


@pytest.fixture(scope="session")
def compose_config(model_folder: Callable[[str], Path]) -> Callable[..., Any]:
    """Returns a function that composes verl's own configuration for a model; each kind once, for it takes a while."""

    @cache
    def compose_once(name: str, overrides: tuple[str, ...]) -> Any:
        import verl.trainer.config
        from hydra import compose, initialize_config_dir

        [folder] = verl.trainer.config.__path__
        with initialize_config_dir(config_dir=folder, version_base=None):
            return compose(
                "ppo_trainer",
                overrides=[
                    f"actor_rollout_ref.model.path={model_folder(name)}",
                    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
                    "actor_rollout_ref.rollout.name=vllm",
                    "actor_rollout_ref.rollout.prompt_length=1024",
                    "actor_rollout_ref.rollout.response_length=512",
                    "actor_rollout_ref.rollout.calculate_log_probs=true",
                    "actor_rollout_ref.rollout.agent.num_workers=1",
                    "actor_rollout_ref.rollout.agent.default_agent_loop=retool",
                    *overrides,
                ],
            )

    return compose_once


@pytest.fixture
def make_config(compose_config: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Returns a function that gives verl's configuration with an agent loop entry of given keys."""

    def make(*overrides: str, name: str = "small", **keys: Any) -> Any:
        from omegaconf import OmegaConf

        entry = {"name": "retool", "_target_": "retool_verl.loop.RetoolAgentLoop", "resume_pause_s": 0.0, **keys}
        path = tmp_path / "retool.yaml"
        OmegaConf.save(OmegaConf.create([entry]), path)
        config = copy.deepcopy(compose_config(name, overrides))
        config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(path)
        return config

    return make
