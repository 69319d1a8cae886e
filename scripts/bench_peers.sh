#!/usr/bin/env bash
# Makes an environment for each of the projects that benchmarks/sandbox.py --peers measures, from PyPI.
#
#   bench_peers.sh [FOLDER]      default .venv-peers, where the benchmark looks for them
#
# Each gets an environment of its own, because they pin versions that exclude one another, with sympy and numpy beside
# it, which the measured programs import. gem-llm asks for Python <= 3.12, which 3.12.1 and later are not: it gets 3.11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="${1:-.venv-peers}"
failed=0

# make_environment NAME VERSION...: the Python versions in order of preference.
make_environment() {
  local name="$1" python
  shift
  if ! python="$(scripts/find_python.sh "$@")"; then
    failed=1
    return
  fi
  if [ -e "$folder/$name" ] && [ ! -e "$folder/$name/pyvenv.cfg" ]; then
    echo "peers: $folder/$name exists and is not a virtual environment; name another folder" >&2
    failed=1
    return
  fi
  echo "peers: $name with $("$python" --version) in $folder/$name"
  if ! { "$python" -m venv --clear "$folder/$name" &&
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$name" numpy sympy; }; then
    echo "peers: $name could not be installed; pip's own words are above" >&2
    failed=1
  fi
}

make_environment gem-llm 3.11
make_environment skyrl-gym 3.12 3.11 3.13
make_environment verifiers 3.12 3.13 3.11
exit "$failed"
