"""What a sandbox counts: every call once, in memory that nothing untrusted can make grow."""

from __future__ import annotations

import builtins
import itertools
import json
import math
import os
import pickle
import signal
import threading
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.sandbox import ExecutionResult, ExecutionStatus
from retool_env.sandbox.metrics import (
    CHARS_BOUNDS,
    KNOWN_ERRORS,
    MAX_UNKNOWN_ERRORS,
    OTHER,
    SECONDS_BOUNDS,
    Histogram,
    Metrics,
    SandboxMetrics,
)

OK = ExecutionResult(ExecutionStatus.OK, wall_s=0.002, queue_s=0.0001, cpu_s=0.001, code_chars=100)


def error(name: str) -> ExecutionResult:
    return replace(OK, status=ExecutionStatus.ERROR, error_class=name)


def recorded(*results: ExecutionResult) -> SandboxMetrics:
    metrics = Metrics()
    for result in results:
        metrics.record(result)
    return metrics.snapshot()


def durations(*values: float) -> Histogram:
    return recorded(*(replace(OK, wall_s=value) for value in values)).wall_s


class TestCounts:
    def test_every_status_is_there_from_the_start(self) -> None:
        empty = Metrics().snapshot()
        assert (empty.calls, empty.errors) == (0, {})
        assert empty.status == dict.fromkeys(ExecutionStatus, 0)

    def test_calls_are_counted_by_status_and_error_class(self) -> None:
        timeout = replace(OK, status=ExecutionStatus.TIMEOUT, error_class="TimeoutError")
        metrics = recorded(OK, OK, error("ValueError"), error("ValueError"), error("KeyError"), timeout)
        assert metrics.calls == 6
        assert {status.value: count for status, count in metrics.status.items() if count} == {
            "ok": 2,
            "error": 3,
            "timeout": 1,
        }
        assert metrics.errors == {"ValueError": 2, "KeyError": 1, "TimeoutError": 1}

    def test_each_quantity_has_its_sum_and_its_largest_value(self) -> None:
        metrics = recorded(OK, replace(OK, wall_s=0.5, queue_s=2.0, cpu_s=0.25, code_chars=1000))
        found = {name: getattr(metrics, name) for name in ("wall_s", "queue_s", "cpu_s", "code_chars")}
        assert {name: histogram.count for name, histogram in found.items()} == dict.fromkeys(found, 2)
        assert found["wall_s"].sum == pytest.approx(0.502)
        assert found["queue_s"].sum == pytest.approx(2.0001)
        assert found["cpu_s"].sum == pytest.approx(0.251)
        assert found["code_chars"].sum == 1100
        assert [histogram.max for histogram in found.values()] == [0.5, 2.0, 0.25, 1000]

    @pytest.mark.parametrize(
        "result",
        [
            ExecutionResult(ExecutionStatus.UNAVAILABLE),
            ExecutionResult(ExecutionStatus.UNAVAILABLE, error_class="SessionLost"),
            ExecutionResult(ExecutionStatus.KILLED, error_class="SessionLost"),
        ],
        ids=["unavailable", "evicted", "lost"],
    )
    def test_a_call_whose_code_never_started_has_a_status_but_no_latency(self, result: ExecutionResult) -> None:
        metrics = recorded(OK, result)
        assert (metrics.calls, metrics.status[result.status]) == (2, 1)
        assert metrics.wall_s.count == metrics.code_chars.count == 1

    def test_calls_of_many_threads_are_all_counted(self) -> None:
        metrics = Metrics()
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                seen = metrics.snapshot()
                assert seen.wall_s.count == seen.calls == seen.errors.get("E", 0)

        watcher = threading.Thread(target=watch)
        threads = [threading.Thread(target=lambda: [metrics.record(error("E")) for _ in range(2000)]) for _ in range(8)]
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        watcher.join()
        assert metrics.snapshot().calls == metrics.snapshot().errors["E"] == 16_000

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_process_begins_at_nothing_whoever_held_the_lock(self) -> None:
        metrics = Metrics()
        metrics.record(OK)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with metrics._lock:
                held.set()
                release.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            metrics.record(error("KeyError"))
            os._exit(0 if metrics.snapshot().errors == {"KeyError": 1} and metrics.snapshot().calls == 1 else 1)
        release.set()
        holder.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert metrics.snapshot().calls == 1

    def test_a_snapshot_no_longer_changes(self) -> None:
        metrics = Metrics()
        metrics.record(error("E"))
        before = metrics.snapshot(running=1, queued=2, sessions=3, idle_children=4, zygote_restarts=5)
        metrics.record(error("E"))
        assert (before.calls, before.errors, before.wall_s.count) == (1, {"E": 1}, 1)
        assert (before.running, before.queued, before.sessions, before.idle_children, before.zygote_restarts) == (
            1,
            2,
            3,
            4,
            5,
        )
        with pytest.raises(FrozenInstanceError):
            before.running = 0  # type: ignore[misc]


