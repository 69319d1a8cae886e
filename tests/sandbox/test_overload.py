"""Far more programs than can run: the queue is fair, nobody pays for having waited, and nothing is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait

import pytest

from retool_env.errors import SandboxBusyError
from retool_env.sandbox import ExecutionResult, Sandbox

from ..growth import LINEAR  # noqa: TID252 - `tests` is on no path
from .conftest import assert_at_rest, wait_until

pytestmark = pytest.mark.slow

BURST = 500
FLOOD = 2000
AT_ONCE = 8


@pytest.fixture(scope="module")
def flooded(tier, start_sandbox):
    with start_sandbox(tier=tier, preload=None, timeout_s=20.0, max_concurrency=AT_ONCE) as sandbox:
        yield sandbox


class Queue:
    """Programs handed in all at once.

    Attributes:
        results: In the order in which they were submitted.
        order: Their positions, in the order in which they ended.
        seconds: From the first submission to the last end.
    """

    def __init__(self, sandbox: Sandbox, n: int, code: str = "1"):
        self.order: list[int] = []
        start = time.monotonic()
        futures = []
        for position in range(n):
            future = sandbox.submit(code)
            future.add_done_callback(lambda _, position=position: self.order.append(position))
            futures.append(future)
        wait(futures, timeout=240)
        self.seconds = time.monotonic() - start
        self.results = [future.result(0) for future in futures]
        wait_until(lambda: len(self.order) == n, "all callbacks were called")

    def p99_wait_s(self) -> float:
        return sorted(result.queue_s for result in self.results)[len(self.results) * 99 // 100]


@pytest.fixture(scope="module")
def measured(flooded) -> tuple[Queue, Queue, Queue]:
    """A flood between two bursts."""
    Queue(flooded, 50)
    return Queue(flooded, BURST), Queue(flooded, FLOOD), Queue(flooded, BURST)


class TestManyWait:
    def test_verdicts(self, flooded, measured):
        for queue in measured:
            assert {(result.status.value, result.stdout) for result in queue.results} == {("ok", "1\n")}
        assert_at_rest(flooded)

    def test_order(self, measured):
        for queue in measured:
            assert sorted(queue.order) == list(range(len(queue.results)))
            # Those that run side by side may end in any order; nobody is overtaken by more than a few rounds of them.
            assert max(abs(ended - position) for ended, position in enumerate(queue.order)) < 8 * AT_ONCE

    def test_waiting_grows_with_the_queue_and_no_faster(self, flooded, measured):
        """Four times as many wait about four times as long. Measured again where the machine was disturbed."""
        ratios = []
        for attempt in range(3):
            if attempt:
                measured = Queue(flooded, BURST), Queue(flooded, FLOOD), Queue(flooded, BURST)
            before, flood, after = (queue.p99_wait_s() for queue in measured)
            ratios.append(flood / max(before, after))
            if ratios[-1] < (FLOOD / BURST) ** LINEAR:
                return
        pytest.fail(f"p99 of {FLOOD} against {BURST}: {ratios}")

    def test_nobody_times_out_by_waiting(self, tier, make_sandbox):
        """Each has a limit far below the sum of all run times, and below its own wait."""
        sandbox = make_sandbox(tier=tier, timeout_s=0.5, max_concurrency=AT_ONCE)
        queue = Queue(sandbox, 120, "import time; time.sleep(0.1)")
        assert {result.status.value for result in queue.results} == {"ok"}
        assert sum(result.wall_s for result in queue.results) > 20 * 0.5
        assert max(result.queue_s for result in queue.results) > 2 * 0.5
        assert all(result.wall_s < result.queue_s for result in queue.results[60:])

    @pytest.mark.parametrize("way", ["submit", "run"])
    def test_a_short_program_waits_its_turn_and_no_longer(self, flooded, way):
        long = [flooded.submit("import time; time.sleep(0.1)") for _ in range(4 * AT_ONCE)]
        short = flooded.run("1") if way == "run" else flooded.submit("1").result()
        assert short.stdout == "1\n"
        assert sum(future.done() for future in long) >= 2 * AT_ONCE
        assert {future.result(60).status.value for future in long} == {"ok"}

    def test_cancelling_what_waits(self, flooded):
        futures = [flooded.submit("import time; time.sleep(0.1)") for _ in range(200)]
        cancelled = [future.cancel() for future in futures[100:]]
        assert any(cancelled)
        for future, gone in zip(futures[100:], cancelled, strict=True):
            assert future.cancelled() is gone
        kept = [future for future in futures if not future.cancelled()]
        assert {future.result(60).status.value for future in kept} == {"ok"}
        assert_at_rest(flooded)


class TestBackPressure:
    """A full queue: see ``max_queue``."""

    @pytest.fixture
    def small(self, tier, make_sandbox):
        return make_sandbox(tier=tier, timeout_s=60.0, max_concurrency=2, max_queue=4)

    @pytest.fixture
    def full(self, small):
        """A sandbox in which two programs run and four wait, until they are cancelled."""
        held = [small.submit("import time; time.sleep(60)") for _ in range(2)]
        wait_until(lambda: small.metrics().running == 2, "two programs run")
        held += [small.submit("import time; time.sleep(60)") for _ in range(4)]
        wait_until(lambda: small.metrics().queued == 4, "four programs wait")
        yield small, held
        for future in held:
            future.cancel()

    def test_a_full_queue_refuses_who_will_not_wait(self, full):
        sandbox, held = full
        for _ in range(50):
            with pytest.raises(SandboxBusyError, match="full"):
                sandbox.submit("1", block=False)
        assert held[0].cancel()
        accepted: list[Future[ExecutionResult]] = []

        def is_accepted() -> bool:
            try:
                accepted.append(sandbox.submit("1", block=False))
            except SandboxBusyError:
                return False
            return True

        wait_until(is_accepted, "one of those that waited runs, and there is room for one more")
        with pytest.raises(SandboxBusyError):
            sandbox.submit("1", block=False)
        for each in held:
            each.cancel()
        assert accepted[0].result(30).stdout == "1\n"
        assert_at_rest(sandbox)

    def test_a_full_queue_holds_up_who_will(self, full):
        sandbox, held = full
        late: list[Future[ExecutionResult]] = []
        threads = [threading.Thread(target=lambda i=i: late.append(sandbox.submit(f"print({i})"))) for i in range(6)]
        for thread in threads:
            thread.start()
        threads[0].join(0.3)
        assert all(thread.is_alive() for thread in threads)
        for future in held:
            future.cancel()
        for thread in threads:
            thread.join(30)
        assert sorted(future.result(30).stdout for future in late) == [f"{i}\n" for i in range(6)]
        assert_at_rest(sandbox)

    def test_cancelling_one_that_waits_makes_room(self, full):
        sandbox, held = full
        assert held[-1].cancel()
        future = sandbox.submit("1")  # would block for a minute
        for each in held:
            each.cancel()
        assert future.result(30).stdout == "1\n"

    def test_closing_wakes_who_waits(self, full):
        sandbox, _ = full
        raised: list[BaseException] = []

        def submit() -> None:
            try:
                sandbox.submit("1").result()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(0.1)
        sandbox.close()
        thread.join(30)
        assert not thread.is_alive()
        assert len(raised) <= 1
        assert all("closed" in str(error) for error in raised)

    def test_nothing_is_lost(self, small):
        """Producers that are held up again and again get all their results, each its own."""
        results: dict[int, str] = {}

        def produce(start: int) -> None:
            futures = [(i, small.submit(f"print({i})")) for i in range(start, start + 50)]
            results.update((i, future.result(60).stdout) for i, future in futures)

        threads = [threading.Thread(target=produce, args=(100 * n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        deepest = 0
        while any(thread.is_alive() for thread in threads):
            deepest = max(deepest, small.metrics().queued)
            threads[-1].join(0.002)
        assert results == {100 * n + i: f"{100 * n + i}\n" for n in range(6) for i in range(50)}
        assert 1 <= deepest <= 4
        assert_at_rest(small)

    def test_a_callback_is_never_held_up(self, small):
        """It runs in the host's own thread, which alone could make room."""
        told: list[object] = []
        heard = threading.Event()

        def callback(_: Future[ExecutionResult]) -> None:
            for _ in range(10):
                try:
                    told.append(small.submit("1"))
                except SandboxBusyError as error:
                    told.append(error)
            heard.set()

        small.submit("import time; time.sleep(0.5)").add_done_callback(callback)
        held = [small.submit("import time; time.sleep(60)") for _ in range(5)]
        assert heard.wait(30)
        for future in held:
            future.cancel()
        assert any(isinstance(item, SandboxBusyError) for item in told)
        for item in told:
            if isinstance(item, Future):
                assert item.result(30).stdout == "1\n"
        assert small.run("print(2)").stdout == "2\n"
        assert_at_rest(small)
