import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def subprocess_python() -> Callable[[str], str]:
    """Runs a script in a fresh interpreter that finds this package, and returns its output."""
    root = str(Path(__file__).parents[2])

    def run(script: str) -> str:
        environment = {**os.environ, "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
