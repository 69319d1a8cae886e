"""``Finalizer``: what is to be done when an object that nobody closed is collected.

``weakref.finalize`` does it in the thread that happens to collect the object, often the main one. An exception that a
signal's handler raises there, such as KeyboardInterrupt, is lost: Python prints it and goes on. What it interrupted
stays undone. Here that thread runs nothing written in Python, so no handler; a thread of ours does what is to be done.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_Object = TypeVar("_Object")

_log = logging.getLogger("retool_env.sandbox")

_waiting: dict[int, tuple[weakref.ref[Any], Callable[[], object]]] = {}
"""What is to be done, by the id of the weak reference, which has to live to call anybody."""

_collected: SimpleQueue[weakref.ref[Any]]
_thread: threading.Thread | None


class Finalizer:
    """Calls a function some time after an object was collected, in another thread; not at the interpreter's end."""

    def __init__(self, one: object, action: Callable[[], object]):
        """Watches an object.

        Args:
            one: The object.
            action: The function. It must not hold the object.
        """
        _start()
        # put is written in C, and made to be called at any moment.
        self._reference: weakref.ref[Any] | None = weakref.ref(one, _collected.put)
        _waiting[id(self._reference)] = self._reference, action

    def detach(self) -> None:
        """Has it do nothing any more. May be called again."""
        reference, self._reference = self._reference, None
        _waiting.pop(id(reference), None)


class Living(Generic[_Object]):
    """Objects of a kind, as long as they live. Not a ``WeakSet``, which runs Python where they are collected."""

    def __init__(self) -> None:
        """Begins with none."""
        self._references: dict[int, weakref.ref[_Object]] = {}

    def add(self, one: _Object) -> None:
        """Takes in an object."""
        self._references[id(one)] = weakref.ref(one)
        for key, reference in list(self._references.items()):
            if reference() is None:
                self._references.pop(key, None)

    def all(self) -> list[_Object]:
        """Returns those that live."""
        return [one for reference in list(self._references.values()) if (one := reference()) is not None]


def _start() -> None:
    """Starts the thread, if there is none. Should two callers do so at the same time, there are two, and no harm."""
    global _thread
    if _thread is None:
        thread = threading.Thread(target=_work, args=(_collected,), name="retool-sandbox-closer", daemon=True)
        thread.start()
        _thread = thread


def _work(collected: SimpleQueue[weakref.ref[Any]]) -> None:
    while True:
        _finish(collected.get())


def _finish(reference: weakref.ref[Any]) -> None:
    _, action = _waiting.pop(id(reference), (None, None))
    if action is not None:
        try:
            action()
        except Exception:
            _log.exception("what a collected object had left open could not be closed")


def _begin() -> None:
    """Also in a forked process: the thread is not there, and what was open is not its own to close."""
    global _collected, _thread
    _collected, _thread = SimpleQueue(), None
    _waiting.clear()


_begin()
os.register_at_fork(after_in_child=_begin)
