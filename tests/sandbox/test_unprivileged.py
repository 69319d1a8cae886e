"""The suite once more as a user without any privilege, and on the Landlock of older kernels.

The inner run sees this repository, the interpreter and the installed packages below /mnt, in a mount namespace of its
own, because they may lie in a folder that only root can enter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

SCRIPT = """
set -eu
mount -t tmpfs tmpfs /mnt
mkdir /mnt/python /mnt/site /mnt/repository
mkdir -m 1777 /mnt/tmp
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/site
mount --bind "$3" /mnt/repository
mount --bind /mnt/tmp /tmp
shift 3
cd /mnt/repository
export PYTHONPATH=/mnt/repository:/mnt/site PYTHONDONTWRITEBYTECODE=1 HOME=/mnt/tmp LD_LIBRARY_PATH=/mnt/python/lib
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --no-new-privs \
    /mnt/python/bin/python3 -m pytest -p no:cacheprovider -q "$@"
"""


def run_as_nobody(*arguments: str) -> dict[str, int]:
    """Runs pytest as nobody; returns how many tests passed, failed and were skipped."""
    if os.geteuid() != 0:
        pytest.skip("already running without privileges, or cannot become another user")
    site = Path(pytest.__file__).parents[1]
    command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", sys.base_prefix, str(site), str(REPOSITORY), *arguments]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    if "mount: /mnt" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()}")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return counts


@pytest.mark.landlock
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("names", "passed"),
    [
        ("test_attacks.py", 400),
        ("test_sandbox.py test_lifetime.py", 100),
        ("test_session.py test_fork.py branching", 150),
    ],
)
def test_all_tiers_as_nobody(names, passed):
    paths = [f"tests/sandbox/{name}" for name in names.split()]
    # The light zygote contains its programs by the same means as the full one; who is done first, and how a sandbox is
    # closed, has nothing to do with privileges.
    without = ("light", "five_hundred", "TestConcurrency", "TestZygotes", "TestClosing")
    chosen = " and ".join(f"not {name}" for name in without)
    counts = run_as_nobody("--require-tiers=landlock", "-k", chosen, *paths)
    assert counts["passed"] > passed


@pytest.mark.landlock
@pytest.mark.slow
@pytest.mark.parametrize("abi", [1, 4])
def test_attacks_on_an_older_landlock(abi):
    from retool_env.sandbox import kernel

    if kernel.landlock_abi() < abi:
        pytest.skip(f"this kernel's Landlock ABI is {kernel.landlock_abi()}")
    counts = run_as_nobody(
        "--require-tiers=landlock",
        f"--landlock-abi={abi}",
        "-m",
        "landlock",
        "-k",
        "full",
        "tests/sandbox/test_attacks.py",
    )
    assert counts["passed"] > 100
    assert "skipped" not in counts
