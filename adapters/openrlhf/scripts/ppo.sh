#!/usr/bin/env bash
# PPO with a critic, as the ReTool paper trains, from the cold start. See machine.sh.
#
#   MODEL=32b MODE=hybrid MODEL_PATH=checkpoints/sft DATA=data adapters/openrlhf/scripts/ppo.sh [more flags...]
#
# 1024 problems a step in mini-batches of 256, critic at 2e-6: the published recipe for verl. On several nodes, start Ray
# first and name it with RAY_JOB.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"
source "$here/rl.sh"

launch python3 -m openrlhf.cli.train_ppo_ray -- \
  "${rl[@]}" \
  --algo.advantage.estimator gae \
  --algo.advantage.gamma 1.0 \
  --algo.advantage.lambd 1.0 \
  --critic.model_name_or_path "$MODEL_PATH" \
  --critic.num_nodes "$nodes" \
  --critic.num_gpus_per_node "$gpus" \
  --critic.adam.lr 2e-6 \
  --rollout.batch_size 1024 \
  --rollout.n_samples_per_prompt 1 \
  --train.batch_size 256 \
  --logger.wandb.run_name "ppo-$MODEL" \
  "$@"
