"""pass@k and maj@k against counting all subsets, the bootstrap against numpy and against what an interval promises."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.report import estimates
from retool_env.report.estimates import bootstrap, majority_at_k, pass_at_k

RIGHT, SILENT = "right", ""


def attempts(correct: int, others: Sequence[int], silent: int) -> list[str]:
    """The answers of all attempts, one text each."""
    wrong = [f"wrong {i}" for i, count in enumerate(others) for _ in range(count)]
    return [RIGHT] * correct + wrong + [SILENT] * silent


def voted(answers: Sequence[str]) -> Fraction:
    votes = Counter(answer for answer in answers if answer != SILENT)
    top = [answer for answer, count in votes.items() if count == max(votes.values())]
    return Fraction(RIGHT in top, max(1, len(top)))


class TestPassAtK:
    @given(n=st.integers(1, 9), data=st.data())
    def test_it_is_the_share_of_subsets_with_a_right_attempt(self, n: int, data: st.DataObject) -> None:
        correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
        subsets = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
        assert pass_at_k(n, correct, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))

    @given(n=st.integers(1, 400), data=st.data())
    def test_it_is_the_product_form_of_the_paper(self, n: int, data: st.DataObject) -> None:
        correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
        product = 1.0 - np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)) if n - correct >= k else 1.0
        assert pass_at_k(n, correct, k) == pytest.approx(product, abs=1e-9)

    def test_one_attempt_is_the_pass_rate_and_more_never_hurt(self) -> None:
        assert pass_at_k(32, 12, 1) == 12 / 32
        values = [pass_at_k(32, 3, k) for k in range(1, 33)]
        assert values == sorted(values)
        assert values[-1] == 1.0

    def test_it_is_unbiased(self) -> None:
        """Over all outcomes of n tosses of a coin its mean is the chance that one of k tosses is heads."""
        n, k, p = 7, 3, 0.3
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k)

    @pytest.mark.parametrize(("n", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
    def test_what_cannot_be_estimated_is_an_error(self, n: int, correct: int, k: int) -> None:
        with pytest.raises(ValueError, match="must be from"):
            pass_at_k(n, correct, k)


class TestMajorityAtK:
    @settings(deadline=None)
    @given(
        correct=st.integers(0, 4),
        others=st.lists(st.integers(1, 3), max_size=3),
        silent=st.integers(0, 2),
    )
    def test_it_is_the_mean_vote_of_all_subsets(self, correct: int, others: list[int], silent: int) -> None:
        answers = attempts(correct, others, silent)
        found = majority_at_k(correct, others, silent, range(1, len(answers) + 1))
        for k, value in found.items():
            subsets = list(itertools.combinations(answers, k))
            assert value == pytest.approx(float(sum(map(voted, subsets)) / len(subsets)), abs=1e-12)

    def test_a_tie_is_shared(self) -> None:
        assert majority_at_k(3, [3], 0, [6]) == {6: pytest.approx(1 / 2)}
        assert majority_at_k(3, [3, 3], 5, [14]) == {14: pytest.approx(1 / 3)}

    def test_the_silent_have_no_vote(self) -> None:
        assert majority_at_k(1, [], 31, [32]) == {32: 1.0}
        assert majority_at_k(0, [], 4, [4]) == {4: 0.0}

    def test_one_attempt_is_the_pass_rate(self) -> None:
        assert majority_at_k(3, [2, 2, 1], 4, [1])[1] == pytest.approx(3 / 12)

    @pytest.mark.parametrize(("correct", "others", "silent"), [(90, [80, 40, 1, 1, 1], 40), (1, [1] * 255, 0)])
    def test_large_runs_stay_exact(self, correct: int, others: list[int], silent: int) -> None:
        """Against the same sum in rational arithmetic, for the vote of all and for the vote of two."""
        n = correct + sum(others) + silent
        found = majority_at_k(correct, others, silent, [2, n])
        pairs = math.comb(n, 2)
        others_n = sum(others)
        two = Fraction(math.comb(correct, 2) + correct * silent, pairs) + Fraction(correct * others_n, 2 * pairs)
        assert found[2] == pytest.approx(float(two), rel=1e-12)
        assert found[n] == pytest.approx(float(voted(attempts(correct, others, silent))), rel=1e-9)

    def test_sampling_comes_close_and_depends_on_the_seed_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        exact = majority_at_k(20, [16, 8, 1, 1, 1], 9, [4, 16])
        monkeypatch.setattr(estimates, "MAX_EXACT_VOTES", 10)
        sampled = majority_at_k(20, [16, 8, 1, 1, 1], 9, [4, 16], seed=3)
        for k, value in exact.items():
            assert abs(sampled[k] - value) < 5 * 0.5 / math.sqrt(10_000)
        assert sampled == majority_at_k(20, [16, 8, 1, 1, 1], 9, [4, 16], seed=3)
        assert sampled != majority_at_k(20, [16, 8, 1, 1, 1], 9, [4, 16], seed=4)

    @pytest.mark.parametrize("arguments", [(1, [1], 0, [3]), (1, [-1], 2, [1]), (-1, [2], 0, [1]), (1, [1], 0, [0])])
    def test_what_cannot_be_estimated_is_an_error(self, arguments: tuple[int, list[int], int, list[int]]) -> None:
        with pytest.raises(ValueError, match="must"):
            majority_at_k(*arguments)


class TestBootstrap:
    def test_it_is_numpys_percentile_of_means_of_resampled_problems(self) -> None:
        values = np.random.default_rng(1).random((40, 1))
        low, high = bootstrap(values, np.ones_like(values), n_bootstrap=20_000, seed=0)
        drawn = np.random.default_rng(2).choice(values[:, 0], size=(20_000, 40)).mean(axis=1)
        expected = np.percentile(drawn, [2.5, 97.5])
        assert [low[0], high[0]] == pytest.approx(expected, abs=0.004)

    def test_the_seed_fixes_it(self) -> None:
        values = np.random.default_rng(1).random((10, 2))
        ones = np.ones_like(values)
        first = bootstrap(values, ones, n_bootstrap=200, seed=5)
        assert np.array_equal(first, bootstrap(values, ones, n_bootstrap=200, seed=5))
        assert not np.array_equal(first, bootstrap(values, ones, n_bootstrap=200, seed=6))

    def test_a_ratio_is_of_sums(self) -> None:
        """Two kinds of problems: the ratio of sums lies between theirs, and counts attempts alike."""
        above, below = np.array([[1.0], [90.0]] * 10), np.array([[2.0], [100.0]] * 10)
        low, high = bootstrap(above, below, n_bootstrap=2000, seed=0)
        assert 0.5 < low[0] < 91 / 102 < high[0] < 0.9

    def test_there_is_no_interval_without_two_problems(self) -> None:
        above = np.array([[1.0, 1.0], [0.0, 1.0]])
        below = np.array([[1.0, 1.0], [0.0, 1.0]])
        low, high = bootstrap(above, below, n_bootstrap=100, seed=0)
        assert np.isnan(low[0])
        assert np.isnan(high[0])
        assert low[1] == high[1] == 1.0
        assert np.isnan(bootstrap(above, below, n_bootstrap=0, seed=0)[0]).all()
        assert np.isnan(bootstrap(above[:0], below[:0], n_bootstrap=100, seed=0)[0]).all()

    def test_many_problems_are_drawn_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.random.default_rng(1).random((50, 1))
        ones = np.ones_like(values)
        whole = bootstrap(values, ones, n_bootstrap=1000, seed=0)
        monkeypatch.setattr(estimates, "_CHUNK", 130)
        parts = bootstrap(values, ones, n_bootstrap=1000, seed=0)
        assert np.array_equal(whole, parts)

    def test_intervals_hold_the_truth_as_often_as_they_promise(self) -> None:
        """300 runs of 60 problems, 8 attempts each: chances of success from a known law, whose mean is the truth."""
        generator = np.random.default_rng(7)
        held = 0
        for run in range(300):
            chances = generator.beta(1.0, 1.5, size=60)
            rates = generator.binomial(8, chances)[:, None] / 8
            low, high = bootstrap(rates, np.ones_like(rates), n_bootstrap=300, seed=run)
            held += low[0] <= 0.4 <= high[0]
        assert 0.91 < held / 300 < 0.98
