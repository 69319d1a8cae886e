"""Orders that only a key decides."""

import math
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.problems.permutation import permuted, shuffle


@given(n=st.integers(1, 300), key=st.integers())
def test_every_place_is_taken_once(n: int, key: int) -> None:
    assert sorted(permuted(index, n, key) for index in range(n)) == list(range(n))


@given(index=st.integers(0, sys.maxsize - 1), key=st.text(max_size=5))
def test_the_longest_sequence_has_an_order_too(index: int, key: str) -> None:
    assert 0 <= permuted(index, sys.maxsize, key) < sys.maxsize


def test_the_order_is_the_same_everywhere() -> None:
    # Expected on every supported Python and platform. A change changes the order of everybody's runs: say so.
    assert [permuted(index, 10, 0, "epoch", 1) for index in range(10)] == [5, 9, 3, 0, 1, 6, 2, 8, 7, 4]
    assert [permuted(index, 10**12, 7) for index in range(2)] == [729306759284, 680538525723]
    assert shuffle("abcdefgh", 3, "block") == list("dhbcfgea")


def excess(counts: Counter[object], n_cells: int) -> float:
    """Chi-squared over its degrees of freedom: about 1 for fair dice."""
    expected = counts.total() / n_cells
    squares = sum((count - expected) ** 2 for count in counts.values()) + (n_cells - len(counts)) * expected**2
    return squares / expected / (n_cells - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 30])
def test_every_place_and_every_neighbour_is_equally_likely(n: int) -> None:
    places: Counter[object] = Counter()
    neighbours: Counter[object] = Counter()
    for key in range(1500):
        order = [permuted(index, n, key) for index in range(n)]
        places.update(enumerate(order))
        neighbours.update(pairwise(order))
    assert excess(places, n * n) < 2.5
    assert excess(neighbours, n * (n - 1)) < 4


def test_a_shuffled_list_is_in_any_order_equally_often() -> None:
    orders = Counter[object](tuple(shuffle(range(4), key)) for key in range(5000))
    assert excess(orders, math.factorial(4)) < 2
