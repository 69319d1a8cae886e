"""The child process that compares expressions: started by ``symbolic`` as a script, killed when it hangs.

It imports nothing of its package (only ``equality``, by path), so that it starts fast and holds little memory. Over the
socket on file descriptor 0 it reads length-prefixed JSON: first ``{"path", "host"}``, then requests
``{"op", "gold", "answer", "limit_s"}``. It answers ``{"result": true|false|null}`` (null: a side could not be parsed)
or ``{"error": "..."}``, after which it ends. Text is parsed by a LaTeX grammar and never evaluated as Python.

Its host may die in any way. An idle worker sees the socket close, or the host's pidfd become readable (a forked child
of the host can hold the socket open); a busy one, perhaps inside a C loop, is ended by an interval timer.
"""

from __future__ import annotations

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
_SLACK_S: Final = 2.0  # the host's own limit comes first; this one is for a worker whose host is gone
_PARENT_CHECK_MS: Final = 1000
_WARM_UP: Final = ((r"\frac{1}{2}", r"\sqrt{2}"), (r"x^{2}+\sqrt{3}", r"x^{2}+\frac{3}{\sqrt{3}}"), ("x+1", "2"))
"""Compared before the worker says that it is ready: the first parse of each kind is the slow one."""


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


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


def _answer(operations: _Operations, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": operations[request["op"]](request["gold"], request["answer"])}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception:  # whatever the parser or sympy raises on this text, it could not be compared
        return {"result": None}


def _serve(connection: socket.socket, host: int, operations: _Operations) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    patience_ms = None
    try:
        poll.register(os.pidfd_open(host), select.POLLIN)
    except OSError:  # an old kernel or a filter: look at the parent now and then
        patience_ms = _PARENT_CHECK_MS
    # Only now: if the host had died before the pidfd was opened, its number could be somebody else's.
    while os.getppid() == host:
        ready = {descriptor for descriptor, _ in poll.poll(patience_ms)}
        if ready and connection.fileno() not in ready:
            return
        if not ready:
            continue
        request = _receive(connection)
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"] + _SLACK_S)
        reply = _answer(operations, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(connection, reply)
        if "error" in reply:
            return


def main() -> None:
    """Serves requests until the host closes the socket or dies."""
    connection = socket.socket(fileno=0)
    start = _receive(connection)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    sys.path[:] = start["path"]
    logging.disable()
    try:
        operations = _load_operations()
        _limit_memory()
    except Exception as error:  # the host tells the user
        _send(connection, {"error": f"{type(error).__name__}: {error}"})
        return
    _send(connection, {"result": True})
    _serve(connection, start["host"], operations)


if __name__ == "__main__":
    try:
        main()
    except OSError:  # the host is gone
        os._exit(1)
    os._exit(0)  # nothing to clean up, and an exit handler of some library could hang
