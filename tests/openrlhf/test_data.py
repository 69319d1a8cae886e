"""What OpenRLHF's own data sets make of the files that ``retool data`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retool_env.cli_data import RlOptions, SftOptions, write_rl, write_sft
from retool_env.config import EpisodeConfig
from retool_env.errors import ConfigurationError, ProblemError

from ..retool_sft import QUESTION, row  # noqa: TID252 - `tests` is on no path
from ..tokenizers import load  # noqa: TID252
from .engines import ScriptedEngine
from .test_executor import ANSWER, code, go

NAMES = ("small", "qwen2_5", "qwen3", "llama3_2")


@pytest.fixture
def console() -> Any:
    from rich.console import Console

    return Console()


def strategy(**data: Any) -> Any:
    """What OpenRLHF's data sets ask of the strategy: who prints, and the flags."""
    flags = {"input_key": "input", "label_key": "label", "apply_chat_template": False, "output_key": None, **data}
    args = SimpleNamespace(data=SimpleNamespace(**flags), use_ms=False)
    return SimpleNamespace(args=args, is_rank_0=lambda: False, print=lambda *words: None)


def rl_file(tmp_path: Path, console: Any, split: str, loop: str = "retool") -> Path:
    source, out = tmp_path / "problems.jsonl", tmp_path / f"{split}.parquet"
    rows = [{"question": "What is 6 * 7?", "answer": "42"}, {"question": "What is 6 * 8?", "answer": "48"}]
    source.write_text("".join(json.dumps(each) + "\n" for each in rows))
    write_rl(RlOptions("openrlhf", str(source), out, split, loop, {}, {}), console)
    return out


def prompts(path: Path, **data: Any) -> list[Any]:
    """The rows as OpenRLHF's trainer reads them."""
    from openrlhf.datasets import PromptDataset
    from openrlhf.datasets.utils import blending_datasets

    asked = strategy(**data)
    return list(PromptDataset(blending_datasets(str(path), None, asked, 42), load("small"), asked))


@pytest.mark.parametrize(("split", "rewards"), [("train", [1.05, 0.02]), ("test", [1.0, 0.0])])
async def test_problems_go_through_openrlhfs_data_set_into_the_executor(
    make_executor: Callable[..., Any], tmp_path: Path, console: Any, split: str, rewards: list[float]
) -> None:
    """And rows of another split than ``train`` are paid 1.0 or 0.0."""
    rows = prompts(rl_file(tmp_path, console, split))
    engine = ScriptedEngine(load("small"), lambda text, number: ANSWER if number else code("print(6 * 7)"))
    made = [(await go(make_executor(), engine, [prompt], label=label))[0] for _, prompt, label, _ in rows]
    assert [each["scores"] for each in made] == [1.0, 0.0]
    assert [each["reward"] for each in made] == pytest.approx(rewards)
    opened = engine.tokenizer.decode(engine.requests[0].prompt_ids)
    assert "What is 6 * 7?" in opened
    assert "<interpreter>" in opened


def test_the_figures_of_evaluation_have_the_names_of_the_sources(
    tmp_path: Path, console: Any, flash_attn: None
) -> None:
    """pass@1 is the mean of rewards; a shaped reward would make more than 1 of it."""
    import torch
    from openrlhf.trainer.ppo_trainer import compute_eval_metrics

    rows = prompts(rl_file(tmp_path, console, "test"))
    loader = [([source], [prompt], [label], [None]) for source, prompt, label, _ in rows]
    samples = [
        SimpleNamespace(prompts=[prompt], rewards=torch.tensor([paid]), response_length=None, truncated=None)
        for (_, prompt, _, _), paid in zip(rows, (1.0, 0.0), strict=True)
    ]
    figures = compute_eval_metrics(loader, samples, 1)
    assert figures[f"eval_{rows[0][0]}_pass1"] == 0.5
    shaped = [SimpleNamespace(**{**vars(samples[0]), "rewards": torch.tensor([1.2])})] * 2
    assert compute_eval_metrics(loader, shaped, 1)[f"eval_{rows[0][0]}_pass1"] > 1.0


def test_for_openrlhfs_own_loop_the_prompt_is_whole(tmp_path: Path, console: Any) -> None:
    rows = prompts(rl_file(tmp_path, console, "train", "agent_instance"), apply_chat_template=True)
    prompt = rows[0][1]
    assert prompt.startswith("<|im_start|>user\n")
    assert prompt.endswith("<|im_start|>assistant\n")
    assert "<interpreter>" in prompt


