"""What all topics share: how much to measure, the sandboxes, the pause between calls, the machine's speed."""

from __future__ import annotations

import statistics
import subprocess
import sysconfig
import tempfile
import time
import venv
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retool_env.errors import ConfigurationError
from retool_env.sandbox import Sandbox

from .figures import REFERENCE_P1_MS
from .processes import settle
from .programs import PROGRAMS, check

WAYS: dict[str, dict[str, Any]] = {
    "sandbox": {},
    "sandbox, on demand": {"standby": 0},
    "sandbox, no light zygote": {"light": False},
    "sandbox, immortal": {"light": False, "immortal": True},
}
"""The sandboxes that are compared, by their options."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        repetitions: Of each program and way, for latencies.
        slow_every: What takes a third of a second is measured in one of so many repetitions.
        seconds: Length of each throughput measurement, all rounds together.
        rounds: Parts of a throughput measurement, with the others in between.
        concurrency: Programs in flight.
        turns: Calls of a live session.
        sessions: Sessions whose memory is looked at.
        many_sessions: Sessions open at once.
        forks: Forks of a session.
        kills: Kills of each kind.
        queued: Programs submitted at once, in ascending order.
        profiled: Executions of each program for the profile.
    """

    repetitions: int = 105
    slow_every: int = 5
    seconds: float = 2.4
    rounds: int = 3
    concurrency: tuple[int, ...] = (1, 2, 8, 32, 128)
    turns: int = 300
    sessions: int = 20
    many_sessions: int = 500
    forks: int = 100
    kills: int = 20
    queued: tuple[int, ...] = (500, 1000, 2000)
    profiled: int = 60


QUICK = Plan(
    repetitions=10,
    seconds=0.2,
    rounds=1,
    concurrency=(2, 32),
    turns=20,
    sessions=3,
    many_sessions=20,
    forks=5,
    kills=3,
    queued=(50, 100, 200),
    profiled=5,
)


class Stage:
    """Sandboxes that are started when they are first needed, and what is known of the machine."""

    def __init__(self, plan: Plan, tier: str, pause_s: float | None = None):
        """Measures the machine's speed, and pauses 1.2 times as long as a fresh Python takes unless told otherwise.

        That is the 12 ms in which the targets were stated, in the time of this machine.
        """
        self.plan = plan
        self.tier = tier
        self.unsupported: dict[str, str] = {}
        self._stack = ExitStack()
        self._python = _plain_environment(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-python-"))
        )
        self._sandboxes: dict[str, Sandbox] = {}
        self.pause_s = 1.2e-3 * REFERENCE_P1_MS * self.slowness() if pause_s is None else pause_s
        self.tier = self.need("sandbox").tier

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def need(self, way: str) -> Sandbox:
        """Returns the sandbox of that way.

        Raises:
            ConfigurationError: This Python cannot run it.
        """
        if way not in self._sandboxes:
            self._sandboxes[way] = self._stack.enter_context(self.fresh(**WAYS[way]))
        return self._sandboxes[way]

    def find(self, way: str) -> Sandbox | None:
        """Returns the sandbox of that way, or None with the reason in ``unsupported``."""
        try:
            return self.need(way)
        except ConfigurationError as error:
            self.unsupported[way] = str(error)
            return None

    def fresh(self, **options: Any) -> Sandbox:
        """Starts another sandbox; whoever asks closes it."""
        sandbox = Sandbox(tier=self.tier, echo=False, **options)
        for name, program in PROGRAMS.items():
            check(name, sandbox.run(program, timeout_s=60).stdout)
        return sandbox

    def pause(self) -> None:
        """Lets the sandbox come to rest between two calls."""
        time.sleep(self.pause_s)

    def fresh_python(self, name: str) -> float:
        """Runs a program as most do, in a Python of its own, and returns the seconds that it took."""
        start = time.perf_counter()
        done = subprocess.run([self._python, "-c", PROGRAMS[name]], capture_output=True, text=True, check=True)
        elapsed = time.perf_counter() - start
        check(name, done.stdout)
        return elapsed

    def slowness(self, repetitions: int = 9) -> float:
        """Returns how many times longer a fresh Python takes for P1 now than on the machine of the targets."""
        settle()
        return slowness([self.fresh_python("P1") for _ in range(repetitions)])


def slowness(seconds: list[float]) -> float:
    """Returns the same from times of a fresh Python for P1, in seconds."""
    return statistics.median(seconds) * 1e3 / REFERENCE_P1_MS


def _plain_environment(folder: str) -> Path:
    """Makes an environment that finds our packages and starts as fast as one they are installed in; returns its Python.

    An editable install, as of this package where it is developed, has a start-up hook that more than doubles the time a
    Python takes to start: measured beside that, everything would look better than it is.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "packages.pth").write_text("".join(f"{path}\n" for path in sorted(ours)), encoding="utf-8")
    return Path(folder) / "bin" / "python"
