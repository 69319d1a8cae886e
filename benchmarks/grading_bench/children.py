"""Graders in processes of their own: what hangs is killed, what runs out of memory or dies takes nothing with it."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import graders

Answer = tuple[str, str, bool]
"""A text, its gold, and whether it is correct."""

_MEMORY_BYTES = 4 << 30
_CPU_S = 900  # for a child that hangs and whose parent was killed
_START_LIMIT_S = 60.0
WARM_UP = 5
"""So many answers at the beginning of a block are graded without being timed."""


class Child:
    """A grader in a process, which is started again after it was killed or died; a context manager."""

    def __init__(self, name: str, math_dapo: Path | None):
        """Starts it.

        Args:
            name: One of ``graders.NAMES``.
            math_dapo: The file of verl's grader.
        """
        self._arguments = (name, math_dapo)
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def say(self, text: str, gold: str, limit_s: float) -> str:
        """Returns what the grader says of an answer; see ``grading_bench/__init__.py``."""
        try:
            self._connection.send((text, gold))
            if not self._connection.poll(limit_s):
                self._restart()
                return "hung"
            verdict: str = self._connection.recv()
        except (EOFError, OSError):
            self._restart()
            return "died"
        return verdict

    def time(self, answers: Sequence[Answer], limit_s: float = 120.0) -> tuple[list[float], int]:
        """Returns the seconds of each answer after the warm-up, measured there, and how many verdicts were right.

        Raises:
            RuntimeError: It did not get through them.
        """
        self._connection.send(list(answers))
        if not self._connection.poll(limit_s):
            self._restart()
            raise RuntimeError(f"{self._arguments[0]} hung")
        found: tuple[list[float], int] = self._connection.recv()
        return found

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()
        if not self._connection.poll(_START_LIMIT_S) or self._connection.recv() != "ready":
            raise RuntimeError(f"{self._arguments[0]} did not start")

    def _end(self) -> None:
        self._connection.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()
        self._process.close()

    def _restart(self) -> None:
        self._process.kill()
        self._end()
        self._start()


def start(names: Sequence[str], math_dapo: Path | None, stack: ExitStack) -> dict[str, Child]:
    """Starts those of the graders that can be compared here."""
    able = [name for name in names if "unsupported" not in graders.describe(name, math_dapo)]
    return {name: stack.enter_context(Child(name, math_dapo)) for name in able}


def _serve(connection: Connection, name: str, math_dapo: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the connection
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    logging.disable()
    grade = graders.load(name, math_dapo)
    connection.send("ready")
    while True:
        try:
            request: Any = connection.recv()
        except EOFError:
            return
        connection.send(_say(grade, *request) if isinstance(request, tuple) else _time(grade, request))


def _say(grade: graders.Grade, text: str, gold: str) -> str:
    try:
        return grade(text, gold)
    except BaseException:  # math-verify's TimeoutException is one
        return "raised"


def _time(grade: graders.Grade, answers: Sequence[Answer]) -> tuple[list[float], int]:
    seconds, right = [], 0
    for text, gold, _ in answers[:WARM_UP]:
        grade(text, gold)
    for text, gold, correct in answers[WARM_UP:]:
        start = time.perf_counter()
        verdict = grade(text, gold)
        seconds.append(time.perf_counter() - start)
        right += verdict == ("correct" if correct else "wrong")
    return seconds, right
