"""The symbolic layer as the other layers see it: a few workers per process, replaced whenever one hangs or dies.

A signal cannot stop everything that sympy can be made to do, and a signal handler works only in the main thread;
killing a process always works. Usable from any thread; a forked child of the host starts workers of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from retool_env.grading.workers import DiedError, GoneError, Server, Worker, WorkerStartError

__all__ = ["LIMIT_S", "WORKERS", "SymbolicWorkers", "UndecidedError", "WorkerStartError"]

LIMIT_S: Final = 4.0
"""Seconds that one answer may take in its worker; starting it, and waiting for a core, not counted."""

MAX_WORKERS: Final = 4
"""Most workers of a process; never more than it has cores, as their time is limited by the clock."""

_MAX_REQUESTS: Final = 1000
"""A worker is replaced after so many requests: what sympy has cached by then is not worth keeping."""


class UndecidedError(Exception):
    """An answer's comparison hung, ran out of memory or killed the worker. Becomes ``Grade.timed_out``."""


class SymbolicWorkers:
    """The workers of a process. The first is started at the first request, another where all of them are busy."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._free = threading.Condition()
        self._server: Server | None = None
        self._idle: list[Worker] = []
        self._busy: dict[int, Worker] = {}
        """By the thread that waits for it."""
        self._threads = threading.Lock()  # its own: the other is held while a server starts
        self._executor: ThreadPoolExecutor | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return sorted(worker.pid for worker in self._idle + list(self._busy.values()))

    @property
    def server_pid(self) -> int | None:
        """Process id of the server that forks them, or None."""
        server = self._server
        return None if server is None else server.pid

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads in which asynchronous callers wait, as many as there may be workers."""
        with self._threads:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_size(), thread_name_prefix="retool-grading")
            return self._executor

    def ask(self, op: str, gold: str, answer: str, limit_s: float) -> tuple[bool | None, float]:
        """Runs one operation in a worker.

        Args:
            op: The name of one of ``equality.OPERATIONS``.
            gold: LaTeX, as ``latex.to_parser`` writes it.
            answer: The same; for ``approximates`` and ``rounds_to`` a plain decimal.
            limit_s: Seconds from when a worker is ready and free.

        Returns:
            The operation's result (None where a side could not be parsed) and the seconds it took.

        Raises:
            UndecidedError: It took longer than the limit, ran out of memory, or killed its worker twice.
            WorkerStartError: No worker can be started.
        """
        request = {"op": op, "gold": gold, "answer": answer}
        died = 0
        while died < 2:
            worker = self._take()
            try:
                reply, used_s = worker.ask(request, limit_s)
            except TimeoutError:
                self._drop(worker)
                raise UndecidedError(f"no verdict within {limit_s:g} s") from None
            except GoneError:  # the kernel, or an operator, has ended it while it was idle
                self._drop(worker)
                continue
            except DiedError:
                died += 1
                # Perhaps somebody else's doing (the kernel's, an operator's), so the answer gets a second chance.
                self._drop(worker)
                continue
            except BaseException:  # an interrupt in mid-reply: the stream cannot be trusted any more
                self._drop(worker)
                raise
            if "error" in reply:
                self._drop(worker)
                raise UndecidedError(f"the comparison ended: {reply['error']}")
            self._give_back(worker)
            return reply["result"], used_s
        raise UndecidedError("the comparison ended its process twice")

    def _take(self) -> Worker:
        me = threading.get_ident()
        with self._free:
            if me in self._busy:  # an interrupt came between taking it and asking
                self._busy.pop(me).kill()
            while not self._idle and len(self._busy) >= _size():
                self._free.wait()
            worker = self._idle.pop() if self._idle else self._fork()
            self._busy[me] = worker
            return worker

    def _fork(self) -> Worker:
        if self._server is not None:
            try:
                return self._server.fork()
            except DiedError:  # somebody killed it, and its workers with it
                self._close_server()
        self._server = Server()
        try:
            return self._server.fork()
        except DiedError:
            self._close_server()
            raise WorkerStartError("the grading worker's server ended as soon as it had started") from None

    def _give_back(self, worker: Worker) -> None:
        with self._free:
            self._let_go(worker)
            if worker.requests < _MAX_REQUESTS:
                self._idle.append(worker)
            else:
                worker.kill()

    def _drop(self, worker: Worker) -> None:
        with self._free:
            self._let_go(worker)
            worker.kill()

    def _let_go(self, worker: Worker) -> None:
        me = threading.get_ident()
        if self._busy.get(me) is worker:
            del self._busy[me]
        self._free.notify_all()

    def _close_server(self) -> None:
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def shutdown(self) -> None:
        """Ends all processes and threads; waits for comparisons in progress. A later request starts them again."""
        with self._threads:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        with self._free:
            if (left := self._busy.pop(threading.get_ident(), None)) is not None:
                left.kill()
            while self._busy:
                self._free.wait()
            self._close_server()

    def forget(self) -> None:
        """In a forked child: starts from nothing. The lock may be held by a thread that does not exist here."""
        server, workers = self._server, (*self._idle, *self._busy.values())
        self._begin()
        for worker in workers:
            worker.close()
        if server is not None:
            server.forget()


def _size() -> int:
    return max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0))))


WORKERS: Final = SymbolicWorkers()
atexit.register(WORKERS.shutdown)
os.register_at_fork(after_in_child=WORKERS.forget)
