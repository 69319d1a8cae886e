"""Our own time for a turn: that of a step without the time in the sandbox."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter, thread_time
from typing import Any, Final

import gymnasium

from retool_env.bench.actions import PROBLEM, PROTOCOLS, SHAPES, turn
from retool_env.sandbox import ExecutionResult, Sandbox

TARGET_CHARS: Final = 10_000
LENGTHS: Final = tuple(1_000 * 2**power for power in range(11))
"""From 1 kB to 1 MB, doubled each time."""

_MAX_CHARS: Final = 1 << 21


class TimedSandbox(Sandbox):
    """A sandbox that knows how long its last call of ``run`` took its caller, in seconds and CPU seconds."""

    call_s = 0.0
    call_cpu_s = 0.0

    def run(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        """Runs a program and waits for its end."""
        started, cpu_started = perf_counter(), thread_time()
        try:
            return super().run(code, timeout_s)
        finally:
            self.call_cpu_s = thread_time() - cpu_started
            self.call_s = perf_counter() - started


@dataclass
class Times:
    """The times of one kind of step, in seconds."""

    own: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    beside_program: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    reset: list[float] = field(default_factory=list)


def measure_own(sandbox: TimedSandbox, rounds: int) -> dict[str, Any]:
    """Times steps with actions of 10 kB; see ``retool_env.bench`` for what it returns."""
    times = _measure(sandbox, (TARGET_CHARS,), rounds)
    return {
        protocol: {shape: _figures(times[protocol, shape, TARGET_CHARS], protocol, shape) for shape in SHAPES}
        for protocol in PROTOCOLS
    }


def measure_length(sandbox: TimedSandbox, lengths: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Times steps with text of doubled lengths; see ``retool_env.bench`` for what it returns."""
    times = _measure(sandbox, lengths, rounds)
    part: dict[str, Any] = {}
    for protocol in PROTOCOLS:
        part[protocol] = {}
        for shape in SHAPES:
            best = [min(times[protocol, shape, n_chars].own) for n_chars in lengths]
            ratios = [after / before for before, after in pairwise(best)]
            figures = {"chars": list(lengths), "own_best_us": [seconds * 1e6 for seconds in best], "ratios": ratios}
            part[protocol][shape] = figures
    return part


def _measure(sandbox: TimedSandbox, lengths: tuple[int, ...], rounds: int) -> dict[tuple[str, str, int], Times]:
    """Times one step of each kind in turn, again and again, so that all see the same machine."""
    kinds = [(protocol, shape, n_chars) for n_chars in lengths for protocol in PROTOCOLS for shape in SHAPES]
    times = {kind: Times() for kind in kinds}
    actions = {kind: turn(*kind) for kind in kinds}
    with _environments(sandbox) as envs:
        for number in range(rounds + 1):
            for kind in kinds:
                # The first round only warms up.
                _time_step(envs[kind[0]], actions[kind], sandbox, times[kind] if number else Times())
    return times


@contextmanager
def _environments(sandbox: Sandbox) -> Iterator[dict[str, gymnasium.Env[str, str]]]:
    envs: dict[str, gymnasium.Env[str, str]] = {}
    try:
        for protocol in PROTOCOLS:
            envs[protocol] = gymnasium.make(
                "ReTool-v0",
                disable_env_checker=True,  # gymnasium's, and not our time
                problems=[PROBLEM],
                protocol=protocol,
                sandbox=sandbox,
                max_action_chars=_MAX_CHARS,
            )
        yield envs
    finally:
        for env in envs.values():
            env.close()


def _time_step(env: gymnasium.Env[str, str], action: str, sandbox: TimedSandbox, times: Times) -> None:
    before = perf_counter()
    env.reset(seed=0)
    times.reset.append(perf_counter() - before)
    sandbox.call_s = sandbox.call_cpu_s = 0.0
    cpu_started, started = thread_time(), perf_counter()  # in this order: reading CPU time is a call of the kernel
    _, _, _, _, info = env.step(action)
    step_s, cpu_s = perf_counter() - started, thread_time() - cpu_started
    if not (info["correct"] or info["statuses"] == ("ok",)):
        raise AssertionError(f"a turn of the benchmark did not work: {info['action']} {info['statuses']}")
    times.step.append(step_s)
    times.own.append(step_s - sandbox.call_s)
    times.cpu.append(cpu_s - sandbox.call_cpu_s)
    execution: ExecutionResult | None = env.get_wrapper_attr("last_execution")
    program_s = 0.0 if execution is None else execution.wall_s + execution.queue_s
    times.beside_program.append(step_s - program_s)


def _figures(times: Times, protocol: str, shape: str) -> dict[str, float]:
    return {
        "n": len(times.own),
        "chars": len(turn(protocol, shape, TARGET_CHARS)),
        "own_p50_us": _p50_us(times.own),
        "own_best_us": min(times.own) * 1e6,
        "cpu_p50_us": _p50_us(times.cpu),
        "beside_program_p50_us": _p50_us(times.beside_program),
        "step_p50_us": _p50_us(times.step),
        "reset_p50_us": _p50_us(times.reset),
    }


def _p50_us(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * 1e6
