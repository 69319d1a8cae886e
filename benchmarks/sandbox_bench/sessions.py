"""Live sessions: what a turn costs, what a session holds while it waits, how many live side by side, and forks."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from retool_env.errors import SandboxError
from retool_env.sandbox import ExecutionStatus, Sandbox, Session

from .figures import summary
from .processes import descendants, page_tables_mb, private_mb, settle
from .programs import PROGRAMS, check
from .stage import Stage

_ANSWER = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile True: s.send(s.recv(1))"
_REMEMBER = "print(seen)"


def measure(stage: Stage) -> dict[str, Any]:
    """Measures turns, memory, numbers and forks."""
    plan = stage.plan
    report: dict[str, Any] = {"slowness": stage.slowness()}
    sandbox = stage.need("sandbox, no light zygote")
    report |= _turns(stage, sandbox)
    report["fork"] = _forks(stage, sandbox)
    report["memory_mb"] = {
        kind: _memory(stage, way)
        for kind, way in (("plain", "sandbox, no light zygote"), ("immortal", "sandbox, immortal"))
    }
    with stage.fresh(light=False, max_sessions=plan.many_sessions) as roomy:
        report["many"] = _many(roomy, plan.many_sessions)
    return report


def _turns(stage: Stage, sandbox: Sandbox) -> dict[str, Any]:
    opened, turns, at_once, bare = [], [], [], []
    for _ in range(stage.plan.sessions):
        stage.pause()
        start = time.perf_counter()
        with sandbox.session() as session:
            session.run("seen = 1")
            opened.append(time.perf_counter() - start)
    with sandbox.session() as session:
        session.run("seen = 1")
        for _ in range(stage.plan.turns):
            stage.pause()
            start = time.perf_counter()
            session.run("seen")
            turns.append(time.perf_counter() - start)
        for _ in range(stage.plan.turns):
            start = time.perf_counter()
            session.run("seen")
            at_once.append(time.perf_counter() - start)
    with _answering() as there:
        for _ in range(stage.plan.turns):
            stage.pause()
            start = time.perf_counter()
            there.send(b"x")
            there.recv(1)
            bare.append(time.perf_counter() - start)
    return {"open": summary(opened), "turn": summary(turns), "turn_at_once": summary(at_once), "bare": summary(bare)}


@contextmanager
def _answering() -> Iterator[socket.socket]:
    """Starts a bare Python that sends back what it is sent: the floor of anything that another process does."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-S", "-c", _ANSWER, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        ours.send(b"x")
        ours.recv(1)
        yield ours
        process.kill()


def _forks(stage: Stage, sandbox: Sandbox) -> dict[str, Any]:
    """Forks a session that has used sympy, and checks that the branch has its state and does not write to it."""
    taken = []
    try:
        with sandbox.session(forkable=True) as trunk:
            check("P2", trunk.run("seen = 1\n" + PROGRAMS["P2"]).stdout)
            for _ in range(stage.plan.forks):
                stage.pause()
                start = time.perf_counter()
                branch = trunk.fork()
                taken.append(time.perf_counter() - start)
                with branch:
                    _expect(branch, "seen += 1\nprint(seen)", "2\n")
            _expect(trunk, _REMEMBER, "1\n")
    except SandboxError as error:
        return {"unsupported": str(error)}
    return summary(taken)


def _expect(session: Session, code: str, output: str) -> None:
    result = session.run(code)
    if result.stdout != output:
        raise RuntimeError(f"a session answered {result} to {code!r}")


def _memory(stage: Stage, way: str) -> dict[str, Any]:
    sandbox = stage.find(way)
    if sandbox is None:
        return {"unsupported": stage.unsupported[way]}
    with ExitStack() as stack:
        sessions = [stack.enter_context(sandbox.session()) for _ in range(stage.plan.sessions)]
        for session in sessions:
            session.run("seen = 1")
        settle()
        try:
            idle = _private(_stopped())
        except PermissionError:
            return {"unsupported": "only root may look at the memory of a contained process"}
        for session in sessions:
            check("P2", session.run(PROGRAMS["P2"]).stdout)
        settle()
        return {"idle": idle, "after_sympy": _private(_stopped())}


def _stopped() -> list[int]:
    """Lists the processes of sessions: those are stopped between two calls, and nothing else is."""
    return [process.pid for process in descendants() if process.state == "T"]


def _private(pids: Iterable[int]) -> dict[str, float]:
    values = [private_mb(pid) for pid in pids]
    return {"n": len(values), "median": statistics.median(values), "largest": max(values)}


def _many(sandbox: Sandbox, asked: int) -> dict[str, Any]:
    with ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        start = time.perf_counter()
        sessions: list[Session] = []
        try:
            sessions.extend(stack.enter_context(sandbox.session()) for _ in range(asked))
        except SandboxError as error:
            reason = str(error)
        else:
            reason = ""
        open_s = time.perf_counter() - start
        answered = sum(session.run(f"seen = {i}").status is ExecutionStatus.OK for i, session in enumerate(sessions))
        kept = sum(session.run(_REMEMBER).stdout == f"{i}\n" for i, session in enumerate(sessions))
        settle()
        pids = _stopped()
        report: dict[str, Any] = {
            "asked": asked,
            "open": len(sessions),
            "answered": answered,
            "kept": kept,
            "open_s": open_s,
            "descriptors": len(os.listdir("/proc/self/fd")) - before,
            "page_tables_mb": statistics.median(map(page_tables_mb, pids)),
        }
        try:
            report["private_mb"] = _private(pids)["median"]
        except PermissionError:
            report["private_mb"] = None
        if reason:
            report["refused"] = reason
        return report
