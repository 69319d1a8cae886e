"""How soon a program is gone: killed by hand, at its deadline, and when its owner is killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from typing import Any

from retool_env.sandbox import ExecutionStatus, Sandbox

from .figures import summary
from .processes import Watched, descendants, named
from .programs import FORK, FORK_BOMB, FORK_BOMB_NAME, RUNAWAY, RUNAWAY_NAME
from .stage import Stage

_OWNER = """
import sys
from retool_env.errors import ForkError
from retool_env.sandbox import Sandbox
sandbox = Sandbox(tier=sys.argv[1])
session = sandbox.session()
try:
    branch = sandbox.session(forkable=True).fork()
except ForkError:
    branch = sandbox.session()
for where in (sandbox, sandbox, session, branch):
    where.submit(sys.argv[2], timeout_s=600)
sys.stdin.read()
"""
_DEADLINE_S = 0.25


def measure(stage: Stage) -> dict[str, Any]:
    """Kills programs in several ways; each figure is the time until the last of their processes has ended."""
    sandbox, kills = stage.need("sandbox"), stage.plan.kills
    report: dict[str, Any] = {"slowness": stage.slowness()}
    report["runaway"] = summary([_kill(sandbox, RUNAWAY, RUNAWAY_NAME) for _ in range(kills)])
    if sandbox.run(FORK).status is ExecutionStatus.OK:
        report["fork_bomb"] = {"unsupported": "a program can fork here: a bomb would go off"}
    else:
        report["fork_bomb"] = summary([_kill(sandbox, FORK_BOMB, FORK_BOMB_NAME) for _ in range(kills)])
    report["verdict"] = summary([_verdict(sandbox) for _ in range(kills)])
    report["owner"] = summary([_kill_owner(stage.tier) for _ in range(max(2, kills // 4))])
    return report


def _kill(sandbox: Sandbox, program: str, name: str) -> float:
    """Starts a program that never ends, kills it, and returns the seconds until it is gone."""
    future = sandbox.submit(program, timeout_s=60)
    watched = Watched(process.pid for process in named(name, 1))
    time.sleep(0.1)  # at full speed by now, with all the threads it can have
    start = time.perf_counter()
    future.cancel()
    watched.wait()
    return time.perf_counter() - start


def _verdict(sandbox: Sandbox) -> float:
    start = time.perf_counter()
    result = sandbox.run("while True: pass", timeout_s=_DEADLINE_S)
    elapsed = time.perf_counter() - start
    if result.status is not ExecutionStatus.TIMEOUT:
        raise RuntimeError(f"an endless program ended: {result}")
    return elapsed - _DEADLINE_S


def _kill_owner(tier: str) -> float:
    """Kills a process with two programs, a session and a branch running; returns the seconds until none is alive."""
    command = [sys.executable, "-c", _OWNER, tier, RUNAWAY]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as owner:
        try:
            programs = Watched(process.pid for process in named(RUNAWAY_NAME, 4, owner.pid, 30.0))
            others = Watched(process.pid for process in descendants(owner.pid) if process.name != RUNAWAY_NAME)
            start = time.perf_counter()
        finally:
            with contextlib.suppress(ProcessLookupError):
                owner.send_signal(signal.SIGKILL)
        programs.wait()
        elapsed = time.perf_counter() - start
        others.wait()
    return elapsed
