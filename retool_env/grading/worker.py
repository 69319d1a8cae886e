"""The processes that compare expressions: a server, started by ``workers`` as a script, and the workers it forks.

The server has sympy and math-verify loaded, and never looks at an expression: a worker that was killed is replaced by
a fork of it, in milliseconds. This file imports nothing of its package (only ``equality``, by path), so that the server
starts fast and holds little memory.

The server gets JSON in packets over the socket on file descriptor 0: first ``{"path", "host"}``, answered ``{}`` or
``{"error"}``; then ``{"do": "fork"}``, with the worker's socket attached, and ``{"do": "kill", "pid"}``, neither of
which is answered. A worker first says ``{"pid"}`` over its socket (the server ``{"error"}``, where it cannot fork).
Then it reads length-prefixed JSON ``{"op", "gold", "answer", "alarm_s"}`` and answers ``{"result": true|false|null}``
(null: a side could not be parsed) or ``{"error": "..."}``, after which it ends. Text is parsed by a LaTeX grammar and
never evaluated as Python.

The host may die in any way. The server sees its socket close, or the host's pidfd become readable (a forked child of
the host can hold the socket open), and takes the workers with it. A worker dies with the server, and alone, by an
interval timer, if it is busy for longer than any host would wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_Operations = dict[str, Callable[[str, str], bool]]

_MEMORY_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4
_PACKET_BYTES: Final = 1 << 16
_PARENT_CHECK_MS: Final = 1000
_PR_SET_PDEATHSIG: Final = 1
_WARM_UP: Final = ((r"\frac{1}{2}", r"\sqrt{2}"), (r"x^{2}+\sqrt{3}", r"x^{2}+\frac{3}{\sqrt{3}}"), ("x+1", "2"))
"""Compared before the server says that it is ready: the first parse of each kind is the slow one."""


def _load_operations() -> _Operations:
    # With gmpy2, factorials and powers run in C code that no signal handler interrupts and that aborts on low memory.
    sys.modules["gmpy2"] = None  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("equality", Path(__file__).with_name("equality.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operations: _Operations = module.OPERATIONS
    for gold, answer in _WARM_UP:
        operations["equal"](gold, answer)
    return operations


def _serve_host(control: socket.socket, host: int, operations: _Operations) -> None:
    """Forks and kills workers until the host is gone."""
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    ours = [control.fileno(), woken, waker]
    patience_ms = None
    try:
        pidfd = os.pidfd_open(host)
    except OSError:  # an old kernel or a filter: look at the parent now and then
        patience_ms = _PARENT_CHECK_MS
    else:
        poll.register(pidfd, select.POLLIN)
        ours.append(pidfd)
    workers: set[int] = set()
    # Only now: if the host had died before the pidfd was opened, its number could be somebody else's.
    while os.getppid() == host:
        ready = {descriptor for descriptor, _ in poll.poll(patience_ms)}
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, _PACKET_BYTES)
            _reap(workers)
        elif control.fileno() in ready:
            packet, attached, _, _ = socket.recv_fds(control, _PACKET_BYTES, 1)
            if not packet:
                break
            request = json.loads(packet)
            if request["do"] == "fork":
                _fork(socket.socket(fileno=attached[0]), workers, ours, operations)
            elif request["pid"] in workers:  # not reaped yet, so the number is still its own
                os.kill(request["pid"], signal.SIGKILL)
        elif ready:
            break
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _reap(workers: set[int]) -> None:
    while workers and (pid := os.waitpid(-1, os.WNOHANG)[0]):
        workers.discard(pid)


def _fork(connection: socket.socket, workers: set[int], to_close: list[int], operations: _Operations) -> None:
    server = os.getpid()
    with connection:
        try:
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):  # the host may have lost patience
                _send(connection, {"error": f"cannot fork: {error.strerror}"})
            return
        if pid:
            workers.add(pid)
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in to_close:
                os.close(descriptor)
            dies_too = _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
            _limit_memory()
            _send(connection, {"pid": os.getpid()})
            _serve(connection, server, operations, None if dies_too else _PARENT_CHECK_MS)
        finally:  # whatever was raised, nothing of the server's runs here
            os._exit(0)


_LIBC: Final = ctypes.CDLL(None)


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = used + _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(used + _MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where the machine itself runs out, the kernel shall take a worker and not a trainer.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _serve(connection: socket.socket, server: int, operations: _Operations, patience_ms: int | None) -> None:
    """Answers requests until the host closes the socket or the server is gone."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while os.getppid() == server:
        if not poll.poll(patience_ms):
            continue
        request = _receive(connection)
        signal.setitimer(signal.ITIMER_REAL, request["alarm_s"])
        reply = _answer(operations, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(connection, reply)
        if "error" in reply:
            return


def _answer(operations: _Operations, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": operations[request["op"]](request["gold"], request["answer"])}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception:  # whatever the parser or sympy raises on this text, it could not be compared
        return {"result": None}


def _receive(connection: socket.socket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(_read(connection, int.from_bytes(_read(connection, _LENGTH_BYTES), "big")))
    return message


def _read(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(size)
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def main() -> None:
    """Serves until the host closes the socket or dies."""
    control = socket.socket(fileno=0)
    start = json.loads(control.recv(_PACKET_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGCHLD})
    sys.path[:] = start["path"]
    logging.disable()
    try:
        operations = _load_operations()
    except Exception as error:  # the host tells the user
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it shares with the server
    control.send(b"{}")
    _serve_host(control, start["host"], operations)


if __name__ == "__main__":
    try:
        main()
    except OSError:  # the host is gone
        os._exit(1)
    os._exit(0)  # nothing to clean up, and an exit handler of some library could hang
