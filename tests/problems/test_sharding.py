"""One rank's part: disjoint, together complete, of equal size; also of a mix without an end, and in a forked worker."""

import os
import pickle
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.errors import ConfigurationError
from retool_env.problems import BuiltinProblems, Mix, Problem, load_problems, shard, shuffled

ROOT = Path(__file__).parents[2]
ALL = [Problem(id=str(number), question="?", answer="1") for number in range(100)]


@given(n=st.integers(1, 100), world_size=st.integers(1, 100))
def test_parts_are_disjoint_complete_and_of_equal_size(n: int, world_size: int) -> None:
    if n < world_size:
        with pytest.raises(ConfigurationError, match=f"world_size: {world_size} ranks cannot share {n} problems"):
            shard(ALL[:n], 0, world_size)
        return
    parts = [shard(ALL[:n], rank, world_size) for rank in range(world_size)]
    ids = [problem.id for problem in chain(*parts)]
    assert len(ids) == n
    assert set(ids) == {problem.id for problem in ALL[:n]}
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(world_size=st.integers(1, 9), seed=st.integers(), start=st.integers(0, 10**12))
def test_parts_of_an_endless_mix_take_turns(world_size: int, seed: int, start: int) -> None:
    mix = Mix([(ALL[:7], 1), (ALL[7:], 2)], seed)
    parts = [shard(mix, rank, world_size) for rank in range(world_size)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sum(map(len, parts)) == sys.maxsize
    together = [part[start + turn] for turn in range(3) for part in parts]
    assert together == mix[start * world_size : (start + 3) * world_size]


def test_the_ranks_share_every_epoch() -> None:
    parts = [shard(shuffled(ALL, seed=3), rank, 4) for rank in range(4)]
    for epoch in range(3):
        seen = [problem.id for part in parts for problem in part[25 * epoch : 25 * epoch + 25]]
        assert sorted(seen) == sorted(problem.id for problem in ALL)


def test_a_part_is_lazy_and_can_be_taken_everywhere() -> None:
    part = shard(BuiltinProblems(seed=1), 2, 8)
    assert part[5] == BuiltinProblems(seed=1)[42]
    assert len(pickle.dumps(part)) < 1000
    assert pickle.loads(pickle.dumps(part))[:3] == part[:3]
    assert load_problems(part) is part
    assert [len(shard(part, rank, 3)) for rank in range(3)] == [41667, 41667, 41666]


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_an_error(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"rank: must be .* world_size={world_size}, got {rank}"):
        shard(ALL, rank, world_size)


FORKED = """
import os, signal, sys
from retool_env.problems import Mix, ReasoningGym, load_problems, shard

rows = load_problems(sys.argv[1])
mix = Mix([(rows, 1), (ReasoningGym("gcd", size=50), 1), ("builtin", 1)], seed=2)
expected = [problem.id for problem in mix[:40]]
for rank in range(2):
    if os.fork() == 0:
        signal.alarm(60)  # a worker that hangs is an error, and must not be left behind
        part = shard(mix, rank, 2)
        assert [problem.id for problem in part[:20]] == expected[rank::2]
        assert load_problems(sys.argv[1]) == rows
        assert load_problems([{"question": "?", "answer": "\\\\sqrt{%d}" % (rank + 2)}])
        os._exit(0)
print([os.wait()[1] for _ in range(2)])
"""


def test_workers_forked_from_a_process_that_has_loaded_problems(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "?", "answer": "\\\\frac{\\\\sqrt{2}}{2}"}\n')
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(file)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[0, 0]\n", 0), done.stderr


def test_a_worker_forked_after_parquet_was_read_can_read_it_too(tmp_path: Path) -> None:
    from .conftest import write_parquet

    file = write_parquet(tmp_path / "set.parquet", [{"question": "1+1?", "answer": "2"}] * 3000)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(file)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[0, 0]\n", 0), done.stderr
