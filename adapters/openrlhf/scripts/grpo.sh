#!/usr/bin/env bash
# GRPO with DAPO's asymmetric clipping and no KL, from the cold start. See machine.sh.
#
#   MODEL=32b MODE=hybrid MODEL_PATH=checkpoints/sft DATA=data adapters/openrlhf/scripts/grpo.sh [more flags...]
#
# 512 problems a step, 16 attempts each, in mini-batches of 64 problems (7B: 64 and 16), as the published recipe for verl.
# On several nodes, start Ray first and name it with RAY_JOB.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"
source "$here/rl.sh"

case "$MODEL" in
  32b) batch=512 mini=64 ;;
  *) batch=64 mini=16 ;;
esac

launch python3 -m openrlhf.cli.train_ppo_ray -- \
  "${rl[@]}" \
  --algo.advantage.estimator group_norm \
  --rollout.batch_size "$batch" \
  --rollout.n_samples_per_prompt 16 \
  --train.batch_size $((mini * 16)) \
  --logger.wandb.run_name "grpo-$MODEL" \
  "$@"
