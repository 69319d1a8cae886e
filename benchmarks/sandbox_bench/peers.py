"""Other projects' tools, each in an interpreter of its own; ``scripts/bench_peers.sh`` makes those."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .programs import PROGRAMS, check

NAMES = ("gem-llm", "skyrl-gym", "verifiers")


class Peers:
    """Drivers of the projects' tools, ready for programs; a context manager.

    Attributes:
        ways: Name -> a function that runs a program by its name and returns the seconds it took.
        report: Name -> what is measured, or why it is not.
    """

    def __init__(self, places: Sequence[str]):
        """Starts them.

        Args:
            places: Folders with an environment ``NAME`` for each project, or ``NAME=PYTHON`` for a single one.
        """
        self.ways: dict[str, Callable[[str], float]] = {}
        self.report: dict[str, dict[str, str]] = {}
        self._stack = ExitStack()
        for name, python in find_interpreters(places).items():
            try:
                self._start(name, python)
            except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                self.report[name] = {"unsupported": str(error)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, name: str, python: Path) -> None:
        if not python.exists():
            raise RuntimeError(f"there is no {python}: scripts/bench_peers.sh makes it")
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-peer-", ignore_cleanup_errors=True)
        )
        environment = os.environ | {"HOME": folder, "PATH": f"{python.parent}:{os.environ.get('PATH', os.defpath)}"}
        errors = Path(folder) / "errors"
        with errors.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [python, Path(__file__).with_name("peer_driver.py"), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=folder,
                env=environment,
                text=True,
            )
        self._stack.callback(process.wait, 30)
        self._stack.callback(lambda: process.stdin and process.stdin.close())

        def ask(line: str | None) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            if line is not None:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                lines = errors.read_text(encoding="utf-8").strip().splitlines() or ["it ended"]
                raise RuntimeError(f"{name} in {python}: {lines[-1]}")
            return json.loads(answer)

        def run(program: str) -> float:
            seconds, output = ask(json.dumps(PROGRAMS[program]))
            check(program, output + "\n")
            return float(seconds)

        self.report[name] = ask(None)
        for program in PROGRAMS:
            run(program)
        self.ways[name] = run


def find_interpreters(places: Sequence[str]) -> dict[str, Path]:
    """Returns name -> interpreter.

    Raises:
        ValueError: A name is not one of ``NAMES``.
    """
    found: dict[str, Path] = {}
    for place in places:
        name, separator, python = place.partition("=")
        if not separator:
            # Not resolved: an interpreter knows its environment by the path that it was called by.
            found |= {name: Path(place).absolute() / name / "bin" / "python" for name in NAMES}
        elif name in NAMES:
            found[name] = Path(python).absolute()
        else:
            raise ValueError(f"--peers {place}: the names are {', '.join(NAMES)}")
    return found
