# Flags that all of reinforcement learning shares. Sourced by reinforce.sh, grpo.sh and ppo.sh, after machine.sh.
max_len=18432 # 2048 for the prompt, 16384 after it
AGENT_FUNC="${AGENT_FUNC:-$(cd "$here/../retool_openrlhf" && pwd)/agent_func.py}"

if [ "$MODE" = hybrid ]; then
  gpus=8 engines=$((8 * nodes / tp))
  mode=(--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.6)
else
  gpus=4 engines=$((4 * nodes / tp))
  mode=(--train.async_enable --train.async_queue_size 1 --train.colocate_all --ds.enable_sleep
    --vllm.gpu_memory_utilization 0.85)
fi
# Each engine's process has a sandbox, and those of a machine share its cores.
export RETOOL_AGENT_ENGINES_PER_NODE="${RETOOL_AGENT_ENGINES_PER_NODE:-$((engines / nodes))}"

rl=(
  "${mode[@]}"
  --train.agent_func_path "$AGENT_FUNC"
  --actor.model_name_or_path "$MODEL_PATH"
  --actor.num_nodes "$nodes"
  --actor.num_gpus_per_node "$gpus"
  --actor.gradient_checkpointing_enable
  --actor.adam.lr 1e-6
  --actor.eps_clip_low_high 0.2 0.28
  --actor.dual_clip 10.0
  --algo.kl.init_coef 0
  --algo.advantage.is_correction_level token
  --vllm.num_engines "$engines"
  --vllm.tensor_parallel_size "$tp"
  --vllm.sync_backend nccl
  --vllm.enable_prefix_caching
  --data.prompt_dataset "$DATA/train.parquet"
  --data.input_key input
  --data.label_key label
  --data.max_len "$max_len"
  --eval.dataset "$DATA/val.parquet"
  --eval.steps 10
  --eval.temperature 1.0
  --eval.n_samples_per_prompt 32
  --rollout.temperature 1.0
  --rollout.top_p 1.0
  --rollout.micro_batch_size 1
  --rollout.max_tokens_per_gpu $((2 * max_len))
  --train.max_tokens_per_gpu "$max_len"
  --train.dynamic_batch_enable
  --train.num_episodes 1
  --ds.packing_samples
  --ds.zero_stage 3
  --ds.param_dtype bf16
  --ds.adam_offload
  --ckpt.output_dir "$OUT"
  --ckpt.path "$OUT/states"
  --ckpt.save_steps 30
  --ckpt.save_hf
  --logger.tensorboard_dir "$OUT/tensorboard"
)