class TestErrorClassesAreUntrusted:
    def test_only_so_many_invented_names_are_kept(self) -> None:
        metrics = recorded(*(error(f"Invented{number}") for number in range(1000)))
        assert len(metrics.errors) == MAX_UNKNOWN_ERRORS + 1
        assert metrics.errors["Invented0"] == 1
        assert metrics.errors[OTHER] == 1000 - MAX_UNKNOWN_ERRORS

    def test_known_names_are_kept_whatever_came_before(self) -> None:
        invented = [error(f"Invented{number}") for number in range(1000)]
        metrics = recorded(*invented, error("ZeroDivisionError"), error("SIGSEGV"), error("SessionLost"))
        assert [metrics.errors[name] for name in ("ZeroDivisionError", "SIGSEGV", "SessionLost")] == [1, 1, 1]

    def test_all_of_pythons_exceptions_are_known(self) -> None:
        for name, value in vars(builtins).items():
            if isinstance(value, type) and issubclass(value, BaseException):
                assert name in KNOWN_ERRORS

    @pytest.mark.parametrize("name", ["x" * 65, "x" * 1_000_000, "a b", "\x1b[31m", "é", "a\nb", OTHER, "1x", '"'])
    def test_names_that_are_no_plain_identifiers_are_counted_as_other(self, name: str) -> None:
        assert recorded(error(name)).errors == {OTHER: 1}

    def test_names_counted_as_other_take_no_place(self) -> None:
        odd = [error(f"a {number}") for number in range(100)] + [error(OTHER)]
        metrics = recorded(*odd, *(error(f"Invented{number}") for number in range(MAX_UNKNOWN_ERRORS)))
        assert metrics.errors[OTHER] == 101
        assert len(metrics.errors) == MAX_UNKNOWN_ERRORS + 1


class TestHistograms:
    def test_the_buckets_are_fixed_and_ascend(self) -> None:
        for bounds in (SECONDS_BOUNDS, CHARS_BOUNDS):
            assert all(low < high for low, high in itertools.pairwise(bounds))
        assert all(high / low <= 1.5 + 1e-9 for low, high in itertools.pairwise(SECONDS_BOUNDS))
        assert (SECONDS_BOUNDS[0], SECONDS_BOUNDS[-1]) == (1e-05, 680)
        assert (CHARS_BOUNDS[0], CHARS_BOUNDS[-1]) == (16, 1 << 24)

    @pytest.mark.parametrize(
        ("value", "bucket"), [(0.0, 0), (1e-05, 0), (1.1e-05, 1), (680.0, 47), (681.0, 48), (86400.0, 48)]
    )
    def test_a_bound_belongs_to_its_own_bucket_and_the_last_is_open(self, value: float, bucket: int) -> None:
        counts = durations(value).counts
        assert (len(counts), counts.index(1)) == (len(SECONDS_BOUNDS) + 1, bucket)

    def test_without_values_there_is_no_estimate(self) -> None:
        empty = Metrics().snapshot().wall_s
        assert math.isnan(empty.mean())
        assert math.isnan(empty.p50())
        assert math.isnan(empty.p99())

    @given(
        st.lists(st.floats(1e-05, 680, exclude_min=True), min_size=1, max_size=200),
        st.sampled_from([0.5, 0.9, 0.99, 1.0]),
    )
    def test_an_estimate_is_off_by_no_more_than_a_bucket(self, values: list[float], share: float) -> None:
        exact = sorted(values)[math.ceil(share * len(values)) - 1]
        estimate = durations(*values).quantile(share)
        assert exact / 1.51 <= estimate <= min(exact * 1.51, max(values))

    def test_the_ends_are_within_what_was_seen(self) -> None:
        found = durations(0.1, 0.2, 0.3)
        assert found.quantile(1) == 0.3
        assert 0.05 < found.quantile(0) <= 0.1
        assert durations(1000.0).p99() <= 1000.0
        assert found.mean() == pytest.approx(0.2)

    @pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
    def test_a_share_is_from_0_to_1(self, share: float) -> None:
        with pytest.raises(ValueError, match="share"):
            durations(1.0).quantile(share)


class TestForJson:
    KEYS = frozenset(
        {"calls", "status", "errors", "wall_s", "queue_s", "cpu_s", "code_chars"}
        | {"running", "queued", "sessions", "idle_children", "zygote_restarts"}
    )

    def test_the_keys_are_those_of_the_documentation(self) -> None:
        shown = recorded(OK, error("KeyError"), error("KeyError"), error("E")).as_dict()
        assert set(shown) == self.KEYS
        assert all(f"``{key}``" in (SandboxMetrics.as_dict.__doc__ or "") for key in self.KEYS)
        assert set(shown["status"]) == {status.value for status in ExecutionStatus}
        assert list(shown["errors"]) == ["KeyError", "E"]
        assert set(shown["wall_s"]) == {"count", "sum", "max", "mean", "p50", "p99", "bounds", "counts"}
        assert all(f"``{key}``" in (Histogram.as_dict.__doc__ or "") for key in shown["wall_s"])

    @pytest.mark.parametrize("metrics", [Metrics().snapshot(), recorded(OK, error("E"))], ids=["empty", "some"])
    def test_it_is_valid_json(self, metrics: SandboxMetrics) -> None:
        assert json.loads(json.dumps(metrics.as_dict(), allow_nan=False)) == metrics.as_dict()

    def test_a_snapshot_can_be_sent_to_another_process(self) -> None:
        metrics = recorded(OK, error("E"))
        assert pickle.loads(pickle.dumps(metrics)) == metrics
