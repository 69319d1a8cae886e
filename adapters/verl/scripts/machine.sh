# What the launch scripts have in common: which machine, which model, how to run or only print. Sourced by them.
#
# MODEL     7b, 32b (Qwen2.5) or qwen3-4b
# DEVICE    gpu or npu (Ascend)
# MODEL_PATH, DATA, OUT   folders of the model, of the data (retool data), for checkpoints
# PRINT=1   prints the overrides, one a line, and runs nothing
# Not verified on hardware: the keys are checked against verl's configuration (retool_verl.overrides), no figure was measured.

MODEL="${MODEL:-7b}"
DEVICE="${DEVICE:-gpu}"
DATA="${DATA:-data}"
OUT="${OUT:-checkpoints/retool}"

thinking=()
case "$MODEL" in
  7b) hub=Qwen/Qwen2.5-7B-Instruct nodes=1 tp=2 sp=4 ;;
  32b) hub=Qwen/Qwen2.5-32B-Instruct nodes=2 tp=4 sp=8 ;;
  qwen3-4b)
    hub=Qwen/Qwen3-4B nodes=1 tp=1 sp=4
    # An attempt is not all thinking. The same in both, so that SFT teaches what follows the prompt of RL.
    thinking=(+data.apply_chat_template_kwargs.enable_thinking=False)
    ;;
  *) echo "MODEL=$MODEL: there are 7b, 32b and qwen3-4b" >&2; exit 2 ;;
esac
case "$DEVICE" in
  gpu) device=cuda compile=True ;;
  npu) device=npu compile=False; [ "$tp" -ge 2 ] || tp=2 ;;
  *) echo "DEVICE=$DEVICE: there are gpu and npu" >&2; exit 2 ;;
esac
MODEL_PATH="${MODEL_PATH:-$hub}"

# launch COMMAND... -- OVERRIDES...: runs the command with the overrides, or prints them.
launch() {
  local command=()
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  shift
  if [ -n "${PRINT:-}" ]; then printf '%s\n' "$@"; else exec "${command[@]}" "$@"; fi
}
