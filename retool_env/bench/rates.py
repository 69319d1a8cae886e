"""Turns a second: one environment, many in a vector, and a group."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter, process_time
from typing import Any, Final

import gymnasium
from gymnasium.utils.performance import benchmark_step

from retool_env.bench.actions import PROBLEM, PROTOCOLS, FixedTurns, episode
from retool_env.errors import MissingDependencyError
from retool_env.sandbox import Sandbox

FACES: Final = ("single", "vector", "group")
KINDS: Final = ("code", "no_code")

_Run = Callable[[float], float]
"""Takes turns for some seconds, and returns how many a second."""


def measure(sandbox: Sandbox, num_envs: int, seconds: float, rounds: int, pettingzoo: bool) -> dict[str, Any]:
    """Measures all faces in turn, again and again, so that all see the same machine.

    Args:
        sandbox: Runs the code of all of them.
        num_envs: Environments of the vector, and agents of the group.
        seconds: Of each measurement.
        rounds: Measurements of each kind, of which the median is returned. One more warms up.
        pettingzoo: Whether to run PettingZoo's own benchmark, too, which takes five seconds for each kind.
    """
    part: dict[str, Any] = {}
    with ExitStack() as stack:
        runs: dict[tuple[str, str, str], _Run] = {}
        for face, make in (("single", _single), ("vector", _vector), ("group", _group)):
            try:
                part[face] = {"what": "", "envs": 1 if face == "single" else num_envs}
                for protocol in PROTOCOLS:
                    for kind in KINDS:
                        turns = episode(protocol, code=kind == "code")
                        what, run = stack.enter_context(make(sandbox, num_envs, protocol, turns))
                        part[face] |= {"what": what, protocol: {}}
                        runs[face, protocol, kind] = run
            except MissingDependencyError as error:
                part[face] = {"unsupported": str(error)}
        for (face, protocol, kind), figures in _measure_all(runs, seconds, rounds).items():
            part[face][protocol][kind] = figures
        if pettingzoo and "unsupported" not in part["group"]:
            part["group"]["pettingzoo_turns_per_s"] = {
                kind: _pettingzoo_rate(sandbox, num_envs, episode("code_tags", code=kind == "code")) for kind in KINDS
            }
        elif "unsupported" not in part["group"]:
            part["group"]["pettingzoo_turns_per_s"] = None
    return part


def _measure_all(
    runs: dict[tuple[str, str, str], _Run], seconds: float, rounds: int
) -> dict[tuple[str, str, str], dict[str, float]]:
    rates: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}
    shares: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}
    for number in range(rounds + 1):
        for key, run in runs.items():
            started, cpu_started = perf_counter(), process_time()
            rate = run(seconds if number else seconds / 4)
            share = (process_time() - cpu_started) / (perf_counter() - started)
            if number:
                rates[key].append(rate)
                shares[key].append(share / rate)
    return {
        key: {"turns_per_s": statistics.median(rates[key]), "host_cpu_us": statistics.median(shares[key]) * 1e6}
        for key in runs
    }


@contextmanager
def _single(sandbox: Sandbox, num_envs: int, protocol: str, turns: Sequence[str]) -> Iterator[tuple[str, _Run]]:
    with contextlib.closing(gymnasium.make("ReTool-v0", problems=[PROBLEM], protocol=protocol, sandbox=sandbox)) as env:

        def run(seconds: float) -> float:
            env.action_space = FixedTurns(turns)
            return benchmark_step(env, seconds, seed=0)  # type: ignore[arg-type]  # it takes any number of seconds

        yield type(env.unwrapped).__name__, run


@contextmanager
def _vector(sandbox: Sandbox, num_envs: int, protocol: str, turns: Sequence[str]) -> Iterator[tuple[str, _Run]]:
    # gymnasium has a benchmark for vectors only from 1.4 on.
    envs = gymnasium.make_vec("ReTool-v0", num_envs=num_envs, problems=[PROBLEM], protocol=protocol, sandbox=sandbox)
    with contextlib.closing(envs):

        def run(seconds: float) -> float:
            envs.reset(seed=0)
            number = n_turns = 0
            started = perf_counter()
            while perf_counter() - started < seconds or number:
                envs.step([turns[number]] * num_envs)
                n_turns += num_envs
                number += 1
                if number == len(turns):
                    envs.step([""] * num_envs)  # begins the next episodes, and looks at no action
                    number = 0
            return n_turns / (perf_counter() - started)

        yield type(envs.unwrapped).__name__, run


@contextmanager
def _group(sandbox: Sandbox, num_envs: int, protocol: str, turns: Sequence[str]) -> Iterator[tuple[str, _Run]]:
    from retool_env.group import parallel_env

    with contextlib.closing(parallel_env(num_envs, problems=[PROBLEM], protocol=protocol, sandbox=sandbox)) as env:

        def run(seconds: float) -> float:
            n_turns = 0
            started = perf_counter()
            while perf_counter() - started < seconds:
                env.reset(seed=0)
                for text in turns:
                    n_turns += len(env.agents)
                    env.step(dict.fromkeys(env.agents, text))
            return n_turns / (perf_counter() - started)

        yield type(env).__name__, run


def _pettingzoo_rate(sandbox: Sandbox, num_envs: int, turns: Sequence[str]) -> float:
    from retool_env.group import parallel_env

    benchmark: Any = importlib.import_module("pettingzoo.test.performance_benchmark")
    conversions: Any = importlib.import_module("pettingzoo.utils.conversions")
    with contextlib.closing(
        conversions.parallel_to_aec(parallel_env(num_envs, problems=[PROBLEM], sandbox=sandbox))
    ) as env:
        spaces = {agent: FixedTurns(turns) for agent in env.possible_agents}
        env.action_space = spaces.__getitem__
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            benchmark.performance_benchmark(env)
    found = re.search(r"([\d.]+) turns per second", printed.getvalue())
    if found is None:
        raise AssertionError(f"PettingZoo's benchmark does not say how many turns a second: {printed.getvalue()!r}")
    return float(found.group(1))
