"""The attack corpora on both tiers: public cases and our own. See ``docs/security.md``.

The fields of a case: ``expect`` is a Python expression over ``o`` (what it wrote) and ``c`` (how it ended); {NAMES} in
the code stand for things of the host that it aims at. System call numbers in our own cases are those of x86_64.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from .conftest import assert_at_rest, nurseries

FOLDER = Path(__file__).parents[1] / "cases"
PUBLIC, OWN = (
    [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]
    for name in ("attacks.jsonl", "attacks_own.jsonl")
)


def test_the_corpus_is_complete():
    assert len(PUBLIC) == 69
    assert len(OWN) >= 40
    assert len({case["name"] for case in PUBLIC + OWN}) == len(PUBLIC) + len(OWN)


IN_A_BRANCH = {"sigstop_self": "c == b'D1'"}
"""What ends differently there: no signals, also to itself."""


def fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def how_it_ended(outcome) -> bytes:
    """The corpus's letters: D<n> exited with n, E killed or crashed, T timed out, O output cap."""
    letters = {"timeout": b"T", "output_limit": b"O"}
    if outcome.status.value in letters:
        return letters[outcome.status.value]
    return b"D%d" % outcome.exit_code if outcome.claimed else b"E"


def output(outcome) -> bytes:
    """Standard output and a traceback without the source lines it quotes: those hold the tell-tale words."""
    said = [line for line in outcome.stderr.splitlines(keepends=True) if not line.startswith(b" ")]
    return outcome.stdout + b"".join(said)


@pytest.fixture(scope="session")
def target(tier, start_sandbox):
    with start_sandbox(tier=tier, preload=None, timeout_s=1.0, memory_mb=256, standby=2, echo=False) as sandbox:
        yield sandbox


def run(caller, code: str):
    """Runs a program; returns its outcome as the host has it, with the output as bytes."""
    host, job = caller._prepare(code, None)
    return host.run_here(job, lambda outcome: outcome)


@contextlib.contextmanager
def place(target, where: str):
    """Where an attack is made from: the full zygote, the light one, or a branch of a session."""
    if where != "branch":
        yield target
        return
    with target.session(forkable=True) as trunk, trunk.fork() as branch:
        yield branch
        assert trunk.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    "where", ["full", pytest.param("light", marks=pytest.mark.slow), pytest.param("branch", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", PUBLIC + OWN, ids=lambda case: case["name"])
def test_attack(tier, target, outside, case, where):
    before = sorted(os.listdir(outside.folder))
    code = fill(case["code"], outside.values)
    with place(target, where) as caller:
        outcome = run(caller, code + "\n# numpy" if where == "full" else code)
    names = {
        "o": output(outcome),
        "c": how_it_ended(outcome),
        "E": os.path.exists,
        "__builtins__": {"len": len, "int": int, "bytes": bytes, "range": range, "eval": eval},
    }
    expected = IN_A_BRANCH.get(case["name"], case["expect"]) if where == "branch" else case["expect"]
    assert eval(fill(expected, outside.values), names), (names["c"], names["o"][-2000:])
    assert outcome.status.value != "unavailable"
    assert outside.is_well()
    assert outside.heard() == []
    assert sorted(os.listdir(outside.folder)) == before
    assert target.run("print(6 * 7)").stdout == "42\n"
    assert_at_rest(target)
    if os.geteuid() != 0:
        return  # another process's descriptors are not ours to see, which is as it should be
    for child in [child for nursery in nurseries(target) for child in list(nursery.idle)]:
        assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2", "3"]
