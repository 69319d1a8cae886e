"""The measure of growth itself: it tells the square from what is linear, whatever happens meanwhile."""

import functools

import pytest

from .growth import LINEAR, compare, cpu_s, growth

pytestmark = pytest.mark.once


def linear(n: int) -> object:
    return functools.partial(sum, range(100 * n))


def linear_and_logarithm(n: int) -> object:
    return functools.partial(sorted, [number * 7919 % 10_007 for number in range(100 * n)])


def square(n: int) -> object:
    items = list(range(n))
    return lambda: [number in items for number in items]


def square_with_overhead(n: int) -> object:
    seek = square(n)
    return lambda: (sum(range(n * 20)), seek())


@pytest.mark.parametrize("prepare", [linear, linear_and_logarithm], ids=lambda prepare: prepare.__name__)
def test_what_is_linear(prepare):
    assert growth(prepare, 4000) < LINEAR


@pytest.mark.parametrize("prepare", [square, square_with_overhead], ids=lambda prepare: prepare.__name__)
def test_the_square_is_found(prepare):
    assert growth(prepare, 2000) > LINEAR


def test_something_that_happens_once_is_no_growth():
    """A first import, a collection, a cache that is filled."""
    calls = []

    def prepare(n):
        def call():
            calls.append(n)
            if calls.count(4000) == 1 and n == 4000:
                sum(range(10_000_000))
            return sum(range(100 * n))

        return call

    assert growth(prepare, 4000) < LINEAR


def test_one_call_beside_another():
    assert 2 < compare(lambda: sum(range(40_000)), lambda: sum(range(10_000))) < 8
    assert cpu_s(lambda: None) < cpu_s(lambda: sum(range(1000)))
