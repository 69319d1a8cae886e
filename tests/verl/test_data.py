"""What verl's own data sets make of the files that ``retool data`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retool_env.cli_data import RlOptions, SftOptions, write_rl, write_sft
from retool_env.config import EpisodeConfig

from ..retool_sft import row  # noqa: TID252 - `tests` is on no path
from ..tokenizers import load  # noqa: TID252
from .test_worker import ANSWER, Worker, code

CHATML = ("small", "qwen2_5", "qwen3")


@pytest.fixture
def console() -> Any:
    from rich.console import Console

    return Console()


async def test_problems_go_through_verls_data_set_into_the_loop(
    make_config: Callable[..., Any], tmp_path: Path, console: Any
) -> None:
    from verl.protocol import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    source, out = tmp_path / "problems.jsonl", tmp_path / "train.parquet"
    rows = [{"question": "What is 6 * 7?", "answer": "42"}, {"question": "What is 6 * 8?", "answer": "48"}]
    source.write_text("".join(json.dumps(each) + "\n" for each in rows))
    write_rl(RlOptions("verl", str(source), out, "train", "retool", {}, {}), console)
    config = make_config(f"data.train_files={out}")
    worker = Worker(config, lambda text, number: ANSWER if number else code("print(6 * 7)"))
    data = RLHFDataset(data_files=str(out), tokenizer=worker.tokenizer, config=config.data)
    batch = DataProto.from_single_dict(collate_fn([data[0], data[1]]))
    made = await worker.worker.generate_sequences(batch)
    assert made.non_tensor_batch["acc"].tolist() == [1.0, 0.0]
    prompts = [worker.tokenizer.decode(request.prompt_ids) for request in worker.servers.requests]
    for each in rows:
        assert any(each["question"] in prompt and "<interpreter>" in prompt for prompt in prompts)


def sft_file(tmp_path: Path, console: Any, protocol: str) -> Path:
    source, out = tmp_path / "sft.jsonl", tmp_path / "sft.parquet"
    source.write_text(json.dumps(row()) + "\n")
    assert (
        write_sft(SftOptions("verl", str(source), out, None, EpisodeConfig(protocol=protocol)), console, console) == 0
    )
    return out


def item(tokenizer: Any, path: Path) -> tuple[str, str]:
    """Returns the text that is learned, and what follows the first token of it and is not."""
    from omegaconf import OmegaConf
    from retool_verl.sft import ReToolSFTDataset

    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 8192, "ignore_input_ids_mismatch": True})
    data = ReToolSFTDataset(parquet_files=str(path), tokenizer=tokenizer, config=config)
    made = data[0]
    ids, mask = made["input_ids"].tolist(), made["loss_mask"].tolist()
    first = mask.index(1)
    learned = [id for id, wanted in zip(ids, mask, strict=True) if wanted]
    shown = [id for id, wanted in zip(ids[first:], mask[first:], strict=True) if not wanted]
    return tokenizer.decode(learned), tokenizer.decode(shown)


@pytest.mark.parametrize("name", CHATML)
def test_outputs_are_not_learned_with_code_tags(tmp_path: Path, console: Any, name: str) -> None:
    learned, shown = item(load(name), sft_file(tmp_path, console, "code_tags"))
    for text in ("First I multiply.", "print(6 * 7)", "</code>", "Then I divide.", "\\boxed{42}", "</answer>"):
        assert text in learned
        assert text not in shown
    for text in ("<interpreter>", "ZeroDivisionError", "</interpreter>"):
        assert text not in learned
        assert text in shown


@pytest.mark.parametrize("name", CHATML)
def test_tool_messages_are_not_learned(tmp_path: Path, console: Any, name: str) -> None:
    learned, shown = item(load(name), sft_file(tmp_path, console, "tool_calls"))
    assert "ZeroDivisionError" in shown
    assert "ZeroDivisionError" not in learned
    assert learned.count("<tool_call>") == 2
    assert "\\boxed{42}" in learned


def test_verls_own_data_set_would_teach_the_outputs(tmp_path: Path, console: Any) -> None:
    """Why there is a data set of ours; should this fail, verl has a way of its own by now."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    tokenizer = load("small")
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 8192})
    path = sft_file(tmp_path, console, "code_tags")
    made = MultiTurnSFTDataset(parquet_files=str(path), tokenizer=tokenizer, config=config)[0]
    learned = tokenizer.decode(made["input_ids"][made["loss_mask"].bool()].tolist())
    assert "ZeroDivisionError" in learned
