#!/usr/bin/env bash
# Makes the virtual environment of the tests against real engines: vLLM's CPU build, torch and transformers. 2.5 GB.
#
#   setup_vllm.sh VENV [PYTHON]
#
# VENV is the folder, PYTHON a CPython 3.11 to use instead of a found one: the versions in requirements/vllm-py311.txt are
# for that one. They are installed as they stand there, without their own dependencies: what vLLM asks for beside them
# (torchvision, triton, a CUDA build of torch) is for a GPU. Nothing is done when it is already done, as in setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${1:?usage: setup_vllm.sh VENV [PYTHON]}"
python="${2:-}"
python="${python:-$(scripts/find_python.sh 3.11)}"
pins="$PWD/requirements/vllm-py311.txt"

if ! "$python" -I -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  echo "setup: $python is no Python 3.11, for which requirements/vllm-py311.txt is" >&2
  exit 1
fi
# What the two lists have in common is installed at the version that vLLM was built against.
PIP_CONSTRAINT="$pins" scripts/setup.sh "$venv" test-engines "$python"

stamp="$venv/.retool-vllm"
key="$(cksum <"$pins") $(cat "$venv/.retool-test-engines")"
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then exit 0; fi
echo "setup: installing vLLM's CPU build and torch into $venv (some minutes)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$pins"
echo "$key" >"$stamp"
