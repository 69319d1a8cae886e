"""What is known of a run while it goes on: ``RunFigures``, the engine that counts for it, and how it is shown."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from retool_env.rollout.engines.base import Engine, GenerateParams, Generation
from retool_env.sandbox import ExecutionStatus, Sandbox

if TYPE_CHECKING:
    from rich.console import Console

_REFRESHES_PER_S: Final = 2
_WINDOW_S: Final = 30.0


@dataclass(slots=True)
class RunFigures:
    """Counts of a run. Those of a run that was continued are of this time, but for ``before`` and ``correct_before``.

    Attributes:
        total: Attempts that are wanted.
        before: Those that were done before.
        correct_before: How many of them are right.
        done: Attempts that ended, faults left out.
        correct: Those that are right.
        faults: Attempts that ended in a fault: they count neither as right nor as wrong.
        resumes: Turns that were lost and generated again.
        calls: Turns that are being generated.
        turns: Turns that were generated.
        tokens: Tokens that were sampled.
        generate_s: Seconds that attempts spent waiting for the engine.
        work_s: Seconds that attempts spent running code and grading.
        began: When it began, as ``time.perf_counter`` has it.
    """

    total: int = 0
    before: int = 0
    correct_before: int = 0
    done: int = 0
    correct: int = 0
    faults: int = 0
    resumes: int = 0
    calls: int = 0
    turns: int = 0
    tokens: int = 0
    generate_s: float = 0.0
    work_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began

    @property
    def finished(self) -> int:
        """Attempts that are done, before and now."""
        return self.before + self.done

    @property
    def accuracy(self) -> float:
        """Share of right ones among all attempts that are done; NaN without one."""
        return (self.correct_before + self.correct) / self.finished if self.finished else math.nan

    @property
    def eta_s(self) -> float:
        """Seconds that are left, if the rest goes as what was done; NaN before the first attempt has ended."""
        ended = self.done + self.faults
        left = self.total - self.before - ended
        return left * self.elapsed_s / ended if ended else math.nan


class CountingEngine:
    """An engine that counts the turns and tokens of another."""

    def __init__(self, engine: Engine, figures: RunFigures):
        """Wraps the engine, and closes it with this."""
        self._engine = engine
        self._figures = figures

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn with the other engine, and counts it."""
        figures = self._figures
        figures.calls += 1
        try:
            generation = await self._engine.generate(prompt_ids, params)
        finally:
            figures.calls -= 1
        figures.turns += 1
        figures.tokens += len(generation.ids or ())
        return generation

    def release(self, trajectory_id: str) -> None:
        """Tells the other engine that an attempt has ended, if it wants to know."""
        release = getattr(self._engine, "release", None)
        if release is not None:
            release(trajectory_id)

    async def aclose(self) -> None:
        """Closes the other engine."""
        await self._engine.aclose()


class Display:
    """Shows a run's figures: a bar on a terminal, else a line every now and then."""

    def __init__(self, figures: RunFigures, sandbox: Sandbox, console: Console, *, every_s: float = 10.0):
        """Shows nothing yet.

        Args:
            figures: The figures.
            sandbox: The sandbox that is used.
            console: Where.
            every_s: Seconds between lines where it is no terminal.
        """
        self._figures = figures
        self._sandbox = sandbox
        self._console = console
        self._every_s = every_s
        self._samples: list[tuple[float, int, float]] = []

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows them for as long as the block lasts."""
        task = asyncio.create_task(self._bar() if self._console.is_terminal else self._lines())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def line(self) -> str:
        """Returns the figures in a line. Rates are those of the last half minute."""
        figures = self._figures
        tokens_s, busy = self._rates()
        timeouts = self._sandbox.metrics().status.get(ExecutionStatus.TIMEOUT, 0)
        parts = [
            f"accuracy {_percent(figures.accuracy)}",
            f"ETA {_duration(figures.eta_s)}",
            f"{tokens_s:,.0f} tokens/s",
            f"sandbox {_percent(busy)}",
            f"time-outs {timeouts}",
        ]
        if figures.resumes:
            parts.append(f"turns lost {figures.resumes}")
        if figures.faults:
            parts.append(f"faults {figures.faults}")
        return ", ".join(parts)

    async def _bar(self) -> None:
        columns = (
            TextColumn("attempts"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self._console, transient=True, auto_refresh=False) as progress:
            task = progress.add_task("", total=self._figures.total)
            while True:
                progress.update(task, completed=self._figures.finished, description=self.line())
                progress.refresh()
                await asyncio.sleep(1 / _REFRESHES_PER_S)

    async def _lines(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            figures = self._figures
            self._console.print(Text(f"{figures.finished} of {figures.total} attempts, {self.line()}"), soft_wrap=True)

    def _rates(self) -> tuple[float, float]:
        """Sampled tokens a second, and the share of this machine's cores that code takes."""
        now, metrics = time.perf_counter(), self._sandbox.metrics()
        self._samples.append((now, self._figures.tokens, metrics.cpu_s.sum))
        while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_S:
            del self._samples[0]
        began, tokens, busy_s = self._samples[0]
        if len(self._samples) == 1:
            began, tokens, busy_s = self._figures.began, 0, 0.0
        passed = max(now - began, 1e-9)
        return (self._figures.tokens - tokens) / passed, (metrics.cpu_s.sum - busy_s) / passed / _cores()


def run_figures(figures: RunFigures, sandbox: Sandbox) -> dict[str, Any]:
    """Returns the figures for JSON: what the attempts themselves do not tell.

    | key | value |
    |---|---|
    | ``attempts`` | attempts that ended this time, faults left out |
    | ``faults`` | attempts that ended in a fault, this time |
    | ``resumes`` | turns that were lost and generated again |
    | ``elapsed_s`` | seconds it took, this time |
    | ``turns``, ``tokens`` | turns that were generated, tokens that were sampled |
    | ``tokens_per_s`` | sampled tokens a second |
    | ``engine_wait_share`` | share of the attempts' time that they waited for the engine, not for code or grading |
    | ``sandbox_cpu_share`` | share of this machine's cores that code took |
    | ``sandbox_queue_share`` | share of the attempts' time that code waited for a place in the sandbox |
    | ``sandbox`` | ``SandboxMetrics.as_dict`` |
    """
    metrics = sandbox.metrics()
    elapsed_s = figures.elapsed_s
    spent_s = figures.generate_s + figures.work_s
    return {
        "attempts": figures.done,
        "faults": figures.faults,
        "resumes": figures.resumes,
        "elapsed_s": elapsed_s,
        "turns": figures.turns,
        "tokens": figures.tokens,
        "tokens_per_s": figures.tokens / elapsed_s if elapsed_s else None,
        "engine_wait_share": figures.generate_s / spent_s if spent_s else None,
        "sandbox_cpu_share": metrics.cpu_s.sum / elapsed_s / _cores() if elapsed_s else None,
        "sandbox_queue_share": metrics.queue_s.sum / spent_s if spent_s else None,
        "sandbox": metrics.as_dict(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _percent(share: float) -> str:
    return "n/a" if math.isnan(share) else f"{100 * share:.1f} %"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "n/a"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
