"""What reaches the loss: a real small model behind the engine, OpenRLHF's own advantages and loss, and a real step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .engines import Request, ScriptedEngine, output
from .test_executor import ANSWER, QUESTION, WRONG, code, experience, go

pytestmark = pytest.mark.usefixtures("flash_attn")

ENDINGS = {"(a)": ANSWER, "(b)": ANSWER, "(c)": WRONG, "(d)": WRONG, "(lost)": ValueError("refused")}


@pytest.fixture
def model() -> Any:
    """A tiny model of random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    tokenizer = load("small")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    return Qwen2ForCausalLM(config).float().eval()


class ModelEngine(ScriptedEngine):
    """Has a model write every turn itself, or score the turns of the script."""

    def __init__(self, model: Any, script: Any, *, sampled: bool):
        super().__init__(load("small"), script)
        self._model = model
        self._sampled = sampled

    def answer(self, request: Request, ids: list[int], reason: str) -> Any:
        import torch

        prompt = request.prompt_ids
        if self._sampled:
            n = min(48, request.sampling_params.max_tokens)
            whole = self._model.generate(torch.tensor([prompt]), do_sample=True, max_new_tokens=n, top_k=0)
            ids = whole[0, len(prompt) :].tolist()
        request.gave, request.logprobs = ids, logprobs_of(self._model, prompt, ids)
        return output(self.tokenizer, ids, request.logprobs, reason)


def logprobs_of(model: Any, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()


def batch_of(results: list[dict[str, Any]]) -> Any:
    """A batch as OpenRLHF's experience maker puts it together."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    samples = [experience(each) for each in results]
    for number, sample in enumerate(samples):
        sample.index = [number]
    return Experience.concat_experiences(samples, load("small").pad_token_id)


def actor_of(model: Any) -> Any:
    from openrlhf.models import Actor

    actor = Actor(model)
    actor.packing_samples = False
    return actor


def with_advantages(batch: Any, logprobs: Any, estimator: str, **reward: Any) -> Any:
    """OpenRLHF's own advantages, without the models of other processes."""
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    n = len(batch.sequences)
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)),
        rollout=SimpleNamespace(n_samples_per_prompt=n, max_new_tokens=None),
        reward=SimpleNamespace(clip_range=(-10, 10), **reward),
        data=SimpleNamespace(max_len=2048),
    )
    maker = RemoteExperienceMaker(None, None, None, None, SimpleNamespace(value=0.0), SimpleNamespace(args=args), None)
    batch.action_log_probs = logprobs
    batch.kl = torch.zeros_like(logprobs)
    batch.values = torch.zeros_like(logprobs)
    [batch] = maker.compute_advantages_and_returns([batch])
    return batch


async def test_a_forward_pass_over_the_batch_gives_the_logprobs_of_the_rollout(
    make_executor: Callable[..., Any], model: Any
) -> None:
    import torch

    torch.manual_seed(1)
    engine = ModelEngine(model, lambda text, number: "unused", sampled=True)
    made = await go(make_executor(), engine, [f"{QUESTION} {number}" for number in range(4)])
    batch = batch_of(made)
    with torch.no_grad():
        again = actor_of(model)(batch.sequences, batch.action_mask, batch.attention_mask)
    sampled = batch.action_mask.bool()
    assert sampled.sum() >= 4
    assert batch.rollout_log_probs[sampled].tolist() == pytest.approx(again[sampled].tolist(), abs=1e-3)


@pytest.mark.parametrize("estimator", ["group_norm", "reinforce_baseline", "gae"])
async def test_mask_and_reward_reach_the_loss(make_executor: Callable[..., Any], model: Any, estimator: str) -> None:
    """Two right attempts, two wrong ones and one that was lost, all at one problem."""
    import torch
    from openrlhf.models import PolicyLoss
    from openrlhf.models.utils import masked_mean

    def script(text: str, number: int) -> Any:
        ending = next(ending for name, ending in ENDINGS.items() if name in text)
        return ending if number else code("print(6 * 7)")

    engine = ModelEngine(model, script, sampled=False)
    executor = make_executor(reward="accuracy", max_resumes=0)
    batch = batch_of(await go(executor, engine, [f"{QUESTION} {name}" for name in ENDINGS]))
    assert batch.rewards.tolist() == [1, 1, 0, 0, 0]
    mask = batch.action_mask
    assert mask[4].sum() == 0
    actor = actor_of(model)
    inputs = (batch.sequences, mask, batch.attention_mask)
    before = actor(*inputs).detach()
    batch = with_advantages(batch, before, estimator)
    right, wrong = batch.advantages[:2][mask[:2].bool()], batch.advantages[2:4][mask[2:4].bool()]
    assert right.min() > wrong.max()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    logprobs, seen = actor(*inputs, return_output=True)
    seen["logits"].retain_grad()
    loss, *_ = PolicyLoss(is_correction_level="token")(
        logprobs, before, batch.advantages, action_mask=mask, rollout_log_probs=batch.rollout_log_probs
    )
    assert math.isfinite(loss.item())
    loss.backward()
    pushed = seen["logits"].grad[:, :-1].abs().sum(-1) > 0
    assert torch.equal(pushed & ~mask.bool(), torch.zeros_like(pushed))  # nothing of what the policy was shown
    if estimator != "gae":
        assert pushed[:4].sum() > 0
    optimizer.step()
    gained = ((actor(*inputs).detach() - before) * mask).sum(-1)
    assert gained[:2].sum() > gained[2:4].sum()
    # What the manual says of a masked attempt: the log's mean over no token is NaN, the loss is not.
    assert masked_mean(torch.zeros_like(before), mask, dim=-1).isnan().tolist() == [False] * 4 + [True]


async def test_a_truncated_attempt_is_penalised_as_openrlhf_is_told(
    make_executor: Callable[..., Any], model: Any
) -> None:
    import torch

    def script(text: str, number: int) -> str:
        return ANSWER if "(a)" in text else "so " * 2000

    engine = ScriptedEngine(load("small"), script)
    batch = batch_of(await go(make_executor(), engine, ["(a)", "(b)"]))
    assert batch.truncated.tolist() == [False, True]
    logprobs = torch.zeros_like(batch.rollout_log_probs)
    batch = with_advantages(batch, logprobs, "group_norm", stop_properly_penalty_coef=-0.5)
    assert batch.rewards.tolist() == [1.0, -0.5]


async def test_the_supervised_loss_is_of_what_the_policy_writes(tmp_path: Path, model: Any) -> None:
    from openrlhf.models import SFTLoss
    from rich.console import Console

    from .test_data import sft_data, sft_file

    data = sft_data(load("small"), sft_file(tmp_path, Console(), "code_tags"))
    ids, attention, loss_mask = data.collate_fn([data[0]])
    logprobs, seen = actor_of(model)(ids, attention_mask=attention, return_output=True, return_logprobs=True)
    seen["logits"].retain_grad()
    SFTLoss()(logprobs, loss_mask[:, :-1]).backward()
    pushed = (seen["logits"].grad[0, :-1].abs().sum(-1) > 0).tolist()
    assert pushed == [bool(each) for each in data.items[0][1][1:]]
