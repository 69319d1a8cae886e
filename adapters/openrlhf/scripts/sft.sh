#!/usr/bin/env bash
# Cold start: supervised training on ReTool-SFT, as `retool data sft --for openrlhf` writes it. See machine.sh.
#
#   MODEL=7b DATA=data OUT=checkpoints/sft adapters/openrlhf/scripts/sft.sh [more flags...]
#
# Batch 32 and six epochs as in the published recipe for verl; the learning rate is ours. On several nodes, HOSTFILE names
# DeepSpeed's file of them.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/machine.sh"

launch deepspeed ${HOSTFILE:+--hostfile "$HOSTFILE"} --module retool_openrlhf.sft -- \
  --model.model_name_or_path "$MODEL_PATH" \
  --model.gradient_checkpointing_enable \
  --data.dataset "$DATA/sft.parquet" \
  --data.input_key messages \
  --data.max_len 16384 \
  --train.batch_size 32 \
  --train.micro_batch_size 1 \
  --train.max_epochs 6 \
  --adam.lr 1e-5 \
  --lr_warmup_ratio 0.1 \
  --ds.zero_stage 3 \
  --ds.param_dtype bf16 \
  --ds.adam_offload \
  --ds.packing_samples \
  --ckpt.output_dir "$OUT" \
  --ckpt.path "$OUT/states" \
  --logger.tensorboard_dir "$OUT/tensorboard" \
  "$@"
