"""The worker process: threads, loops, forks, hangs, deaths, and nothing left behind."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retool_env.grading import WorkerStartError, agrade, agrade_answer, check_gold, grade_answer, shutdown
from retool_env.grading import symbolic as symbolic_module
from retool_env.grading.symbolic import WORKER

HANGS = ["(1+x)^{5000000}", r"9^{9^{9^9}}", r"\sin(\sin(\exp(\exp(\exp(3)))+3))"]
HUNGRY = r"\lfloor 2^{2^{34}} \rfloor"  # an integer of 2 GiB


def symbolic(answer: str = r"2\sqrt{2}", gold: str = r"\sqrt{8}") -> bool:
    grade = grade_answer(answer, gold)
    assert grade.method == "symbolic"
    return grade.correct


def running_worker() -> int:
    assert symbolic()
    assert WORKER.pid is not None
    return WORKER.pid


def wait_for_end(pid: int, timeout_s: float = 20) -> None:
    """Waits until a process that may not be our child is gone (or a zombie of a reaper that is not ours)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(timeout_s * 1000), f"process {pid} is still alive"
    finally:
        os.close(descriptor)


def all_children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


_others: set[int] = set()
"""Children that other tests keep for the whole run: sandboxes, servers of multiprocessing."""


def children() -> list[int]:
    return sorted(all_children() - _others)


@pytest.fixture(autouse=True)
def _fresh_worker() -> Iterator[None]:
    _others.clear()
    _others.update(all_children())
    yield
    shutdown()


def test_one_warm_worker_serves_all() -> None:
    pid = running_worker()
    assert not symbolic(r"\sqrt{2}", r"\sqrt{3}")
    assert WORKER.pid == pid


def test_numeric_golds_need_no_worker() -> None:
    shutdown()
    for answer in ("42", "43", "3 or 42", "[0,42]", "1/42", "x=42", "nonsense", "100000000!", "x > 2"):
        grade_answer(answer, "42")
    assert WORKER.pid is None


def test_from_other_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda n: symbolic(rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"), range(2, 42)))
    assert all(verdicts)


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    started: list[int] = []
    thread = threading.Thread(target=lambda: started.append(running_worker()))
    thread.start()
    thread.join()
    assert symbolic()
    assert [WORKER.pid] == started


def test_from_several_event_loops() -> None:
    async def several() -> list[bool]:
        return [
            grade.correct
            for grade in await asyncio.gather(*(agrade(r"\boxed{2\sqrt{2}}", r"\sqrt{8}") for _ in range(5)))
        ]

    assert asyncio.run(several()) == [True] * 5
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: asyncio.run(several()), range(3))) == [[True] * 5] * 3


async def test_the_event_loop_is_not_blocked() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    running_worker()
    ticker = asyncio.create_task(tick())
    grade = await agrade_answer(HANGS[0], "x", limit_s=1)
    ticker.cancel()
    assert grade.timed_out
    assert ticks > 10


@pytest.mark.parametrize("answer", HANGS)
def test_a_hang_is_a_timeout_and_not_wrong(answer: str) -> None:
    pid = running_worker()
    grade = grade_answer(answer, "x", limit_s=0.5)
    assert (grade.correct, grade.timed_out, grade.method) == (False, True, "symbolic")
    assert "0.5 s" in grade.reason
    assert WORKER.pid != pid
    assert symbolic()


def test_starting_the_worker_does_not_count() -> None:
    shutdown()
    grade = grade_answer(r"2\sqrt{2}", r"\sqrt{8}", limit_s=0.5)
    assert grade.correct


def test_running_out_of_memory_is_a_timeout_and_not_wrong() -> None:
    pid = running_worker()
    grade = grade_answer(HUNGRY, "x")
    assert (grade.correct, grade.timed_out) == (False, True)
    assert "memory" in grade.reason
    assert symbolic()
    assert WORKER.pid != pid


def test_memory_is_limited() -> None:
    pid = running_worker()
    limits = Path(f"/proc/{pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert int(line.split()[3]) < 3 << 30


def test_the_worker_has_neither_gmpy2_nor_the_hosts_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETOOL_TEST_SECRET", "secret")
    pid = running_worker()
    assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "gmpy2" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_killed_worker_is_replaced() -> None:
    pid = running_worker()
    os.kill(pid, signal.SIGKILL)
    assert symbolic()
    assert WORKER.pid != pid


def test_killed_in_mid_call() -> None:
    first = running_worker()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(grade_answer, HANGS[0], "x", limit_s=3)
        wait_until_busy(first)
        os.kill(first, signal.SIGKILL)
        grade = call.result()
    assert grade.timed_out  # tried again on a second worker, where it hangs
    assert not grade.correct
    assert symbolic()
    assert set(children()) <= {WORKER.pid}


def wait_until_busy(pid: int) -> None:
    """Waits until a process has used some processor time more than now."""

    def ticks() -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])

    before, deadline = ticks(), time.monotonic() + 20
    while ticks() < before + 5:
        assert time.monotonic() < deadline


