#!/usr/bin/env bash
# Makes the virtual environment of the tests in the real verl: verl, torch for the CPU, Ray and transformers. 2 GB.
#
#   setup_verl.sh VENV [PYTHON]
#
# VENV is the folder, PYTHON a CPython 3.11 to use instead of a found one: the versions in requirements/verl-py311.txt are
# for that one; torch is a build for the CPU among them. Nothing is done when it is already done, as in setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${1:?usage: setup_verl.sh VENV [PYTHON]}"
python="${2:-}"
python="${python:-$(scripts/find_python.sh 3.11)}"
pins="$PWD/requirements/verl-py311.txt"

if ! "$python" -I -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  echo "setup: $python is no Python 3.11, for which requirements/verl-py311.txt is" >&2
  exit 1
fi
# What the two lists have in common is installed at the version that is pinned for verl.
PIP_CONSTRAINT="$pins" scripts/setup.sh "$venv" test-engines "$python"

stamp="$venv/.retool-verl"
key="$(cksum <"$pins") $(cat "$venv/.retool-test-engines")"
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then exit 0; fi
echo "setup: installing verl and torch for the CPU into $venv (some minutes)"
# Without the dependencies of what is on the list: it is complete, and verl's own would bring in what is for a GPU.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$pins"
echo "$key" >"$stamp"
