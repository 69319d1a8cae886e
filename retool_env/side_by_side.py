"""Environments side by side: one sandbox for all, and the turns of a step worked on at the same time.

What ``ReToolVectorEnv`` and ``ReToolGroup`` have in common.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar, Unpack

from retool_env.config import EpisodeOptions
from retool_env.env import ReToolEnv
from retool_env.env_options import checked_options, sandbox_config
from retool_env.problems import Problem
from retool_env.sandbox import Sandbox, SandboxConfig

T = TypeVar("T")

Problems = str | os.PathLike[str] | Sequence[Problem | Mapping[str, Any]] | None
SandboxOption = Sandbox | SandboxConfig | Mapping[str, Any] | str | None

_PROGRAMS_A_CORE: Final = 4
_SESSIONS: Final = 512
"""What a sandbox has room for where its configuration does not say (see ``SandboxConfig``)."""

_MOST_PROGRAMS: Final = 900
_MOST_SESSIONS: Final = 2048
"""What it can have room for."""


def side_by_side(
    n: int, problems: Problems, sandbox: SandboxOption, render_mode: str | None, **rules: Unpack[EpisodeOptions]
) -> list[ReToolEnv]:
    """Returns environments with the same problems and rules, and one sandbox, which the first of them owns.

    A sandbox of their own has room for the code of all of them at the same time, unless its configuration says
    otherwise.

    Args:
        n: How many; at least 1.
        problems: As for ``ReToolEnv``.
        sandbox: As for ``ReToolEnv``.
        render_mode: As for ``ReToolEnv``.
        **rules: As for ``ReToolEnv``.

    Raises:
        ReToolError, gymnasium.error.UnsupportedMode: As ``ReToolEnv`` does.
    """
    if not isinstance(sandbox, Sandbox):
        with checked_options():
            sandbox = _with_room(sandbox_config(sandbox), n)
    first = ReToolEnv(problems, sandbox=sandbox, render_mode=render_mode, **rules)
    return [first, *(first.sibling() for _ in range(n - 1))]


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits calls at the same time and returns their results, in order.

    If some raise, the others still come to their end; then the first error, in order, is raised.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


def wait_for(call: Coroutine[Any, Any, T]) -> T:
    """Runs an asynchronous call to its end, on an event loop of its own.

    The caller may be inside a running loop (a notebook): then it is run in a thread. The thread's current loop, which
    ``asyncio.run`` would replace, stays what it is.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(call)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, _run, call).result()


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Adds the name of the environment to what is raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"({name})")
        raise


def _run(call: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(call)


def _with_room(config: SandboxConfig, n: int) -> SandboxConfig:
    room = {}
    if config.max_concurrency is None and n > _PROGRAMS_A_CORE * len(os.sched_getaffinity(0)):
        room["max_concurrency"] = min(n, _MOST_PROGRAMS)
    if config.max_sessions is None and n > _SESSIONS:
        room["max_sessions"] = min(n, _MOST_SESSIONS)
    return config.model_copy(update=room)
