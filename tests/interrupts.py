"""Interrupts in the middle of a call, as Ctrl-C makes them."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Sends SIGINT to this process after so many seconds, and expects KeyboardInterrupt from the block.

    Meanwhile there is no garbage collection. Where the collector calls a function written in Python, the handler of a
    signal that has come runs in it, and what it raises is lost. Hypothesis adds such a function with its first test.
    """
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
            timer.start()
            yield
        timer.join()
    finally:
        gc.enable()
