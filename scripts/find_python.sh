#!/usr/bin/env bash
# Prints the path of a Python that retool_env can use; fails with a message when there is none.
#
#   find_python.sh [VERSION...]      versions in order of preference (default: 3.12 3.13 3.11)
#
# A name on PATH proves nothing: a pyenv shim exists for every version that is installed anywhere and fails unless that
# version is switched on, and Debian ships python3 without the venv module. So each candidate is run before it is chosen.
set -euo pipefail

if [ "$#" -gt 0 ]; then wanted=("$@"); else wanted=(3.12 3.13 3.11); fi

# Prints the real interpreter behind $1 if it runs, has version $2, and can make a virtual environment.
probe() {
  "$1" -I -c '
import sys
if "%d.%d" % sys.version_info[:2] != sys.argv[1] or sys.implementation.name != "cpython":
    sys.exit(1)
import ensurepip, ssl, venv
print(sys.executable)
' "$2" </dev/null 2>/dev/null
}

pyenv_versions() {
  local root="${PYENV_ROOT:-}"
  if [ -z "$root" ] && command -v pyenv >/dev/null; then root="$(pyenv root 2>/dev/null || true)"; fi
  root="${root:-${HOME:-/root}/.pyenv}"
  # Newest patch release first; the exact prefix keeps 3.1 from matching 3.11.
  ls -d "$root/versions/$1".*/bin/python "$root/versions/$1"/bin/python 2>/dev/null | sort -rV || true
}

for version in "${wanted[@]}"; do
  while IFS= read -r candidate; do
    [ -n "$candidate" ] || continue
    if found="$(probe "$candidate" "$version")"; then
      echo "$found"
      exit 0
    fi
  done < <(
    type -ap "python$version" python3 python || true
    pyenv_versions "$version"
    ls -d "${HOME:-/root}/.local/share/uv/python/cpython-$version".*/bin/python 2>/dev/null | sort -rV || true
  )
done

cat >&2 <<MESSAGE
No suitable Python found. retool_env needs CPython ${wanted[*]} (any one of them) with the venv and ssl modules.
Looked for python3.N, python3 and python on PATH, and in pyenv's and uv's folders. To mend it, one of:
  apt-get install python3 python3-venv python3-dev     (Debian 12: 3.11; Ubuntu 24.04: 3.12)
  pyenv install 3.12
  uv python install 3.12
or name an interpreter yourself: make demo PYTHON=/path/to/python3.12
MESSAGE
exit 1
