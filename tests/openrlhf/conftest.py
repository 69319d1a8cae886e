"""The real OpenRLHF with a scripted engine: its SamplingParams, its agent loader, and executors in this process."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retool_env.shared_sandbox import close_shared_sandboxes

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path

BLOCK = "<code>print(6 * 7)</code>"
"""What the model of ``model_folder`` writes after a line feed."""

PACKAGES = ("openrlhf", "torch", "vllm", "ray", "deepspeed", "datasets")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.openrlhf)


@pytest.fixture(scope="session", autouse=True)
def _openrlhf(pytestconfig: pytest.Config) -> None:
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            missing = f"{package} is not installed: make an environment with scripts/setup_openrlhf.sh"
            if pytestconfig.getoption("--require-openrlhf"):
                pytest.fail(f"the tests in the real OpenRLHF are required: {missing}", pytrace=False)
            pytest.skip(missing)


@pytest.fixture(scope="session", autouse=True)
def _no_traces(_openrlhf: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """OpenRLHF reads parquet through ``datasets``, which keeps a copy."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = str(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session", autouse=True)
def _sandboxes() -> Any:
    yield
    close_shared_sandboxes()


@pytest.fixture(scope="session")
def flash_attn() -> None:
    """Stands in for flash-attn, which has no build for a CPU: names that OpenRLHF's models import, and call for packed
    samples only."""
    if importlib.util.find_spec("flash_attn") is not None:
        return
    names = {
        "flash_attn": (),
        "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
        "flash_attn.utils": (),
        "flash_attn.utils.distributed": ("all_gather",),
    }
    for name, functions in names.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=not functions)
        module.__path__ = []
        for function in functions:
            setattr(module, function, None)
        sys.modules[name] = module


@pytest.fixture
def make_executor() -> Callable[..., Any]:
    """Returns a function that makes an executor of given keys."""

    def make(**keys: Any) -> Any:
        from retool_openrlhf.executor import RetoolExecutor
        from retool_openrlhf.options import read_options

        return RetoolExecutor(read_options({"resume_pause_s": 0.0, **keys}))

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: the small tokenizer, and a tiny Qwen2 that answers every line feed with a block of code.

    Its layers add nothing, its embeddings are one-hot and its head maps each token of the block to the next, with some
    noise: what it writes is known, and its logprobs are not trivial.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    tokenizer = load("small")
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).float()
    chain = tokenizer.encode("\n" + BLOCK, add_special_tokens=False)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokenizer), 384))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.normal_(0, 0.05)
        for id, after in itertools.pairwise(chain):
            model.lm_head.weight[after, id] = 1.0
    model.save_pretrained(folder)
    return folder