async def test_a_chat_template_on_top_is_noticed(
    make_executor: Callable[..., Any], tmp_path: Path, console: Any
) -> None:
    _, prompt, label, _ = prompts(rl_file(tmp_path, console, "train"), apply_chat_template=True)[0]
    with pytest.raises(ConfigurationError, match="apply_chat_template"):
        await go(make_executor(), ScriptedEngine(load("small"), [ANSWER]), [prompt], label=label)


def sft_file(tmp_path: Path, console: Any, protocol: str) -> Path:
    source, out = tmp_path / "sft.jsonl", tmp_path / "sft.parquet"
    source.write_text(json.dumps(row()) + "\n")
    options = SftOptions("openrlhf", str(source), out, None, EpisodeConfig(protocol=protocol))
    assert write_sft(options, console, console) == 0
    return out


def sft_data(tokenizer: Any, path: Path, max_length: int = 8192, **data: Any) -> Any:
    from openrlhf.datasets.utils import blending_datasets
    from retool_openrlhf.sft import ReToolSFTDataset

    asked = strategy(input_key="messages", **data)
    return ReToolSFTDataset(blending_datasets(str(path), None, asked, 42), tokenizer, max_length, asked)


def learned_and_shown(tokenizer: Any, data: Any) -> tuple[str, str]:
    """Returns the text that is learned, and what follows the first token of it and is not."""
    ids, attention, loss = data.collate_fn([data[0]])
    assert ids.shape == attention.shape == loss.shape == (1, ids.shape[1])
    mask = [0, *loss[0, :-1].int().tolist()]  # the loss mask is of the next token
    first = mask.index(1)
    learned = [id for id, wanted in zip(ids[0].tolist(), mask, strict=True) if wanted]
    shown = [id for id, wanted in zip(ids[0].tolist()[first:], mask[first:], strict=True) if not wanted]
    return tokenizer.decode(learned), tokenizer.decode(shown)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_not_learned_with_code_tags(tmp_path: Path, console: Any, name: str) -> None:
    tokenizer = load(name)
    learned, shown = learned_and_shown(tokenizer, sft_data(tokenizer, sft_file(tmp_path, console, "code_tags")))
    for text in ("First I multiply.", "print(6 * 7)", "</code>", "Then I divide.", "\\boxed{42}", "</answer>"):
        assert text in learned
        assert text not in shown
    for text in ("<interpreter>", "ZeroDivisionError", "</interpreter>"):
        assert text not in learned
        assert text in shown
    assert learned.endswith("</answer>" + tokenizer.eos_token)
    assert QUESTION not in learned + shown


@pytest.mark.parametrize("name", NAMES)
def test_tool_messages_are_not_learned_and_tools_are_shown(tmp_path: Path, console: Any, name: str) -> None:
    tokenizer = load(name)
    data = sft_data(tokenizer, sft_file(tmp_path, console, "tool_calls"))
    learned, shown = learned_and_shown(tokenizer, data)
    assert "ZeroDivisionError" in shown
    assert "ZeroDivisionError" not in learned
    assert learned.count("<tool_call>") == learned.count("</tool_call>") == 2
    assert learned.count(tokenizer.eos_token) == 3
    assert "\\boxed{42}" in learned
    ids, mask = data.items[0]
    assert "code_interpreter" in tokenizer.decode(ids[: mask.index(1)])


