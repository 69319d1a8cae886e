"""The attack corpus on both tiers. See ``tests/cases/attacks.jsonl`` and ``docs/security.md``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import assert_at_rest

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "attacks.jsonl").read_text().splitlines()]


def test_the_corpus_is_complete():
    assert len(CASES) == 69
    assert len({case["name"] for case in CASES}) == 69


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
    """Standard output, then what a traceback says without the source lines it quotes (they hold the tell-tale words)."""
    said = [line for line in outcome.stderr.splitlines(keepends=True) if not line.startswith(b" ")]
    return outcome.stdout + b"".join(said)


@pytest.fixture(scope="session")
def target(tier, request):
    from ..conftest import start_or_skip

    with start_or_skip(request, tier=tier, timeout_s=1.0, memory_mb=256, standby=2, echo=False) as sandbox:
        yield sandbox


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
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
    for child in target._host._idle:
        assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2", "3"]
