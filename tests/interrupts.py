"""Interrupts in the middle of a call, as Ctrl-C makes them."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

LIMIT_S = 60.0


@contextmanager
def interrupted_when(condition: Callable[[], bool], what: str) -> Iterator[None]:
    """Sends SIGINT to this process once a condition holds, and expects KeyboardInterrupt from the block.

    Meanwhile there is no garbage collection. Where the collector calls a function written in Python, the handler of a
    signal that has come runs in it, and what it raises is lost. Hypothesis adds such a function with its first test.
    """

    def interrupt() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                late.append(what)
                break
            select.select([], [], [], 0.005)
        os.kill(os.getpid(), signal.SIGINT)

    late: list[str] = []
    thread = threading.Thread(target=interrupt)
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
            thread.start()
            yield
            thread.join()
        thread.join()
    finally:
        gc.enable()
    assert not late, f"not in time: {what}"


def interrupted(after_s: float) -> AbstractContextManager[None]:
    """Does the same after so many seconds."""
    at = time.monotonic() + after_s
    return interrupted_when(lambda: time.monotonic() >= at, "it is time")
