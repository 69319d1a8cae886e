"""Hostile neighbours: an honest program beside them is right, sees nothing of them, and gets its share of the cores."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import pytest

from retool_env.sandbox import ExecutionResult, Sandbox

from .conftest import assert_at_rest, wait_until

pytestmark = pytest.mark.slow


HOSTILE = {
    "fork bomb": """
        import os, threading, time
        def bomb():
            while True:
                try:
                    if os.fork() == 0: os._exit(0)
                except OSError: pass
        while True:
            try: threading.Thread(target=bomb, daemon=True).start()
            except RuntimeError: time.sleep(0.01)
    """,
    "memory hog": """
        kept = []
        while True:
            try: kept.append(bytearray(b"x" * (8 << 20)))
            except MemoryError: pass
    """,
    "output flood": """
        import os
        block = b"FLOOD" * 10_000
        while True:
            os.write(1, block)
            os.write(2, block)
    """,
    "threads that burn": """
        import hashlib, threading
        block = bytes(1 << 20)
        def burn():
            while True: hashlib.sha256(block).digest()
        for _ in range(4): threading.Thread(target=burn, daemon=True).start()
        burn()
    """,
    "disk filler": """
        import os
        n = 0
        while True:
            try:
                with open(f"/tmp/NEIGHBOUR-{n % 500}", "ab") as file: file.write(bytes(1 << 20))
                os.mkdir(f"/tmp/NEIGHBOURS-{n}")
            except OSError: pass
            n += 1
    """,
    "signal sender": """
        import os, signal
        pid = os.getpid()
        mild = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in mild: signal.signal(number, signal.SIG_IGN)
        while True:
            for number in (*mild, signal.SIGSTOP, signal.SIGKILL):
                for target in (-1, *range(2, 400), *range(max(2, pid - 400), pid + 400)):
                    try:
                        if target != pid: os.kill(target, number)
                    except OSError: pass
                for group in range(2, 400):
                    try:
                        if group != os.getpgid(0): os.killpg(group, number)
                    except OSError: pass
    """,
    "scanner": """
        import os
        while True:
            for folder in ("/proc", "/tmp", "/dev/shm", "/var/tmp"):
                try:
                    for name in os.listdir(folder):
                        for leaf in ("environ", "mem", "maps", "fd/1", "cmdline"):
                            try: open(f"{folder}/{name}/{leaf}", "rb").read(100)
                            except OSError: pass
                except OSError: pass
    """,
    "socket flood": """
        import os, socket
        control = socket.socket(fileno=3)
        while True: control.send(b"")
    """,
}

HONEST = """
import os, signal, sys, time
heard = []
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        try: signal.signal(number, lambda number, frame: heard.append(number))
        except (OSError, ValueError): pass
try:
    with open("/tmp/honest", "w") as file: file.write("mine " * 1000)
except OSError: pass
seen = set()
total, start = 0, time.process_time()
while time.process_time() - start < 0.1:
    for value in range(1000): total = (total * 31 + value) % 1_000_003
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/proc"):
        try: names = os.listdir(folder)
        except OSError: continue
        for name in names:
            if "NEIGHBOUR" in name: seen.add(name)
            if folder == "/proc" and name.isdigit() and int(name) != os.getpid():
                try: seen.add(open(f"/proc/{name}/cmdline").read())
                except OSError: pass
for pid in [*range(2, 400), *range(max(2, os.getpid() - 400), os.getpid() + 400)]:
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
            seen.add(f"process {pid}")
        except OSError: pass