@pytest.mark.parametrize("protocol", ["code_tags", "tool_calls"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_demonstration_has_the_tokens_of_an_attempt(
    make_executor: Callable[..., Any], tmp_path: Path, console: Any, name: str, protocol: str
) -> None:
    """An attempt that goes as the demonstration does, with its outputs, has the same ids and the same mask."""
    tokenizer = load(name)
    [(ids, mask)] = sft_data(tokenizer, sft_file(tmp_path, console, protocol)).items
    spans = [at for at in range(1, len(mask)) if mask[at] and not mask[at - 1]]
    turns = [ids[at : mask.index(0, at) if 0 in mask[at:] else len(ids)] for at in spans]
    assert len(turns) == 3
    engine = ScriptedEngine(tokenizer, [])
    engine._script = lambda text, number: tokenizer.decode(turns[number], skip_special_tokens=True)
    [made] = await go(make_executor(protocol=protocol), engine, [QUESTION], label="42", max_length=8192)
    n = spans[1]
    assert made["observation_tokens"][:n] == ids[:n]  # through the first output: the second is a real traceback
    assert made["action_ranges"][0] == (spans[0], spans[0] + len(turns[0]))


def test_a_turn_ends_as_the_chat_template_has_it(tmp_path: Path, console: Any) -> None:
    """The tokenizers of base models end texts with another token."""
    import copy

    tokenizer = copy.deepcopy(load("small"))
    tokenizer.eos_token = "<|endoftext|>"
    for protocol, n in (("code_tags", 1), ("tool_calls", 3)):
        folder = tmp_path / protocol
        folder.mkdir()
        learned, _ = learned_and_shown(tokenizer, sft_data(tokenizer, sft_file(folder, console, protocol)))
        assert learned.endswith("<|im_end|>")
        assert learned.count("<|im_end|>") == n


def test_what_is_too_long_is_cut_and_ends_without_an_end(tmp_path: Path, console: Any) -> None:
    tokenizer = load("small")
    path = sft_file(tmp_path, console, "code_tags")
    [(whole, mask)] = sft_data(tokenizer, path).items
    n = mask.index(1) + 5
    [(ids, _)] = sft_data(tokenizer, path, n).items
    assert ids == whole[:n]
    assert ids[-1] != tokenizer.eos_token_id
    with pytest.raises(ConfigurationError, match=r"--data\.max_len"):
        sft_data(tokenizer, path, mask.index(1))


def test_a_wrong_column_is_said(tmp_path: Path, console: Any) -> None:
    from openrlhf.datasets.utils import blending_datasets
    from retool_openrlhf.sft import ReToolSFTDataset

    asked = strategy(input_key="prompt")
    data = blending_datasets(str(sft_file(tmp_path, console, "code_tags")), None, asked, 42)
    with pytest.raises(ConfigurationError, match="'prompt'"):
        ReToolSFTDataset(data, load("small"), 1024, asked)


@pytest.mark.parametrize("change", [{"messages": None}, {"messages": []}, {"tools": "{"}])
def test_a_row_that_is_no_conversation_is_said(change: dict[str, Any]) -> None:
    import datasets
    from retool_openrlhf.sft import ReToolSFTDataset

    whole = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "tools": ""}
    data = datasets.Dataset.from_list([whole, {**whole, **change}])
    with pytest.raises(ProblemError, match="row 1"):
        ReToolSFTDataset(data, load("small"), 1024, strategy(input_key="messages"))


def test_openrlhfs_own_data_set_would_teach_the_outputs(tmp_path: Path, console: Any) -> None:
    """Why there is a data set of ours; should this fail, OpenRLHF has a way of its own by now."""
    from openrlhf.datasets import SFTDataset
    from openrlhf.datasets.utils import blending_datasets

    tokenizer = load("small")
    asked = strategy(input_key="messages", apply_chat_template=True)
    rows = blending_datasets(str(sft_file(tmp_path, console, "code_tags")), None, asked, 42)
    data = SFTDataset(rows, tokenizer, 8192, asked, multiturn=True, num_processors=None)
    learned, _ = learned_and_shown(tokenizer, data)
    assert "ZeroDivisionError" in learned


def test_the_command_trains_with_this_data_set(monkeypatch: pytest.MonkeyPatch, flash_attn: None) -> None:
    """OpenRLHF's own command runs, up to where it would set up DeepSpeed, with the data set in its namespace."""
    import sys

    import openrlhf.datasets
    import openrlhf.utils
    from retool_openrlhf.sft import ReToolSFTDataset, main

    seen: list[Any] = []

    def stop(args: Any) -> None:
        seen.append((sys._getframe(1).f_globals["SFTDataset"], args.data.input_key))
        raise KeyboardInterrupt

    monkeypatch.setattr(openrlhf.datasets, "SFTDataset", openrlhf.datasets.SFTDataset)
    monkeypatch.setattr(openrlhf.utils, "get_strategy", stop)
    monkeypatch.setattr(sys, "argv", ["sft", "--data.input_key", "messages"])
    with pytest.raises(KeyboardInterrupt):
        main()
    assert seen == [(ReToolSFTDataset, "messages")]
