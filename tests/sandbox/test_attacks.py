"""The attack corpora on both tiers: public cases and our own. See ``docs/security.md``.

The fields of a case: ``expect`` is a Python expression over ``o`` (what it wrote) and ``c`` (how it ended); {NAMES} in
the code stand for things of the host that it aims at. System call numbers in our own cases are those of x86_64.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import assert_at_rest

FOLDER = Path(__file__).parents[1] / "cases"
PUBLIC, OWN = (
    [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]
    for name in ("attacks.jsonl", "attacks_own.jsonl")
)


def test_the_corpus_is_complete():
    assert len(PUBLIC) == 69
    assert len(OWN) >= 40
    assert len({case["name"] for case in PUBLIC + OWN}) == len(PUBLIC) + len(OWN)


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
    with start_sandbox(tier=tier, timeout_s=1.0, memory_mb=256, standby=2, echo=False) as sandbox:
        yield sandbox


@pytest.mark.parametrize("case", PUBLIC + OWN, ids=lambda case: case["name"])
def test_attack(tier, target, outside, case):
    before = sorted(os.listdir(outside.folder))
    outcome = target._submit(fill(case["code"], outside.values), None).future.result()
    names = {
        "o": output(outcome),
        "c": how_it_ended(outcome),
        "E": os.path.exists,
        "__builtins__": {"len": len, "int": int, "bytes": bytes, "range": range, "eval": eval},
    }
    assert eval(fill(case["expect"], outside.values), names), (names["c"], names["o"][-2000:])
    assert outcome.status.value != "unavailable"
    assert outside.is_well()
    assert outside.heard() == []
    assert sorted(os.listdir(outside.folder)) == before
    assert target.run("print(6 * 7)").stdout == "42\n"
    assert_at_rest(target)
    if os.geteuid() != 0:
        return  # another process's descriptors are not ours to see, which is as it should be
    for child in list(target._host.nurseries[0].idle):
        assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2", "3"]
