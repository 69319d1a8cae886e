"""Mixes: shares, epochs, and an order that only the arguments decide."""

import copy
import pickle
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.problems import BuiltinProblems, Mix, Problem, ReasoningGym, load_problems, shard, shuffled


def problems(name: str, n: int) -> list[Problem]:
    return [Problem(id=f"{name}{number}", question=f"{number}?", answer="1", source=name) for number in range(n)]


A, B, C = problems("a", 5), problems("b", 30), problems("c", 1)

weights = st.floats(1e-3, 1e3) | st.integers(1, 50)
shapes = st.lists(st.tuples(st.integers(1, 40), weights), min_size=1, max_size=5)


def mixed(shape: list[tuple[int, float]], seed: int) -> Mix:
    return Mix([(problems("abcde"[number], n), weight) for number, (n, weight) in enumerate(shape)], seed)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=st.integers(), n_blocks=st.integers(1, 6))
def test_each_source_has_its_share(shape: list[tuple[int, float]], seed: int, n_blocks: int) -> None:
    counts = Counter(problem.source for problem in mixed(shape, seed)[: 64 * n_blocks])
    total = sum(Fraction(weight) for _, weight in shape)
    for number, (_, weight) in enumerate(shape):
        assert abs(counts["abcde"[number]] - 64 * n_blocks * Fraction(weight) / total) < len(shape)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=st.integers())
def test_each_source_is_gone_through_before_any_of_it_comes_again(shape: list[tuple[int, float]], seed: int) -> None:
    taken = mixed(shape, seed)[:500]
    for number, (n, _) in enumerate(shape):
        ids = [problem.id for problem in taken if problem.source == "abcde"[number]]
        for start in range(0, len(ids), n):
            epoch = ids[start : start + n]
            assert len(set(epoch)) == len(epoch)


@settings(deadline=None, max_examples=30)
@given(shape=shapes, seed=st.integers(), place=st.integers(0, sys.maxsize - 1))
def test_a_position_gives_the_same_wherever_one_comes_from(
    shape: list[tuple[int, float]], seed: int, place: int
) -> None:
    mix = mixed(shape, seed)
    assert mix[place] == mixed(shape, seed)[place] == pickle.loads(pickle.dumps(mix))[place]
    assert mix[300] == mix[:301][300]


def test_the_order_is_the_same_everywhere() -> None:
    # Expected on every supported Python and platform. A change changes the order of everybody's runs: say so.
    mix = Mix([(A, 0.25), (B, 0.5), (C, 0.25)], seed=7)
    assert " ".join(problem.id for problem in mix[:16]) == "a2 b22 c0 b1 b29 a4 c0 c0 b10 b21 c0 c0 b9 b0 b7 c0"
    assert mix[10**15].id == "b16"


def test_epochs_are_in_different_orders_and_so_are_seeds() -> None:
    endless = shuffled(B, seed=1)
    first, second = ([problem.id for problem in endless[start : start + 30]] for start in (0, 30))
    assert sorted(first) == sorted(second) == sorted(problem.id for problem in B)
    assert first != second
    assert first != [problem.id for problem in B]
    assert first != [problem.id for problem in shuffled(B, seed=2)[:30]]
    # A source has an order of its own in each place of a mix.
    two = Mix([(B, 1), (problems("d", 30), 1)], seed=1)[:60]
    assert [p.question for p in two if p.source == "b"] != [p.question for p in two if p.source == "d"]


def test_a_mix_has_an_end_only_if_it_is_given_one() -> None:
    assert len(Mix([(A, 1), (B, 1)])) == sys.maxsize
    ending = Mix([(A, 1), (B, 1)], size=10)
    assert list(ending) == Mix([(A, 1), (B, 1)])[:10]
    assert ending[-1] == ending[9]
    with pytest.raises(IndexError):
        ending[10]


def test_sources_are_what_load_problems_takes() -> None:
    mix = Mix([("builtin", 1), ("reasoning-gym:gcd?size=3", 1), ([{"question": "1+1?", "answer": "2"}], 2)], seed=5)
    assert mix.sources[0] == BuiltinProblems(5)
    assert list(mix.sources[1]) == list(ReasoningGym("gcd", size=3, seed=5))
    assert Counter(problem.source.split("/")[0] for problem in mix[:64]) == {"reasoning-gym": 32, "": 32}
    assert load_problems(mix) is mix
    assert len(load_problems(mix, limit=7)) == 7


def test_a_mix_of_a_mix_keeps_the_inner_order() -> None:
    inner = Mix([(A, 1), (B, 3)], seed=2)
    outer = Mix([(inner, 1), (C, 1)], seed=3)
    assert [problem for problem in outer[:200] if problem.source != "c"] == inner[:100]
    part = shard(inner, 1, 2)
    assert [problem for problem in Mix([(part, 1), (C, 1)])[:200] if problem.source != "c"] == part[:100]


def test_the_sources_of_neighbours_are_not_in_step() -> None:
    # If they alternated, each of two ranks would have one source only.
    sources = [problem.source for problem in Mix([(A, 1), (B, 1)], seed=1)[:640]]
    assert 100 < sources[::2].count("a") < 220


def test_copies_and_threads_see_the_same() -> None:
    mix = Mix([(A, 1), (ReasoningGym("gcd", size=50), 2)], seed=4)
    assert copy.deepcopy(mix)[:50] == mix[:50]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(mix.__getitem__, range(80))) == mix[:80]


def test_far_positions_are_as_good_as_near_ones() -> None:
    counts = Counter(problem.source for problem in Mix([(A, 1), (B, 3)])[10**18 : 10**18 + 6400])
    assert abs(counts["a"] - 1600) < 64


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "sources: there is none"),
        ([(A, 0)], r"sources\[0\]: a weight must be a positive number, got 0"),
        ([(A, 1), (B, -1)], r"sources\[1\]: a weight must be a positive number, got -1"),
        ([(A, float("nan"))], r"a weight must be a positive number, got nan"),
        ([(A, 10**400)], r"a weight must be a positive number, got 1000"),
        ([(A, float("inf"))], r"a weight must be a positive number, got inf"),
        ([(A, "much")], r"a weight must be a positive number, got 'much'"),
        (["builtin"], r"sources\[0\]: must be a pair of a source and its weight, got 'builtin'"),
        ([A], r"sources\[0\]: must be a pair"),
        ([([], 1)], "the sequence is empty"),
    ],
)
def test_wrong_sources_are_errors(sources: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mix(sources)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="size: must be at least 1"):
        Mix([(A, 1)], size=0)


def test_two_sources_may_not_share_an_id() -> None:
    with pytest.raises(ProblemError, match=r"sources\[0\] and sources\[2\] both have a problem with the id 'a0'"):
        Mix([(A, 1), (B, 1), (A[:2], 1)])


def test_two_generators_may_not_share_an_id_either() -> None:
    with pytest.raises(ProblemError, match=r"both have a problem with the id 'builtin-0-\d'; .* different seeds"):
        Mix([("builtin", 1), ("builtin", 1)])
    with pytest.raises(ProblemError, match=r"both have a problem with the id 'leg_counting-0-\d'"):
        Mix([("reasoning-gym:leg_counting?size=3", 1), ("reasoning-gym:leg_counting?size=5", 1)])
    mix = Mix([(BuiltinProblems(families=["lcm"]), 1), (BuiltinProblems(families=["dice"]), 1)])
    assert len({problem.id for problem in mix[:64]}) == 64
