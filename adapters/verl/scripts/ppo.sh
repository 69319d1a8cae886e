#!/usr/bin/env bash
# PPO with a critic, as the ReTool paper trains, from the cold start. See machine.sh.
#
#   MODEL=32b DEVICE=gpu MODEL_PATH=checkpoints/sft/... DATA=data adapters/verl/scripts/ppo.sh [verl overrides...]
#
# 1024 problems a step in mini-batches of 256, critic at 2e-6: the published recipe for verl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"
source "$here/rl.sh"

launch python3 -m verl.trainer.main_ppo -- \
  "${rl[@]}" \
  algorithm.adv_estimator=gae \
  algorithm.gamma=1.0 \
  algorithm.lam=1.0 \
  data.train_batch_size=1024 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.rollout.n=1 \
  actor_rollout_ref.rollout.val_kwargs.n=32 \
  critic.model.path="$MODEL_PATH" \
  critic.model.use_remove_padding=True \
  critic.model.enable_gradient_checkpointing=True \
  critic.optim.lr=2e-6 \
  critic.ppo_max_token_len_per_gpu=$((2 * tokens)) \
  critic.ulysses_sequence_parallel_size="$sp" \
  critic.fsdp.use_torch_compile="$compile" \
  critic.fsdp.param_offload=True \
  critic.fsdp.optimizer_offload=True \
  trainer.experiment_name="ppo-$MODEL" \
  "$@"
