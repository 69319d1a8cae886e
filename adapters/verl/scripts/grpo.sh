#!/usr/bin/env bash
# GRPO with DAPO's asymmetric clipping and no KL, from the cold start. See machine.sh.
#
#   MODEL=32b DEVICE=gpu MODEL_PATH=checkpoints/sft/... DATA=data adapters/verl/scripts/grpo.sh [verl overrides...]
#
# 512 problems a step, 16 attempts each, in mini-batches of 64 (7B: 64 problems and 16): the published recipe for verl.
# On several nodes, start Ray first and run this on the head.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"
source "$here/rl.sh"

case "$MODEL" in
  32b) batch=512 mini=64 ;;
  *) batch=64 mini=16 ;;
esac

launch python3 -m verl.trainer.main_ppo -- \
  "${rl[@]}" \
  algorithm.adv_estimator=grpo \
  data.train_batch_size="$batch" \
  actor_rollout_ref.actor.ppo_mini_batch_size="$mini" \
  actor_rollout_ref.rollout.n=16 \
  actor_rollout_ref.rollout.val_kwargs.n=32 \
  trainer.experiment_name="grpo-$MODEL" \
  "$@"
