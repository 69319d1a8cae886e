"""Attempts read from a file, one at a time, and picked."""

import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from retool_env.protocol import EndReason
from retool_env.report.attempts import Attempt, Damaged, Filter, describe, read_attempts
from retool_env.trajectory import Trajectory

Record = Callable[..., Trajectory]
CODE = "<code>print(6 * 7)</code>"
RIGHT, WRONG = "<answer>\\boxed{42}</answer>", "<answer>\\boxed{41}</answer>"


def older(trajectory: Trajectory, version: int) -> str:
    """The line as an older release wrote it."""
    data: dict[str, Any] = json.loads(trajectory.to_json())
    data["format_version"] = version
    for name in ("grader", "grade_limit_s", "on_grade_timeout"):
        del data["rules"][name]
    if version == 1:
        del data["rules"]["interpreter"]
        for turn in data["turns"]:
            for result in turn["results"]:
                for name in ("queue_s", "code_chars", "restarted"):
                    del result[name]
    return json.dumps(data)


def read(*lines: str | bytes, last: int | None = None) -> list[Attempt | Damaged]:
    data = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    return list(read_attempts(io.BytesIO(data), last))


@pytest.mark.parametrize("version", [1, 2])
def test_older_formats_are_read(version: int, record: Record) -> None:
    trajectory = record(CODE, RIGHT)
    (attempt,) = read(older(trajectory, version))
    assert isinstance(attempt, Attempt)
    assert (attempt.verdict, attempt.reward, attempt.tool_calls) == ("correct", 1.05, 1)
    assert attempt.trajectory == trajectory


def test_bad_lines_are_told_with_their_number_and_cost_no_other(record: Record) -> None:
    good = record(CODE, RIGHT).to_json()
    found = read(good, "", "not json", b"\xff", '{"format_version": 99}', good[:100], "7", good)
    assert [(type(item).__name__, item.number) for item in found] == [
        ("Attempt", 1),
        ("Damaged", 3),
        ("Damaged", 4),
        ("Damaged", 5),
        ("Damaged", 6),
        ("Damaged", 7),
        ("Attempt", 8),
    ]
    unknown = found[3]
    assert isinstance(unknown, Damaged)
    assert "line 5: unknown format_version 99" in unknown.reason


def test_lines_after_the_last_that_is_wanted_are_not_read(record: Record) -> None:
    good = record(RIGHT).to_json()
    assert [item.number for item in read(good, good, "damaged", last=2)] == [1, 2]


def test_one_attempt_at_a_time_is_in_memory(record: Record) -> None:
    line = record(CODE, RIGHT, question="What? " * 20_000).to_json().encode() + b"\n"

    def peak(count: int) -> int:
        stream = io.BytesIO(line * count)
        tracemalloc.start()
        for _ in read_attempts(stream):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(40) < 1.5 * peak(4)


@pytest.fixture(scope="module")
def attempts(record: Record) -> dict[str, Attempt]:
    made = {
        "right": record(RIGHT, id="a"),
        "wrong": record(WRONG, id="a"),
        "tool": record(CODE, RIGHT, id="b"),
        "slow": record(CODE, WRONG, id="b", status="timeout"),
        "fault": record(CODE, id="c", end=EndReason.SANDBOX_UNAVAILABLE),
        "silent": record("I do not know.", id="c"),
        "open": record(CODE, id="d", over=False),
    }
    return {name: describe(number, trajectory) for number, (name, trajectory) in enumerate(made.items(), start=1)}


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Filter(), {"right", "wrong", "tool", "slow", "fault", "silent", "open"}),
        (Filter(wrong=True), {"wrong", "slow", "silent"}),
        (Filter(timed_out=True), {"slow"}),
        (Filter(tool_used=True), {"tool", "slow", "fault", "open"}),
        (Filter(ended=EndReason.NO_ACTION), {"silent"}),
        (Filter(ended=EndReason.SANDBOX_UNAVAILABLE), {"fault"}),
        (Filter(number=3), {"tool"}),
        (Filter(problem="a"), {"right", "wrong"}),
        (Filter(problem="b", wrong=True), {"slow"}),
        (Filter(problem="e"), set()),
    ],
)
def test_filters(wanted: Filter, names: set[str], attempts: dict[str, Attempt]) -> None:
    assert {name for name, attempt in attempts.items() if wanted.matches(attempt)} == names


def test_an_answer_that_could_not_be_compared_in_time_timed_out(record: Record) -> None:
    data = json.loads(record(WRONG).to_json())
    data["turns"][0]["grade"]["timed_out"] = True
    assert describe(1, Trajectory.from_json(json.dumps(data))).timed_out