try: whole = open("/tmp/honest").read() == "mine " * 1000
except OSError: whole = None
checked = 0
for value in range(50_000): checked = (checked * 31 + value) % 1_000_003
print(checked, sorted(seen), heard, whole)
"""

BURN = "while True: pass"


def dedent(code: str) -> str:
    lines = code.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines).rstrip()


class Neighbours:
    """Keeps a number of hostile programs running: whenever one has been ended, the next one starts.

    Attributes:
        results: How those that have ended did.
    """

    def __init__(self, sandbox: Sandbox, programs: list[str], timeout_s: float = 2.0):
        self.sandbox, self.timeout_s = sandbox, timeout_s
        self.results: list[ExecutionResult] = []
        self._lock = threading.Lock()
        self._running: set[Future[ExecutionResult]] = set()
        self._stopped = False
        for program in programs:
            self._start(program)
        wait_until(lambda: sandbox.metrics().running >= len(programs) or bool(self.results), "the neighbours run")

    def _start(self, program: str) -> None:
        with self._lock:
            if self._stopped:
                return
            future = self.sandbox.submit(program, timeout_s=self.timeout_s)
            self._running.add(future)
        future.add_done_callback(lambda future: self._ended(future, program))

    def _ended(self, future: Future[ExecutionResult], program: str) -> None:
        with self._lock:
            self._running.discard(future)
        if not future.cancelled():
            self.results.append(future.result())
            self._start(program)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for future in running:
            future.cancel()


@pytest.fixture(scope="module")
def street(tier, start_sandbox):
    options = {
        "preload": None,
        "timeout_s": 10.0,
        "memory_mb": 128,
        "tmp_mb": 4,
        "max_concurrency": 4,
        "max_output_bytes": 1 << 22,
    }
    with start_sandbox(tier=tier, **options) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def alone(street) -> str:
    result = street.run(HONEST)
    assert result.status == "ok", result.stderr
    return result.stdout


class TestAnHonestProgram:
    @pytest.mark.parametrize("kind", HOSTILE)
    def test_is_right_and_sees_nothing(self, street, alone, kind):
        with Neighbours(street, [dedent(HOSTILE[kind])] * 3) as neighbours:
            result = street.run(HONEST)
        assert (result.status, result.stdout, result.stderr) == ("ok", alone, "")
        assert {result.status.value for result in neighbours.results} <= {
            "timeout", "memory", "output_limit", "error", "killed",
        }  # fmt: skip
        assert_at_rest(street)

    def test_beside_all_of_them(self, street, alone):
        """More hostile programs than may run: the honest ones wait their turn in a queue that moves."""
        with Neighbours(street, [dedent(program) for program in HOSTILE.values()], timeout_s=0.3):
            results = [future.result(120) for future in [street.submit(HONEST) for _ in range(4)]]
        assert [(result.status, result.stdout) for result in results] == [("ok", alone)] * 4
        assert_at_rest(street)

    def test_its_standard_case(self, street, alone):
        """What the comparison rests on."""
        numbers, seen, heard, whole = alone.split(" ", 1)[0], "[]", "[]", alone.split()[-1]
        checked = 0
        for value in range(50_000):
            checked = (checked * 31 + value) % 1_000_003
        assert numbers == str(checked)
        assert alone == f"{checked} {seen} {heard} {whole}\n"
        assert whole == ("True" if street.tier == "nsjail" else "None")


def share(result: ExecutionResult) -> float:
    """Returns the cores a program has had, on average over its life."""
    return result.cpu_s / result.wall_s


class TestShares:
    """Compared with what the neighbours got in the same seconds, so that other load on the machine is no matter."""

    WORK = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"

    @pytest.mark.parametrize(
        ("program", "threads"),
        [(BURN, 1), (dedent(HOSTILE["threads that burn"]), 5), (dedent(HOSTILE["signal sender"]), 1)],
        ids=["loops", "threads", "signals"],
    )
    def test_an_honest_program_gets_its_share(self, street, program, threads):
        with Neighbours(street, [program] * 3, timeout_s=0.4) as neighbours:
            beside = min((street.run(self.WORK) for _ in range(2)), key=lambda result: result.wall_s)
            wait_until(lambda: len(neighbours.results) >= 3, "neighbours have ended")
        assert beside.status == "ok"
        typical = sorted(share(result) for result in neighbours.results)[len(neighbours.results) // 2]
        assert share(beside) > typical / threads / 3

    def test_nobody_times_out_below_its_share(self, street):
        """More loops than cores: each has had its limit's worth of CPU time when its time is up."""
        futures = [street.submit(BURN, timeout_s=0.3) for _ in range(4)]
        honest = [street.submit(self.WORK, timeout_s=0.4) for _ in range(6)]
        for future in futures:
            result = future.result(120)
            assert result.status == "timeout"
            assert result.cpu_s > 0.3 * 0.6
        assert [future.result(120).status.value for future in honest] == ["ok"] * 6
