"""The memory of an environment: what tracemalloc counts, that is Python objects and arrays."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import gymnasium

from retool_env.bench.actions import PROBLEM, answer, turn
from retool_env.errors import MissingDependencyError
from retool_env.sandbox import Sandbox

_PROTOCOL: Final = "code_tags"
_TURNS: Final = (turn(_PROTOCOL, "prose", 10_000), answer(_PROTOCOL))

_Stages = tuple[Callable[[], object], Callable[[], object]]
"""Begins an episode in all environments; takes all of it to the end."""


def measure(sandbox: Sandbox, num_envs: int) -> dict[str, Any]:
    """Measures so many environments of each face, after one that warms up; all share a sandbox."""
    part: dict[str, Any] = {}
    for face, make in (("single", _single), ("vector", _vector), ("group", _group)):
        try:
            _stages_kb(make, sandbox, 1)
            part[face] = {"envs": num_envs, **_stages_kb(make, sandbox, num_envs)}
        except MissingDependencyError as error:
            part[face] = {"unsupported": str(error)}
    return part


def _stages_kb(make: Callable[[Sandbox, int, ExitStack], _Stages], sandbox: Sandbox, num_envs: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before = _traced()
        reset, finish = make(sandbox, num_envs, stack)
        figures["made_kb"] = (_traced() - before) / 1024 / num_envs
        for name, stage in (("reset_kb", reset), ("ended_kb", finish)):
            stage()
            figures[name] = (_traced() - before) / 1024 / num_envs
    return figures


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _single(sandbox: Sandbox, num_envs: int, stack: ExitStack) -> _Stages:
    envs = [gymnasium.make("ReTool-v0", problems=[PROBLEM], sandbox=sandbox) for _ in range(num_envs)]
    for env in envs:
        stack.enter_context(contextlib.closing(env))

    def reset() -> None:
        for env in envs:
            env.reset(seed=0)

    def finish() -> None:
        for env in envs:
            for text in _TURNS:
                env.step(text)

    return reset, finish


def _vector(sandbox: Sandbox, num_envs: int, stack: ExitStack) -> _Stages:
    envs = gymnasium.make_vec("ReTool-v0", num_envs=num_envs, problems=[PROBLEM], sandbox=sandbox)
    stack.enter_context(contextlib.closing(envs))

    def finish() -> None:
        for text in _TURNS:
            envs.step([text] * num_envs)

    return lambda: envs.reset(seed=0), finish


def _group(sandbox: Sandbox, num_envs: int, stack: ExitStack) -> _Stages:
    from retool_env.group import parallel_env

    env = stack.enter_context(contextlib.closing(parallel_env(num_envs, problems=[PROBLEM], sandbox=sandbox)))

    def finish() -> None:
        for text in _TURNS:
            env.step(dict.fromkeys(env.agents, text))

    return lambda: env.reset(seed=0), finish
