"""The order of an environment's problems."""

import pickle
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retool_env.problem_order import ProblemOrder
from retool_env.problems import Mix, Problem


@given(n=st.integers(1, 60), seed=st.integers(0, 2**32), is_shuffled=st.booleans())
def test_every_round_holds_every_problem_once(n: int, seed: int, is_shuffled: bool) -> None:
    order, rng = ProblemOrder(n, is_shuffled), np.random.default_rng(seed)
    for _ in range(3):
        assert sorted(order.next(rng) for _ in range(n)) == list(range(n))


def test_rounds_and_seeds_differ() -> None:
    order, rng = ProblemOrder(50), np.random.default_rng(1)
    first, second = ([order.next(rng) for _ in range(50)] for _ in range(2))
    assert first != second
    order.restart()
    assert [order.next(np.random.default_rng(1)) for _ in range(1)] == first[:1]
    order.restart()
    assert [order.next(np.random.default_rng(2)) for _ in range(50)] != first


def test_a_long_sequence_has_no_repeats_and_costs_no_memory() -> None:
    order, rng = ProblemOrder(sys.maxsize), np.random.default_rng(0)
    assert len({order.next(rng) for _ in range(2000)}) == 2000
    assert len(pickle.dumps(order)) < 200


def test_a_mix_is_gone_through_in_its_own_order_from_a_random_place_on() -> None:
    problems = [Problem(id=str(number), question="?", answer="1") for number in range(20)]
    mix = Mix([(problems, 1)])
    order = ProblemOrder(len(mix), mix.is_shuffled)
    taken = [order.next(np.random.default_rng(3)) for _ in range(60)]
    assert taken == list(range(taken[0], taken[0] + 60))
    start = -taken[0] % 20
    assert len({mix[place].id for place in taken[start : start + 20]}) == 20
    other = ProblemOrder(len(mix), mix.is_shuffled)
    assert other.next(np.random.default_rng(4)) != taken[0]
