"""What happens to thousands of programs that are submitted at once."""

from __future__ import annotations

import time
from typing import Any

from retool_env.sandbox import ExecutionStatus, Sandbox

from .figures import summary
from .programs import PROGRAMS
from .stage import Stage

PROGRAM = "P1"


def measure(stage: Stage) -> dict[str, Any]:
    """Submits as many programs as the plan says at once; each has the ordinary time limit, and may wait longer."""
    sandbox = stage.need("sandbox")
    report: dict[str, Any] = {"slowness": stage.slowness(), "program": PROGRAM}
    report["levels"] = {str(count): _submit(sandbox, count) for count in stage.plan.queued}
    *_, half, whole = (level["queue"]["p99_ms"] for level in report["levels"].values())
    report["growth"] = whole / half
    return report


def _submit(sandbox: Sandbox, count: int) -> dict[str, Any]:
    start = time.perf_counter()
    submitted, futures = [], []
    for _ in range(count):
        submitted.append(time.perf_counter() - start)
        futures.append(sandbox.submit(PROGRAMS[PROGRAM]))
    results = [future.result() for future in futures]
    total_s = time.perf_counter() - start
    waited = [result.queue_s for result in results]
    started = [when + wait for when, wait in zip(submitted, waited, strict=True)]
    by_start = sorted(range(count), key=started.__getitem__)
    return {
        "queue": summary(waited),
        "not_ok": sum(result.status is not ExecutionStatus.OK for result in results),
        "overtaken": max(place - index for place, index in enumerate(by_start)),
        "total_s": total_s,
    }
