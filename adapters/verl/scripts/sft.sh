#!/usr/bin/env bash
# Cold start: supervised training on ReTool-SFT, as `retool data sft --for verl` writes it. See machine.sh.
#
#   MODEL=7b DEVICE=gpu DATA=data OUT=checkpoints/sft adapters/verl/scripts/sft.sh [verl overrides...]
#
# Batch 32 and six epochs as in the published recipe for verl; the learning rate is ours. On several nodes, run it on each
# with NODE_RANK and MASTER_ADDR set.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"

launch torchrun --nnodes "$nodes" --nproc_per_node 8 --node_rank "${NODE_RANK:-0}" \
  --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "${MASTER_PORT:-29500}" -m verl.trainer.sft_trainer -- \
  data.train_files="$DATA/sft.parquet" \
  data.train_batch_size=32 \
  data.micro_batch_size_per_gpu=1 \
  data.max_length=16384 \
  data.max_token_len_per_gpu=16384 \
  data.truncation=right \
  "${thinking[@]+"${thinking[@]}"}" \
  data.custom_cls.path=pkg://retool_verl.sft \
  data.custom_cls.name=ReToolSFTDataset \
  model.path="$MODEL_PATH" \
  model.use_remove_padding=True \
  model.enable_gradient_checkpointing=True \
  engine.ulysses_sequence_parallel_size="$sp" \
  engine.use_torch_compile="$compile" \
  optim.lr=1e-5 \
  optim.lr_warmup_steps_ratio=0.1 \
  optim.lr_scheduler_type=cosine \
  trainer.device="$device" \
  trainer.nnodes="$nodes" \
  trainer.n_gpus_per_node=8 \
  trainer.total_epochs=6 \
  trainer.project_name=retool \
  trainer.experiment_name="sft-$MODEL" \
  trainer.default_local_dir="$OUT" \
  trainer.save_freq=100 \
  "$@"
