#!/usr/bin/env bash
# Makes a virtual environment and installs the package into it, editable; does nothing when that is already done.
#
#   setup.sh VENV EXTRAS [PYTHON]
#
# VENV is the folder, EXTRAS a comma-separated list (data,rollout), PYTHON an interpreter to use instead of a found one.
# What was installed is remembered in a stamp inside VENV, keyed on the content of pyproject.toml, the interpreter and
# the place of the checkout: a change of any of them installs again, a mere touch of a file does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="$1"
extras="$2"
python="${3:-}"

# The interpreter a virtual environment was made from, or nothing if it no longer runs.
base_of() { "$1" -I -c 'import os, sys; print(os.path.realpath(sys._base_executable))' 2>/dev/null || true; }

if [ -n "$python" ]; then
  base="$(base_of "$python")"
  if [ -z "$base" ]; then
    echo "setup: PYTHON=$python is not a Python 3 that runs; name a CPython 3.11, 3.12 or 3.13" >&2
    exit 1
  fi
fi

current="$(base_of "$venv/bin/python")"
if [ -z "$current" ] || { [ -n "$python" ] && [ "$current" != "$base" ]; }; then
  # Only a folder that is an environment, or nothing at all, may be cleared: VENV=.. must not cost anyone a folder.
  if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    echo "setup: VENV=$venv exists and is not a virtual environment; name another folder" >&2
    exit 1
  fi
  python="${python:-$(scripts/find_python.sh)}"
  if ! "$python" -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "setup: $("$python" --version) at $python is not supported; name a CPython 3.11, 3.12 or 3.13" >&2
    exit 1
  fi
  echo "setup: making $venv with $("$python" --version) ($python)"
  "$python" -m venv --clear "$venv"
fi

stamp="$venv/.retool-${extras//,/+}"
key="$(cksum <pyproject.toml) $(base_of "$venv/bin/python") $PWD"
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then exit 0; fi

echo "setup: installing retool-env[$extras] into $venv (the first time takes a minute or more)"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"; then
  cat >&2 <<'MESSAGE'
setup: the installation failed; pip's own words are above.
  If pycosat did not build: reasoning-gym (the built-in problems) needs it, and it is compiled when it is installed.
  It wants a C compiler and Python's headers:   apt-get install gcc python3-dev
MESSAGE
  exit 1
fi
echo "$key" >"$stamp"
