#!/usr/bin/env bash
# Makes the virtual environment of the tests in the real OpenRLHF: OpenRLHF, vLLM and torch for the CPU, Ray, DeepSpeed and
# transformers, at the versions that OpenRLHF pins. 3 GB.
#
#   setup_openrlhf.sh VENV [PYTHON]
#
# VENV is the folder, PYTHON a CPython 3.11 to use instead of a found one: the versions in requirements/openrlhf-py311.txt
# are for that one; torch and vLLM are builds for the CPU. Nothing is done when it is already done, as in setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${1:?usage: setup_openrlhf.sh VENV [PYTHON]}"
python="${2:-}"
python="${python:-$(scripts/find_python.sh 3.11)}"
pins="$PWD/requirements/openrlhf-py311.txt"

if ! "$python" -I -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  echo "setup: $python is no Python 3.11, for which requirements/openrlhf-py311.txt is" >&2
  exit 1
fi
# What the two lists have in common is installed at the version that is pinned for OpenRLHF.
PIP_CONSTRAINT="$pins" scripts/setup.sh "$venv" test-engines "$python"

stamp="$venv/.retool-openrlhf"
key="$(cksum <"$pins") $(cat "$venv/.retool-test-engines")"
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then exit 0; fi
echo "setup: installing OpenRLHF, vLLM and torch for the CPU into $venv (some minutes)"
# Without the dependencies of what is on the list: OpenRLHF's own would bring in what is for a GPU (flash-attn, bitsandbytes,
# a CUDA build of torch). DeepSpeed comes as source; without its kernels it needs no compiler.
DS_BUILD_OPS=0 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$pins"
echo "$key" >"$stamp"
