#!/usr/bin/env bash
# REINFORCE++ with each problem's mean as baseline (ESTIMATOR=reinforce: without), from the cold start. See machine.sh.
#
#   MODEL=7b MODE=async MODEL_PATH=checkpoints/sft DATA=data adapters/openrlhf/scripts/reinforce.sh [more flags...]
#
# Batches as in grpo.sh. On several nodes, start Ray first and name it with RAY_JOB.
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
  --algo.advantage.estimator "${ESTIMATOR:-reinforce_baseline}" \
  --rollout.batch_size "$batch" \
  --rollout.n_samples_per_prompt 16 \
  --train.batch_size $((mini * 16)) \
  --logger.wandb.run_name "reinforce-$MODEL" \
  "$@"
