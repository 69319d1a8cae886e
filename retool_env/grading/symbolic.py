"""The host's side of the symbolic worker: one warm child per process, restarted whenever it hangs or dies.

A signal cannot stop everything that sympy can be made to do, and a signal handler works only in the main thread;
killing a process always works. Usable from any thread; a forked child of the host starts a worker of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from retool_env.errors import ReToolError

LIMIT_S: Final = 4.0
"""Wall-clock seconds that one answer may take in the worker, starting the worker not counted."""

_START_LIMIT_S: Final = 60.0
_LENGTH_BYTES: Final = 4
_MAX_REPLY: Final = 1 << 16


class UndecidedError(Exception):
    """An answer's comparison hung, ran out of memory or killed the worker. Becomes ``Grade.timed_out``."""


class WorkerStartError(ReToolError, RuntimeError):
    """The installation's fault: the grading worker did not start (math-verify missing, no memory, no processes)."""


class _DiedError(Exception):
    """The worker ended without a reply."""


class _Child:
    """One started worker process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        # An environment of its own: nothing of the host's may change what an answer is worth. Sets are ordered by hash.
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters do not start without it
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-s", "-P", str(Path(__file__).with_name("worker.py"))],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,  # Ctrl-C at the host's terminal is not for the worker
            )
        except OSError as error:
            ours.close()
            raise WorkerStartError(f"cannot start the grading worker with {sys.executable!r}: {error}") from error
        finally:
            theirs.close()
        try:
            path = [entry for entry in sys.path if os.path.isabs(entry)]
            fault = self.ask({"path": path, "host": os.getpid()}, _START_LIMIT_S).get("error")
        except (_DiedError, TimeoutError) as error:
            fault = f"{type(error).__name__} {error}"
        if fault is not None:
            self.kill()
            raise WorkerStartError(
                f"the grading worker did not start ({fault}); check that math-verify imports in this environment: "
                f"{sys.executable} -c 'import math_verify'"
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Sends a request and waits for the reply; after a TimeoutError or _DiedError, kill the child."""
        deadline = time.monotonic() + limit_s
        data = json.dumps(request).encode()
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
            size = int.from_bytes(self._receive(_LENGTH_BYTES, deadline), "big")
            if size > _MAX_REPLY:
                raise _DiedError
            reply: dict[str, Any] = json.loads(self._receive(size, deadline))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise _DiedError from error
        return reply

    def _receive(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            part = self._socket.recv(size)
            if not part:
                raise _DiedError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        """Ends the process for certain, and reaps it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """In a forked child of the host: lets go of the parent's worker without touching it."""
        self._socket.close()
        self._process.returncode = 0  # not ours to wait for


class SymbolicWorker:
    """The process's worker: started at the first request, restarted after a kill, safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._executor: ThreadPoolExecutor | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, or None."""
        child = self._child
        return None if child is None else child.pid

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The thread in which asynchronous callers wait; one is enough, as the worker does one thing at a time."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="retool-grading")
            return self._executor

    def ask(self, op: str, gold: str, answer: str, limit_s: float) -> tuple[bool | None, float]:
        """Runs one operation of the worker.

        Args:
            op: ``equal``, ``equation``, ``inequality``, ``approximates`` or ``parses``; see ``equality``.
            gold: LaTeX, as ``latex.to_parser`` writes it.
            answer: The same; for ``approximates`` a plain decimal.
            limit_s: Wall-clock seconds from when the worker is ready and free.

        Returns:
            The operation's result (None where a side could not be parsed) and the seconds it took.

        Raises:
            UndecidedError: It took longer than the limit, ran out of memory, or killed the worker twice.
            WorkerStartError: The worker cannot be started.
        """
        request = {"op": op, "gold": gold, "answer": answer, "limit_s": limit_s}
        with self._lock:
            for attempt in (1, 2):
                if self._child is None:
                    self._child = _Child()
                started = time.monotonic()
                try:
                    reply = self._child.ask(request, limit_s)
                except TimeoutError:
                    self._drop()
                    raise UndecidedError(f"no verdict within {limit_s:g} s") from None
                except _DiedError:
                    # Perhaps somebody else's doing (the kernel's, an operator's), so the answer gets a second chance.
                    self._drop()
                    if attempt == 2:
                        raise UndecidedError("the comparison ended its process twice") from None
                    continue
                except BaseException:  # an interrupt in mid-reply: the stream cannot be trusted any more
                    self._drop()
                    raise
                if "error" in reply:
                    self._drop()
                    raise UndecidedError(f"the comparison ended: {reply['error']}")
                return reply["result"], time.monotonic() - started
        raise AssertionError("unreachable")

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def shutdown(self) -> None:
        """Ends the worker and its thread; waits for a comparison in progress. A later request starts them again."""
        with self._lock:
            self._drop()
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """In a forked child: starts from nothing. The lock may be held by a thread that does not exist here."""
        child, self._child = self._child, None
        self._lock = threading.Lock()
        self._executor = None
        if child is not None:
            child.forget()


WORKER: Final = SymbolicWorker()
atexit.register(WORKER.shutdown)
os.register_at_fork(after_in_child=WORKER.forget)
