"""The host's side of the processes in ``worker``: one server, and the workers that it forks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from retool_env.errors import ReToolError

_START_LIMIT_S: Final = 60.0
_FORK_LIMIT_S: Final = 20.0
_END_LIMIT_S: Final = 10.0
_LENGTH_BYTES: Final = 4
_PACKET_BYTES: Final = 1 << 16
_MAX_REPLY: Final = 1 << 16
_PATIENCE: Final = 5.0
"""A request waits at most so many times its limit for a worker that has no core to run on."""
_ALARM_SLACK_S: Final = 2.0


class WorkerStartError(ReToolError, RuntimeError):
    """The installation's fault: the grading worker did not start (math-verify missing, no memory, no processes)."""


class DiedError(Exception):
    """A process ended without a reply."""


class GoneError(DiedError):
    """It had ended before it was asked."""


class Worker:
    """One process that compares expressions, one request at a time.

    Attributes:
        pid: Process id.
        requests: Requests answered so far.
    """

    def __init__(self, connection: socket.socket, server: Server):
        """Waits until the process says that it is there.

        Args:
            connection: Our end of its socket; closed if anything goes wrong.
            server: Forked it.

        Raises:
            WorkerStartError: The server could not fork it.
            DiedError: The server is gone.
            TimeoutError: Neither has answered.
        """
        self._socket = connection
        self._server = server
        self._schedstat = -1
        self.requests = 0
        try:
            started = self._receive(time.monotonic() + _FORK_LIMIT_S, 0.0)
            if "error" in started:
                raise WorkerStartError(f"the grading worker did not start: {started['error']}")
            self.pid: int = started["pid"]
            with contextlib.suppress(OSError):
                self._schedstat = os.open(f"/proc/{self.pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            connection.close()
            raise

    def ask(self, request: dict[str, Any], limit_s: float) -> tuple[dict[str, Any], float]:
        """Sends a request and waits for the reply.

        Args:
            request: Operation and texts.
            limit_s: Seconds it may take; time in which the worker was ready to run but had no core is not counted.

        Returns:
            The reply and the seconds it took, counted in the same way.

        Raises:
            TimeoutError: There was none within the limit. The worker must be killed.
            GoneError: It had ended before, so this is none of the request's doing. The same.
            DiedError: It ended, or sent something else. The same.
        """
        started, waited_s = time.monotonic(), self._waited_s()
        request = {**request, "alarm_s": _PATIENCE * limit_s + _ALARM_SLACK_S}
        data = json.dumps(request).encode()
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        except TimeoutError:
            raise
        except OSError as error:
            raise GoneError from error
        reply = self._receive(started + limit_s, waited_s)
        self.requests += 1
        used_s = time.monotonic() - started
        return reply, max(0.0, used_s - (self._waited_s() - waited_s))

    def _receive(self, deadline: float, waited_s: float) -> dict[str, Any]:
        latest = deadline + (_PATIENCE - 1) * max(0.0, deadline - time.monotonic())
        try:
            size = int.from_bytes(self._read(_LENGTH_BYTES, deadline, latest, waited_s), "big")
            if size > _MAX_REPLY:
                raise DiedError
            reply: dict[str, Any] = json.loads(self._read(size, deadline, latest, waited_s))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise DiedError from error
        return reply

    def _read(self, size: int, deadline: float, latest: float, waited_s: float) -> bytes:
        parts: list[bytes] = []
        while size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                remaining = min(latest, deadline + self._waited_s() - waited_s) - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
            self._socket.settimeout(remaining)
            try:
                part = self._socket.recv(size)
            except TimeoutError:
                continue
            if not part:
                raise DiedError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _waited_s(self) -> float:
        """Returns the seconds in which the process was ready to run but had no core."""
        try:
            return int(os.pread(self._schedstat, 128, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def kill(self) -> None:
        """Ends it for certain. The server reaps it."""
        self.close()
        self._server.kill(self.pid)

    def close(self) -> None:
        """Closes our end of its socket: it ends, if it is not busy."""
        self._socket.close()
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


class Server:
    """The process that forks workers. It is as fresh after a million comparisons as it was before the first."""

    def __init__(self) -> None:
        """Starts the process and waits until it is ready.

        Raises:
            WorkerStartError: It cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
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
                start_new_session=True,  # Ctrl-C at the host's terminal is not for the workers
            )
        except OSError as error:
            ours.close()
            raise WorkerStartError(f"cannot start the grading worker with {sys.executable!r}: {error}") from error
        finally:
            theirs.close()
        try:
            fault = self._greet()
        except BaseException:
            self._end()
            raise
        if fault is not None:
            self._end()
            raise WorkerStartError(
                f"the grading worker did not start ({fault}); check that math-verify imports in this environment: "
                f"{sys.executable} -c 'import math_verify'"
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def _greet(self) -> str | None:
        """Returns what kept the process from getting ready, or None."""
        path = [entry for entry in sys.path if os.path.isabs(entry)]
        self._control.settimeout(_START_LIMIT_S)
        try:
            self._control.send(json.dumps({"path": path, "host": os.getpid()}).encode())
            packet = self._control.recv(_PACKET_BYTES)
        except OSError as error:
            return f"{type(error).__name__} {error}"
        return json.loads(packet).get("error") if packet else "it ended"

    def fork(self) -> Worker:
        """Makes a worker.

        Raises:
            WorkerStartError: The machine lets it have no more processes.
            DiedError: The server is gone. Close it.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b'{"do": "fork"}'], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise DiedError from error
        except BaseException:
            ours.close()
            raise
        try:
            return Worker(ours, self)
        except TimeoutError as error:
            raise DiedError from error

    def kill(self, pid: int) -> None:
        """Has a worker killed, if it has not ended by itself."""
        with contextlib.suppress(OSError):  # the server is gone, and its workers with it
            self._control.send(json.dumps({"do": "kill", "pid": pid}).encode())

    def close(self) -> None:
        """Ends the server, and with it every worker; returns when none of them is left."""
        self._control.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._end()

    def _end(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """In a forked child of the host: lets go of the parent's server without touching it."""
        self._control.close()
        self._process.returncode = 0  # not ours to wait for
