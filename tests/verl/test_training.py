"""What reaches the loss: a real small model behind the server, verl's own advantages and loss, and one real step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from .test_worker import ANSWER, Worker, code, response

WRONG = "<answer>\\boxed{41}</answer>"


@pytest.fixture
def model(model_folder: Callable[[str], Any]) -> Any:
    """A tiny model of random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_folder("small"), attn_implementation="eager")
    return AutoModelForCausalLM.from_config(config).float().eval()


def logprobs_of(model: Any, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()


def served_by(worker: Worker, model: Any, *, sampled: bool) -> None:
    """Has the model behind the worker's server sample every turn itself, or score the turns of the script."""
    import torch

    servers = worker.servers
    scripted = servers.generate

    async def generate(request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any) -> Any:
        output = await scripted(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **more)
        if sampled:
            n = min(48, sampling_params["max_tokens"])
            whole = model.generate(torch.tensor([prompt_ids]), do_sample=True, max_new_tokens=n, top_k=0)
            output.token_ids = whole[0, len(prompt_ids) :].tolist()
        output.log_probs = logprobs_of(model, prompt_ids, output.token_ids)
        servers.requests[-1].gave = output.token_ids
        return output

    servers.generate = generate


def forward(model: Any, made: Any) -> Any:
    """Returns the logits of the response's tokens, as verl's actor computes them: on the padded batch."""
    n = made.batch["responses"].shape[1]
    inputs = {name: made.batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    return model(**inputs).logits[:, -n - 1 : -1]


async def test_a_forward_pass_over_the_batch_gives_the_logprobs_of_the_rollout(
    make_config: Callable[..., Any], model: Any
) -> None:
    import torch
    from verl.utils.torch_functional import logprobs_from_logits_naive

    torch.manual_seed(1)
    worker = Worker(make_config(), lambda text, number: "unused")
    served_by(worker, model, sampled=True)
    made = await worker.go(4)
    assert [response(made, row)[0] for row in range(4)] == [request.gave for request in worker.servers.requests]
    again = logprobs_from_logits_naive(forward(model, made).detach(), made.batch["responses"])
    sampled = made.batch["response_mask"].bool()
    assert sampled.sum() >= 4
    assert made.batch["rollout_log_probs"][sampled].tolist() == pytest.approx(again[sampled].tolist(), abs=1e-3)


def check_metrics(made: Any, advantages: Any) -> None:
    """An attempt without a single token to learn from leaves verl's metrics finite."""
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    for name in ("token_level_scores", "token_level_rewards"):
        made.batch[name] = made.batch["rm_scores"]
    made.batch["advantages"] = made.batch["returns"] = advantages
    metrics = compute_data_metrics(made, use_critic=False)
    assert metrics["critic/score/mean"] == pytest.approx(0.4)
    assert all(math.isfinite(value) for value in metrics.values())


async def test_mask_and_reward_reach_the_loss(make_config: Callable[..., Any], model: Any) -> None:
    """Two right attempts, two wrong ones and one that was lost, all at one problem: a group of GRPO."""
    import torch
    from ray.exceptions import RayActorError
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.torch_functional import logprobs_from_logits_naive

    endings = {"(a)": ANSWER, "(b)": ANSWER, "(c)": WRONG, "(d)": WRONG, "(lost)": RayActorError()}

    def script(text: str, number: int) -> Any:
        ending = next(ending for name, ending in endings.items() if name in text)
        return ending if number else code("print(6 * 7)")

    config = make_config("actor_rollout_ref.actor.use_dynamic_bsz=true", reward="accuracy", max_resumes=0)
    worker = Worker(config, script)
    served_by(worker, model, sampled=False)
    questions = [[{"role": "user", "content": f"What is 6 * 7? {name}"}] for name in endings]
    made = await worker.go(len(endings), raw_prompt=questions)
    mask, ids = made.batch["response_mask"], made.batch["responses"]
    assert made.batch["rm_scores"].sum(-1).tolist() == [1, 1, 0, 0, 0]
    assert mask[4].sum() == 0

    group = made.non_tensor_batch["data_source"]
    advantages, _ = compute_grpo_outcome_advantage(made.batch["rm_scores"].clone(), mask, group)
    assert (advantages[:2][mask[:2].bool()] > 0).all()
    assert (advantages[2:4][mask[2:4].bool()] < 0).all()
    check_metrics(made, advantages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    logits = forward(model, made)
    logits.retain_grad()
    before = logprobs_from_logits_naive(logits, ids)
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=made.batch["rollout_log_probs"],
        log_prob=before,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=omega_conf_to_dataclass(config.actor_rollout_ref.actor),
    )
    loss.backward()
    pushed = logits.grad.abs().sum(-1) > 0
    assert torch.equal(pushed, mask.bool())  # every sampled token, and nothing of what the policy was shown
    optimizer.step()
    after = logprobs_from_logits_naive(forward(model, made).detach(), ids)
    gained = ((after - before.detach()) * mask).sum(-1)
    assert gained[:2].sum() > gained[2:4].sum()
