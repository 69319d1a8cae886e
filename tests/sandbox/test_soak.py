"""Nothing grows: not over thousands of programs, not over crashes, not over zygotes that are killed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass

import pytest

from retool_env.sandbox import Sandbox

from .conftest import (
    assert_at_rest,
    children_of,
    descendants_of,
    memory_cgroups_of,
    n_begun,
    nurseries,
    own_descriptors,
    private_bytes,
    settled,
    slots_of,
    wait_until,
    zygotes_of,
)

pytestmark = pytest.mark.slow

PROGRAMS = (
    ("1", ("ok",)),
    ("print(sum(range(1000)))", ("ok",)),
    ("import numpy as np; print(np.arange(9).sum())", ("ok",)),
    ("import sympy; x = sympy.Symbol('x'); print(sympy.expand((x + 1)**3))", ("ok",)),
    ("1/0", ("error",)),
    ("import sys; sys.exit(3)", ("error",)),
    ("print('x' * 20_000)", ("ok",)),
    ("import threading; threading.Thread(target=print, args=(1,)).start()", ("ok",)),
    ("import os; os.write(3, b'junk')", ("error",)),
    ("import os; os.close(3); os._exit(0)", ("ok",)),
)
CRASHES = (
    ("import ctypes; ctypes.string_at(8)", ("killed",)),
    ("import os; os.abort()", ("killed",)),
    # On a busy machine the kernel may not have found the memory before the time is up.
    ("kept = []\nwhile True: kept.append(bytearray(b'x' * (4 << 20)))", ("memory", "error", "timeout")),
    ("while True: pass", ("timeout",)),
    ("import os\nwhile True: os.write(1, b'x' * 65536)", ("output_limit",)),
)
AT_ONCE = 8


@dataclass(frozen=True)
class Holdings:
    """What a sandbox and its owner hold at rest.

    Attributes:
        descriptors: Descriptors of the owner, without those of waiting children.
        zygote_descriptors: Descriptors of the zygotes, without the pidfds of waiting children.
        processes: Processes below the owner.
        cgroups: Memory cgroups made for programs.
        files: Entries of the folders for temporary files that are ours by their name.
        all_files: All of them.
        owner_bytes: Anonymous memory of the owner.
        zygote_bytes: Anonymous memory of the zygotes.
    """

    descriptors: int
    zygote_descriptors: int
    processes: int
    cgroups: int
    files: int
    all_files: int
    owner_bytes: int
    zygote_bytes: int


def look(sandbox: Sandbox) -> Holdings:
    assert_at_rest(sandbox)
    gc.collect()
    zygotes = zygotes_of(sandbox)

    def zygote_descriptors() -> int:
        if own_descriptors(sandbox) < 0:
            return -1
        return sum(len(os.listdir(f"/proc/{zygote.pid}/fd")) - len(children_of(zygote.pid)) for zygote in zygotes)

    names = [name for folder in ("/tmp", "/var/tmp", "/dev/shm") for name in os.listdir(folder)]
    return Holdings(
        descriptors=settled(lambda: own_descriptors(sandbox)),
        zygote_descriptors=settled(zygote_descriptors),
        processes=settled(lambda: len(descendants_of(os.getpid())) if own_descriptors(sandbox) >= 0 else -1),
        cgroups=memory_cgroups_of(sandbox),
        files=sum("retool" in name or "nsjail" in name for name in names),
        all_files=len(names),
        owner_bytes=private_bytes(os.getpid()),
        zygote_bytes=sum(private_bytes(zygote.pid) for zygote in zygotes),
    )


def run_many(sandbox: Sandbox, executions: int, crashes: int) -> Counter[str]:
    """Runs a mix in all three ways, a few at a time; crashes come evenly between the others."""
    plan = [PROGRAMS[index % len(PROGRAMS)] for index in range(executions)]
    for index in range(crashes):
        plan.insert(index * (executions // max(1, crashes)), CRASHES[index % len(CRASHES)])
    seen: Counter[str] = Counter()
    for start in range(0, len(plan), AT_ONCE):
        batch = plan[start : start + AT_ONCE]
        way = start // AT_ONCE % 3
        if way == 0:
            results = [sandbox.run(code) for code, _ in batch]
        elif way == 1:
            results = [future.result() for future in [sandbox.submit(code) for code, _ in batch]]
        else:
            results = asyncio.run(_run_all(sandbox, [code for code, _ in batch]))
        for (code, allowed), result in zip(batch, results, strict=True):
            assert result.status in allowed, (code, result)
            seen[result.status.value] += 1
    return seen


async def _run_all(sandbox: Sandbox, programs: list[str]) -> list:
    return await asyncio.gather(*(sandbox.arun(code) for code in programs))


def kill_zygotes(sandbox: Sandbox) -> None:
    """Kills each zygote under programs that run in its children."""
    for nursery in nurseries(sandbox):
        wait_until(lambda nursery=nursery: nursery.zygote is not None, "there is a zygote", limit_s=60.0)
        loop = "while True: pass" if nursery.light else "import numpy\nwhile True: pass"
        running = [sandbox.submit(loop, timeout_s=60) for _ in range(3)]
        wait_until(lambda: n_begun(sandbox) == 3, "three programs run")
        os.kill(nursery.zygote.pid, signal.SIGKILL)
        assert {future.result(30).status.value for future in running} == {"unavailable"}
        for code, _ in PROGRAMS[:4]:
            assert sandbox.run(code, timeout_s=30).status == "ok"


def soak(sandbox: Sandbox, executions: int, crashes: int, kills: int) -> dict[str, object]:
    """Soaks a sandbox; returns what it held after a tenth of the work, at its end, and after zygotes were killed."""
    began = time.monotonic()
    seen = run_many(sandbox, executions // 10, max(crashes // 10, len(CRASHES)))
    early = look(sandbox)
    seen += run_many(sandbox, executions - executions // 10, crashes - max(crashes // 10, len(CRASHES)))
    late = look(sandbox)
    for _ in range(kills):
        kill_zygotes(sandbox)
    after = look(sandbox)
    report = {
        "early": asdict(early),
        "late": asdict(late),
        "after kills": asdict(after),
        "statuses": dict(seen),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(report, indent=1))
    for name in ("descriptors", "zygote_descriptors", "processes"):
        assert getattr(early, name) == getattr(late, name) == getattr(after, name), name
    assert late.files <= early.files
    assert late.all_files - early.all_files < executions / 4  # whatever else runs on this machine may make some
    for holdings in (early, late, after):
        assert holdings.cgroups <= slots_of(sandbox)
    # The allocators' own noise; a hundred bytes a program would be 1.8 MB in the long run.
    assert late.owner_bytes - early.owner_bytes < (4 << 20)
    assert late.zygote_bytes - early.zygote_bytes < (1 << 20)
    return report


@pytest.fixture
def soaked(tier, make_sandbox) -> Sandbox:
    return make_sandbox(
        tier=tier, preload=None, timeout_s=0.4, memory_mb=64, max_output_bytes=100_000, max_concurrency=4, standby=2
    )


def test_a_short_soak(soaked):
    seen = soak(soaked, executions=600, crashes=30, kills=1)["statuses"]
    assert sum(seen.values()) == 630


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_long_soak(soaked):
    seen = soak(soaked, executions=20_000, crashes=200, kills=5)["statuses"]
    assert sum(seen.values()) == 20_200