def test_after_a_fork() -> None:
    parent_worker = running_worker()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left threads behind
        child = os.fork()
    if child == 0:
        code = 1
        try:
            clean = WORKER.pid is None
            ok = grade_answer(r"2\sqrt{2}", r"\sqrt{8}").correct and WORKER.pid not in (None, parent_worker)
            own = WORKER.pid
            shutdown()
            code = 0 if clean and ok and not Path(f"/proc/{own}").exists() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert running_worker() == parent_worker


def test_a_fork_while_another_thread_grades() -> None:
    pid = running_worker()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(grade_answer, HANGS[0], "x", limit_s=2)
        wait_until_busy(pid)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(0 if grade_answer(r"2\sqrt{2}", r"\sqrt{8}").correct else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert call.result().timed_out


def test_shutdown_leaves_no_process() -> None:
    pid = running_worker()
    shutdown()
    assert WORKER.pid is None
    assert not Path(f"/proc/{pid}").exists()
    assert children() == []
    shutdown()


HOST = """
import sys, os
from retool_env.grading import grade_answer
from retool_env.grading import symbolic as symbolic_module
from retool_env.grading.symbolic import WORKER
assert grade_answer(r"2\\sqrt{2}", r"\\sqrt{8}").correct
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.stdin.read()  # holds the inherited socket open, until the test ends it
    os._exit(0)
print(WORKER.pid, flush=True)
if sys.argv[1] == "exit":
    sys.exit()
if sys.argv[1] == "hang":
    grade_answer("(1+x)^{5000000}", "x", limit_s=1)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "idle", "fork", "hang"])
def test_the_worker_dies_with_its_host(how: str) -> None:
    root = str(Path(__file__).parents[2])
    host = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOST, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    with host:
        assert host.stdout is not None
        worker = int(host.stdout.readline())
        if how == "hang":
            wait_until_busy(worker)
        if how != "exit":
            host.kill()
        wait_for_end(worker)
        host.wait()


def test_a_thousand_answers_some_hang_some_are_malformed() -> None:
    rng = random.Random(0)
    rows: list[tuple[str, str, bool]] = []
    for n in range(2, 402):
        rows.append((rf"{n}\sqrt{{3}}", rf"\sqrt{{{3 * n * n}}}", True))
        rows.append((rf"\frac{{{n}}}{{7}}", rf"{n}/7", True))
    malformed = [
        r"\frac{1}{",
        "}{",
        r"\boxed{",
        r"\begin{pmatrix}",
        "x +* y",
        "\\",
        r"\sqrt[",
        "1..2",
        r"\left(",
        "^_^",
    ]
    rows += [(rng.choice(malformed), r"\sqrt{8}", False) for _ in range(190)]
    rows += [(answer, "x", False) for answer in (*HANGS, *HANGS, HANGS[0], HUNGRY, HUNGRY, "100000000!")]
    rng.shuffle(rows)
    assert len(rows) == 1000
    grades = [grade_answer(answer, gold, limit_s=0.5) for answer, gold, _ in rows]
    # A machine that stands still for half a second may turn a right answer into a timeout, never into a wrong one.
    wrong = [
        (row, grade) for row, grade in zip(rows, grades, strict=True) if grade.correct != row[2] and not grade.timed_out
    ]
    assert not wrong
    missed = [row for row, grade in zip(rows, grades, strict=True) if grade.timed_out and row[2]]
    assert all(grade_answer(answer, gold).correct for answer, gold, _ in missed)
    assert len(missed) <= 5
    assert sum(grade.timed_out for grade in grades) >= 9
    assert symbolic()


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
        with pytest.raises(WorkerStartError, match="No module named"):
            symbolic()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "no-python"))
        with pytest.raises(WorkerStartError, match="no-python"):
            symbolic()
    assert symbolic()


def test_a_gold_that_hangs_is_refused_at_load_time() -> None:
    with pytest.raises(ValueError, match="cannot be evaluated"):
        check_gold(r"9^{9^{9^9}}")


def test_a_verdict_does_not_depend_on_chance() -> None:
    # simplify draws random numbers, and of infinity it made anything.
    for _ in range(10):
        assert not grade_answer(r"\sqrt{3}\infty \sqrt{2}", r"\sqrt{2}").correct
        assert not grade_answer(r"3\pi\infty 2\pi", r"2\pi").correct
        shutdown()


def test_each_request_starts_from_the_same_random_numbers(subprocess_python) -> None:
    output = subprocess_python(
        "import sys, random, sympy.core.random as source\n"
        f"sys.path.insert(0, {str(Path(symbolic_module.__file__).parent)!r})\n"
        "from equality import OPERATIONS\n"
        "drawn = []\n"
        "for _ in range(2):\n"
        "    OPERATIONS['parses']('x', '')\n"
        "    drawn.append((random.random(), source.rng.random()))\n"
        "print(drawn[0] == drawn[1])\n"
    )
    assert output.splitlines()[-1] == "True"
