"""The worker process: threads, loops, forks, hangs, deaths, and nothing left behind."""

import asyncio
import os
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
from retool_env.grading.symbolic import WORKERS

from ..interrupts import interrupted  # noqa: TID252 - `tests` is on no path

pytestmark = pytest.mark.once  # processes, sockets and signals; what a worker finds out is in the other files

HANGS = ["(1+x)^{5000000}", r"9^{9^{9^9}}", r"\sin(\sin(\exp(\exp(\exp(3)))+3))"]
HUNGRY = r"\lfloor 2^{2^{34}} \rfloor"  # an integer of 2 GiB


def symbolic(answer: str = r"2\sqrt{2}", gold: str = r"\sqrt{8}") -> bool:
    grade = grade_answer(answer, gold)
    assert grade.method == "symbolic"
    return grade.correct


def running_worker() -> int:
    """The one worker, idle."""
    assert symbolic()
    (pid,) = WORKERS.pids
    return pid


def wait_for_end(pid: int, timeout_s: float = 60) -> None:
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


def forks() -> list[int]:
    """The workers as the kernel knows them: the server's children, zombies included."""
    server = WORKERS.server_pid
    return sorted(map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()))


@pytest.fixture(autouse=True)
def _fresh_worker() -> Iterator[None]:
    _others.clear()
    _others.update(all_children())
    yield
    shutdown()


def test_one_warm_worker_serves_all() -> None:
    pid = running_worker()
    assert not symbolic(r"\sqrt{2}", r"\sqrt{3}")
    assert WORKERS.pids == [pid]


def test_numeric_golds_need_no_worker() -> None:
    shutdown()
    for answer in ("42", "43", "3 or 42", "[0,42]", "1/42", "x=42", "nonsense", "100000000!", "x > 2"):
        grade_answer(answer, "42")
    assert WORKERS.pids == []
    assert WORKERS.server_pid is None


