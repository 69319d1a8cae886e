"""``shared_sandbox``: one sandbox for all attempts of a process, for trainers that build a new object for each attempt.

A trainer's loop object lives as long as one attempt and has no hook for its worker's end, so the sandbox cannot be its.
The one here is made when code first runs and lasts until the process ends, however it ends: its zygote watches its
owner. In a process that is forked off, the sandboxes are that process's own.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from retool_env.interpreter import LazySandbox
from retool_env.sandbox import SandboxConfig

_sandboxes: Final[dict[SandboxConfig, LazySandbox]] = {}
_lock = threading.Lock()


def shared_sandbox(config: SandboxConfig | None = None) -> LazySandbox:
    """Returns this process's sandbox of a configuration: always the same one, until ``close_shared_sandboxes``.

    Starts nothing. May be called from any thread.
    """
    config = config or SandboxConfig()
    with _lock:
        return _sandboxes.setdefault(config, LazySandbox(config=config))


def close_shared_sandboxes() -> None:
    """Closes this process's shared sandboxes. May be called again; a later ``shared_sandbox`` makes new ones."""
    with _lock:
        sandboxes = list(_sandboxes.values())
        _sandboxes.clear()
    for sandbox in sandboxes:
        sandbox.close()


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _sandboxes.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
