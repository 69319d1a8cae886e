# What the launch scripts have in common: which machine, which model, how to run or only print. Sourced by them.
#
# MODEL     7b, 32b (Qwen2.5) or qwen3-4b
# MODE      hybrid (models and vLLM take turns on all GPUs) or async (vLLM on half of them, beside the training)
# DEVICE    gpu, and nothing else: OpenRLHF has no way to run on an NPU
# MODEL_PATH, DATA, OUT   folders of the model, of the data (retool data), for checkpoints
# RETOOL_AGENT_CONFIG     the configuration of the attempts, see retool_openrlhf.options
# RAY_JOB   address of a running Ray cluster (http://127.0.0.1:8265), which gets the job and its RETOOL_AGENT_* variables
# PRINT=1   prints the flags, one word a line, and runs nothing
# Not verified on hardware: the flags are checked with OpenRLHF's parser (retool_openrlhf.flags), no figure was measured.

MODEL="${MODEL:-7b}"
MODE="${MODE:-hybrid}"
DEVICE="${DEVICE:-gpu}"
DATA="${DATA:-data}"
OUT="${OUT:-checkpoints/retool}"

case "$MODEL" in
  7b) hub=Qwen/Qwen2.5-7B-Instruct nodes=1 tp=2 ;;
  32b) hub=Qwen/Qwen2.5-32B-Instruct nodes=2 tp=4 ;;
  qwen3-4b)
    hub=Qwen/Qwen3-4B nodes=1 tp=1
    # An attempt is not all thinking. The same for SFT and RL.
    export RETOOL_AGENT_TEMPLATE_OPTIONS="${RETOOL_AGENT_TEMPLATE_OPTIONS:-{enable_thinking: false\}}"
    ;;
  *) echo "MODEL=$MODEL: there are 7b, 32b and qwen3-4b" >&2; exit 2 ;;
esac
case "$DEVICE" in
  gpu) ;;
  npu) echo "DEVICE=npu: OpenRLHF 0.11 runs on CUDA only (it calls torch.cuda itself); adapters/verl has NPUs" >&2; exit 2 ;;
  *) echo "DEVICE=$DEVICE: there is gpu" >&2; exit 2 ;;
esac
case "$MODE" in hybrid | async) ;; *) echo "MODE=$MODE: there are hybrid and async" >&2; exit 2 ;; esac
MODEL_PATH="${MODEL_PATH:-$hub}"
export RETOOL_AGENT_CONFIG="${RETOOL_AGENT_CONFIG:-$(cd "$here/../config" && pwd)/retool.yaml}"

# launch COMMAND... -- FLAGS...: runs the command with the flags, or prints them.
launch() {
  local command=()
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  shift
  if [ -n "${PRINT:-}" ]; then printf '%s\n' "$@"; return; fi
  python3 -m retool_openrlhf.options >/dev/null # a mistake in the configuration costs no GPU time
  if [ -n "${RAY_JOB:-}" ] && [ "${command[0]}" = python3 ]; then
    # Ray's workers have the environment of the cluster, not that of this shell.
    exec ray job submit --address "$RAY_JOB" --runtime-env-json "$(python3 -c 'import json, os
print(json.dumps({"env_vars": {k: v for k, v in os.environ.items() if k.startswith("RETOOL_AGENT_")}}))')" \
      -- "${command[@]}" "$@"
  fi
  exec "${command[@]}" "$@"
}