def test_workers_that_are_killed_while_idle_cost_no_answer() -> None:
    with ThreadPoolExecutor(8) as pool:  # as many as there may be
        list(pool.map(lambda n: symbolic(rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"), range(2, 42)))
    for _ in range(3):
        for pid in WORKERS.pids:
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
        assert symbolic()


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
    assert WORKERS.pids == started


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
    assert WORKERS.pids != [pid]
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
    assert WORKERS.pids != [pid]


def test_memory_is_limited() -> None:
    pid = running_worker()

    def address_space(process: int | None) -> str:
        limits = Path(f"/proc/{process}/limits").read_text()
        return next(line for line in limits.splitlines() if line.startswith("Max address space")).split()[3]

    assert int(address_space(pid)) < 3 << 30
    assert address_space(WORKERS.server_pid) == address_space(os.getpid())  # each worker has a limit of its own
    # Where the machine runs out, the kernel takes the worker.
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    assert Path(f"/proc/{WORKERS.server_pid}/oom_score_adj").read_text() == Path("/proc/self/oom_score_adj").read_text()


def test_a_worker_holds_one_socket_and_nothing_of_the_servers() -> None:
    with ThreadPoolExecutor(2) as pool:
        hang = pool.submit(grade_answer, HANGS[0], "x", limit_s=1)
        symbolic()
        assert WORKERS.pids
        for pid in WORKERS.pids:
            held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert len([name for name in held if name.startswith("socket:")]) == 1, held
            assert not [name for name in held if name.startswith(("pipe:", "anon_inode:[pidfd]"))], held
        hang.result()


def test_an_interrupt_at_the_terminal_does_not_reach_them() -> None:
    worker, server = running_worker(), WORKERS.server_pid
    assert server is not None
    assert os.getsid(worker) == os.getsid(server) != os.getsid(0)
    assert os.getpgid(worker) == os.getpgid(server) != os.getpgid(0)


def test_the_worker_has_neither_gmpy2_nor_the_hosts_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETOOL_TEST_SECRET", "secret")
    pid = running_worker()
    assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "gmpy2" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_killed_worker_is_replaced() -> None:
    pid = running_worker()
    os.kill(pid, signal.SIGKILL)
    assert symbolic()
    assert WORKERS.pids != [pid]


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
    assert children() == [WORKERS.server_pid]
    assert set(forks()) == set(WORKERS.pids)


def cpu_ticks(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def wait_until_busy(pid: int) -> None:
    """Waits until a process has used some processor time more than now."""
    before, deadline = cpu_ticks(pid), time.monotonic() + 60
    while cpu_ticks(pid) < before + 5:
        assert time.monotonic() < deadline


def test_after_a_fork() -> None:
    parent_worker = running_worker()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left threads behind
        child = os.fork()
    if child == 0:
        code = 1
        try:
            clean = WORKERS.pids == []
            ok = grade_answer(r"2\sqrt{2}", r"\sqrt{8}").correct and WORKERS.pids != [parent_worker]
            own = [WORKERS.server_pid, *WORKERS.pids]
            shutdown()
            code = 0 if clean and ok and not any(Path(f"/proc/{pid}").exists() for pid in own) else 2
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
    assert WORKERS.pids == []
    assert WORKERS.server_pid is None
    assert not Path(f"/proc/{pid}").exists()
    assert children() == []
    shutdown()


HOST = """
import sys, os
from retool_env.grading import grade_answer
from retool_env.grading import symbolic as symbolic_module
from retool_env.grading.symbolic import WORKERS
assert grade_answer(r"2\\sqrt{2}", r"\\sqrt{8}").correct
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.stdin.read()  # holds the inherited socket open, until the test ends it
    os._exit(0)
print(*WORKERS.pids, WORKERS.server_pid, flush=True)
if sys.argv[1] == "exit":
    sys.exit()
if sys.argv[1] == "hang":
    grade_answer("(1+x)^{5000000}", "x", limit_s=1)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "idle", "fork", "hang"])
def test_the_processes_die_with_their_host(how: str) -> None:
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
        worker, server = map(int, host.stdout.readline().split())
        if how == "hang":
            wait_until_busy(worker)
        if how != "exit":
            host.kill()
        wait_for_end(worker)
        wait_for_end(server)
        host.wait()


def test_a_busy_worker_dies_with_the_server() -> None:
    worker, server = running_worker(), WORKERS.server_pid
    assert server is not None
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(grade_answer, HANGS[0], "x", limit_s=2)
        wait_until_busy(worker)
        os.kill(server, signal.SIGKILL)
        wait_for_end(worker)
        assert call.result().timed_out  # after a second try, with a new server
    assert symbolic()
    assert WORKERS.server_pid != server
    assert children() == [WORKERS.server_pid]


def test_a_new_worker_costs_no_start() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        assert symbolic()
        return time.perf_counter() - started

    shutdown()
    cold = seconds()
    server = WORKERS.server_pid
    after_a_kill = []
    for _ in range(5):
        assert grade_answer(HANGS[0], "x", limit_s=0.1).timed_out
        after_a_kill.append(seconds())
    assert WORKERS.server_pid == server
    assert min(after_a_kill) < cold / 5


def test_the_server_evaluates_nothing() -> None:
    worker, server = running_worker(), WORKERS.server_pid
    before = cpu_ticks(worker), cpu_ticks(server)
    for n in range(2, 200):
        assert symbolic(rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}")
    assert WORKERS.pids == [worker]
    assert cpu_ticks(server) - before[1] < max(2, (cpu_ticks(worker) - before[0]) / 10)


def test_a_worker_is_replaced_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_module, "_MAX_REQUESTS", 3)
    pids = []
    for _ in range(9):
        assert symbolic()
        pids.extend(WORKERS.pids)
    assert len(set(pids)) == 3
    assert len(forks()) <= 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("caller", ["threads", "tasks"])
def test_a_hang_holds_up_nobody_else(caller: str) -> None:
    async def tasks() -> list[float]:
        hang = asyncio.create_task(agrade_answer(HANGS[0], "x", limit_s=2))
        await asyncio.sleep(0)
        others = [await agrade_answer(rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}", limit_s=60) for n in range(2, 12)]
        assert not hang.done()
        assert all(other.correct for other in others)
        return [(await hang).elapsed_s]

    running_worker()
    if caller == "tasks":
        asyncio.run(tasks())
    else:
        with ThreadPoolExecutor(1) as pool:
            hang = pool.submit(grade_answer, HANGS[0], "x", limit_s=2)
            wait_until_busy(WORKERS.pids[0])
            assert all(symbolic(rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}") for n in range(2, 12))
            assert not hang.done()
            assert hang.result().timed_out
    assert len(WORKERS.pids) == 1  # of the two, the one that hung was killed


def test_there_are_never_more_workers_than_cores() -> None:
    limit = min(symbolic_module.MAX_WORKERS, len(os.sched_getaffinity(0)))
    most = 0
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(symbolic, rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}") for n in range(2, 202)]
        for call in calls:
            assert call.result()
            most = max(most, len(WORKERS.pids))
    assert most <= limit
    assert len(forks()) <= limit


def test_time_without_a_core_does_not_count() -> None:
    def seconds(added: int, limit_s: float) -> float:
        grade = grade_answer(rf"\sum_{{k=1}}^{{500}} \frac{{1}}{{k^2+{added}}}", "x", limit_s=limit_s)
        assert not grade.timed_out, grade
        return grade.elapsed_s

    def on_a_core_s() -> float:
        return int(Path(f"/proc/{worker}/schedstat").read_text().split()[0]) / 1e9

    worker = running_worker()
    seconds(1, 60)
    before = on_a_core_s()
    seconds(3, 60)
    alone = on_a_core_s() - before  # and not what passed meanwhile: the machine may be busy already
    core = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(worker, core)
    script = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    # A session each: where the kernel shares a core out by sessions, the worker has one of its own.
    rivals = [subprocess.Popen([sys.executable, "-c", script], start_new_session=True) for _ in range(8)]
    try:
        for rival in rivals:
            os.sched_setaffinity(rival.pid, core)
            wait_until_busy(rival.pid)
        limit_s = 3 * alone
        assert seconds(2, limit_s) > limit_s  # it had a ninth of the core
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


def test_an_interrupted_call_leaves_no_worker_behind() -> None:
    worker = running_worker()
    with interrupted(after_s=0.3):
        grade_answer(HANGS[0], "x", limit_s=30)
    assert symbolic()
    assert WORKERS.pids != [worker]
    assert len(WORKERS.pids) == 1
    wait_for_end(worker)


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
