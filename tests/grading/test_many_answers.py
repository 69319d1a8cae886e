"""Many answers, some of which hang, exhaust memory or are malformed: every right one is found, and nothing is left."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retool_env.grading import Grade, grade_answer, shutdown
from retool_env.grading.symbolic import MAX_WORKERS, WORKERS

pytestmark = pytest.mark.once  # as in test_worker.py

LIMIT_S = 1.0
HANGS = ["(1+x)^{5000000}", r"9^{9^{9^9}}", r"\sin(\sin(\exp(\exp(\exp(3)))+3))", r"\prod_{k=1}^{30000000} k"]
# Integers of 2 GiB and of 1 GiB, which are refused at once, and one of 512 MiB that is filled before it is copied.
HUNGRY = [r"\lfloor 2^{2^{34}} \rfloor"] * 2 + [r"\lfloor 2^{2^{33}} \rfloor", r"\lfloor 2^{2^{32}} \rfloor+1"]
MALFORMED = [
    *(r"\frac{1}{", "}{", r"\boxed{", r"\begin{pmatrix}", "x +* y", "\\", r"\sqrt[", "1..2", r"\left(", "^_^"),
    *("\x00", "\ud800", "{" * 300, "$" * 300, r"\frac" * 50, "((((1))", "=", "\\{1,,2\\}", r"\text{", "4 10/3"),
]


def answers(hanging: int, hungry: int, malformed: int, total: int) -> list[tuple[str, str, str]]:
    """Answer, gold, and what is to come of it: right, wrong, hangs, or memory."""
    rows = [(HANGS[n % len(HANGS)], "x", "hangs") for n in range(hanging)]
    rows += [(HUNGRY[n % len(HUNGRY)], "x", "memory") for n in range(hungry)]
    rows += [(MALFORMED[n % len(MALFORMED)], r"\sqrt{8}", "wrong") for n in range(malformed)]
    for n in range(2, total - len(rows) + 2):
        factor = n % 997 + 2
        match n % 5:
            case 0:
                rows.append((str(n), f"{n}.0", "right"))
            case 1:
                rows.append((rf"\frac{{{n}}}{{7}}", f"{n}/7", "right"))
            case 2:
                rows.append((rf"{factor}\sqrt{{3}}", rf"\sqrt{{{3 * factor * factor}}}", "right"))
            case 3:
                rows.append((str(n), str(n + 1), "wrong"))
            case _:
                rows.append((rf"{factor}\pi", rf"{factor + 1}\pi", "wrong"))
    random.Random(0).shuffle(rows)
    return rows


def grade_all(rows: list[tuple[str, str, str]], threads: int) -> list[Grade]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda row: grade_answer(row[0], row[1], limit_s=LIMIT_S), rows))


def worked_s() -> float:
    """The CPU time of the workers' server and of all its workers, also of those that are gone."""

    def times(pid: int | None) -> list[int]:  # user and system, its own and of children that are gone
        return [int(n) for n in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]

    ticks = sum(times(WORKERS.server_pid)) + sum(sum(times(pid)) for pid in WORKERS.pids)
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("hanging", "hungry", "malformed", "total"),
    [
        (6, 8, 30, 1000),
        pytest.param(100, 100, 300, 10_000, marks=pytest.mark.slow),
    ],
)
def test_every_right_answer_is_found(hanging: int, hungry: int, malformed: int, total: int) -> None:
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    rows = answers(hanging, hungry, malformed, total)
    plain = [row for row in rows if row[2] in ("right", "wrong")][: total // 10]
    grade_all(plain[:20], workers)  # the server is running now
    before = worked_s()
    grade_all(plain, workers)
    plain_s = (worked_s() - before) * 10
    server = WORKERS.server_pid

    before = worked_s()
    grades = grade_all(rows, workers)
    spent_s = worked_s() - before

    came = [
        (row, grade)
        for row, grade in zip(rows, grades, strict=True)
        if (grade.correct, grade.timed_out) != (row[2] == "right", row[2] in ("hangs", "memory"))
    ]
    assert not came
    memory = [grade for row, grade in zip(rows, grades, strict=True) if row[2] == "memory"]
    # With a second, what fills its memory first may run out of time instead.
    assert sum("memory" in grade.reason for grade in memory) >= hungry * 3 // 4
    # No answer wanted a start: what hangs costs its limit, what exhausts memory no more than that.
    assert WORKERS.server_pid == server
    assert spent_s < 2 * ((hanging + hungry) * LIMIT_S + plain_s)
    assert grade_answer(r"2\sqrt{2}", r"\sqrt{8}").correct
    left = [server, *WORKERS.pids]
    shutdown()
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)
