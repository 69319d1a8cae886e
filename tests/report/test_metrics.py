"""``measure``: the figures of runs whose every figure can be counted by hand."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from retool_env.errors import ConfigurationError
from retool_env.protocol import EndReason
from retool_env.report.facts import AttemptFacts, TokenCounts, facts_of
from retool_env.report.metrics import RunMetrics, measure
from retool_env.trajectory import Trajectory

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path

Record = Callable[..., Trajectory]
CODE = "I compute.\n<code>\nprint(6 * 7)\n</code>"


def answer(text: object) -> str:
    return f"So <answer>\\boxed{{{text}}}</answer>"


@pytest.fixture
def attempts(record: Record) -> Callable[..., list[Trajectory]]:
    """Returns a function that makes attempts at a problem, by their answers; None gives none, a fault is an end."""

    def make(id: str, *answers: object) -> list[Trajectory]:
        made = []
        for one in answers:
            if isinstance(one, EndReason):
                made.append(record(CODE, id=id, end=one))
            else:
                made.append(record("I do not know." if one is None else answer(one), id=id))
        return made

    return make


def value(metrics: RunMetrics, name: str) -> float | None:
    return metrics.estimates[name].value


class TestAnswers:
    def test_pass_and_majority(self, attempts: Callable[..., list[Trajectory]]) -> None:
        run = attempts("a", 42, 42, 41, 41) + attempts("b", 42, 7, 8, None) + attempts("c", 1, 1, 1, 2)
        metrics = measure(run)
        assert metrics.settings["ks"] == [1, 2, 4]
        assert value(metrics, "pass@1") == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
        assert value(metrics, "pass@2") == pytest.approx((5 / 6 + 3 / 6 + 0) / 3)
        assert value(metrics, "pass@4") == pytest.approx(2 / 3)
        assert value(metrics, "maj@1") == pytest.approx(value(metrics, "pass@1"))
        # Of a's 6 pairs 1 is right, 1 wrong, 4 tie. Of b's, one is right (the one with no answer), two tie.
        assert value(metrics, "maj@2") == pytest.approx(((1 + 4 / 2) / 6 + (1 + 2 / 2) / 6 + 0) / 3)
        assert value(metrics, "maj@4") == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
        assert value(metrics, "mean@n") == value(metrics, "pass@1") == value(metrics, "accuracy")
        assert [one.majority for one in metrics.per_problem] == pytest.approx([1 / 2, 1 / 3, 0])

    def test_equal_wrong_answers_vote_together(self, attempts: Callable[..., list[Trajectory]]) -> None:
        metrics = measure(attempts("a", 42, 42, r"\frac{1}{2}", "0.5", "1/2"))
        assert value(metrics, "maj@5") == 0.0
        assert metrics.votes.compared > 0
        assert value(measure(attempts("a", 42, 42, r"\frac{1}{2}", "0.4", "1/3")), "maj@5") == 1.0

    def test_the_order_of_attempts_changes_nothing(self, attempts: Callable[..., list[Trajectory]]) -> None:
        run = attempts("a", 42, 42, 41) + attempts("b", 42, "1/2", "0.5") + attempts("c", 42, 1, None)
        first = measure(run)
        for order in itertools.islice(itertools.permutations(run), 0, 300_000, 60_000):
            other = measure(order)
            for name, estimate in first.estimates.items():
                assert other.estimates[name].value == pytest.approx(estimate.value)

    def test_attempts_and_their_facts_are_the_same(self, attempts: Callable[..., list[Trajectory]]) -> None:
        run = attempts("a", 42, 41) + attempts("b", 42, 42)
        assert measure(run).to_dict() == measure(facts_of(one) for one in run).to_dict()

    def test_unequal_numbers_of_attempts(self, attempts: Callable[..., list[Trajectory]]) -> None:
        metrics = measure(attempts("a", 42) + attempts("b", 41, 41, 41), k=[1, 2, 3, 4])
        assert (metrics.n_min, metrics.n_max) == (1, 3)
        assert value(metrics, "mean@n") == 1 / 2
        assert value(metrics, "accuracy") == 1 / 4
        assert [metrics.estimates[f"pass@{k}"].problems for k in (1, 2, 3, 4)] == [2, 1, 1, 0]
        assert value(metrics, "pass@2") == 0.0
        assert value(metrics, "pass@4") is None
        assert value(metrics, "maj@4") is None
        assert any("1 to 3 attempts" in note for note in metrics.notes)
        assert any("pass@4 of 0" in note for note in metrics.notes)
        assert measure(attempts("a", 42) + attempts("b", 41, 41, 41)).settings["ks"] == [1]

    def test_faults_and_unfinished_attempts_are_left_out(
        self, attempts: Callable[..., list[Trajectory]], record: Record
    ) -> None:
        faults = [EndReason.ABORTED, EndReason.SANDBOX_UNAVAILABLE, EndReason.GRADE_TIMEOUT]
        run = [*attempts("a", 42, 41, *faults), record(CODE, id="a", over=False), *attempts("b", EndReason.ABORTED)]
        metrics = measure(run)
        assert (metrics.attempts, metrics.counted, metrics.correct) == (7, 2, 1)
        assert (metrics.faults, metrics.unfinished) == (4, 1)
        assert (metrics.problems, metrics.problems_left_out) == (1, 1)
        assert value(metrics, "mean@n") == 1 / 2
        assert metrics.per_problem[0].left_out == 4
        assert metrics.per_problem[1].pass_rate is None
        assert metrics.ended == {
            "aborted": 2, "answered": 2, "sandbox_unavailable": 1, "grade_timeout": 1, "goes on": 1
        }  # fmt: skip
        assert metrics.behaviour["all"].attempts == 2
        assert metrics.executions.blocks == 5
        assert any("4 of 7 attempts ended by a fault" in note for note in metrics.notes)

    def test_two_problems_with_one_id_are_two(self, record: Record) -> None:
        run = [record(answer(42), id="same", question=question) for question in ("What is 6 * 7?", "What is 7 * 6?")]
        assert measure(run).problems == 2

    def test_sources(self, attempts: Callable[..., list[Trajectory]]) -> None:
        run = [facts_of(one) for one in attempts("a", 42, 41) + attempts("b", 42, 42) + attempts("c", 1, 2)]
        years = {"a": "aime_2024", "b": "aime_2024", "c": "aime_2025"}
        metrics = measure(replace(one, source=years[one.problem_id]) for one in run)
        assert [(one.source, one.problems, one.counted, one.mean_at_n) for one in metrics.sources] == [
            ("aime_2024", 2, 4, 0.75),
            ("aime_2025", 1, 2, 0.0),
        ]


class TestLittle:
    def test_no_attempt(self) -> None:
        metrics = measure([])
        assert metrics.notes == ("There are no attempts.",)
        assert value(metrics, "mean@n") is None
        json.dumps(metrics.to_dict(), allow_nan=False)

    def test_faults_alone(self, attempts: Callable[..., list[Trajectory]]) -> None:
        metrics = measure(attempts("a", EndReason.ABORTED))
        assert metrics.notes[0] == "No attempt counts: all are faults or unfinished."
        assert value(metrics, "accuracy") is None
        json.dumps(metrics.to_dict(), allow_nan=False)

    def test_one_problem_has_no_interval(self, attempts: Callable[..., list[Trajectory]]) -> None:
        metrics = measure(attempts("a", 42, 41))
        assert {(one.low, one.high) for one in metrics.estimates.values()} == {(None, None)}
        assert any("no intervals" in note for note in metrics.notes)

    def test_one_attempt_at_each_problem(self, attempts: Callable[..., list[Trajectory]]) -> None:
        metrics = measure(attempts("a", 42) + attempts("b", 41))
        assert value(metrics, "pass@1") == value(metrics, "maj@1") == 1 / 2
        assert metrics.estimates["pass@1"].low == 0.0
        assert metrics.estimates["pass@1"].high == 1.0
        assert any("one attempt at each problem" in note for note in metrics.notes)

    @pytest.mark.parametrize("options", [{"k": [0]}, {"k": [4, -1]}, {"n_bootstrap": -1}, {"seed": -1}])
    def test_what_makes_no_sense_is_an_error(self, options: dict[str, object]) -> None:
        with pytest.raises(ConfigurationError, match="must"):
            measure([], **options)


class TestBehaviour:
    def test_code(self, record: Record) -> None:
        run = [
            record(CODE, answer(42), id="a"),
            record(CODE.replace("print(6 * 7)", "a = 6\nb = 7\nprint(a * b)"), answer(41), id="a"),
            record(answer(42), id="a"),
            record("What?", id="a"),
        ]
        metrics = measure(run)
        everyone, right, wrong = (metrics.behaviour[name] for name in ("all", "correct", "wrong"))
        assert (everyone.attempts, right.attempts, wrong.attempts) == (4, 2, 2)
        assert (everyone.code_ratio, right.code_ratio, wrong.code_ratio) == (0.5, 0.5, 0.5)
        assert (right.with_code, wrong.with_code) == (1, 1)
        assert (right.code_lines.mean, wrong.code_lines.mean) == (1, 3)
        assert (everyone.pass_rate, everyone.last_pass_rate, everyone.first_turn.mean) == (1, 1, 1)
        assert everyone.policy_chars.max == max(len(one.turns[0].kept) + len(answer(42)) for one in run[:2])
        assert value(metrics, "code_ratio") == 0.5
        assert value(metrics, "pass_rate") == 1.0

    def test_pass_rates_and_self_correction(self, record: Record) -> None:
        failed = {"error_class": "NameError", "exit_code": 1}
        run = [
            record(CODE, answer(42), status="error", result=failed),
            record(CODE, answer(42)),
            record(CODE, answer(41), status="timeout"),
        ]
        facts = [facts_of(one) for one in run]
        # One that failed, tried again and then was right.
        both = (facts[0].blocks[0], facts[1].blocks[0])
        facts.append(replace(facts[1], blocks=both))
        metrics = measure(facts)
        right, wrong = metrics.behaviour["correct"], metrics.behaviour["wrong"]
        assert right.pass_rate == 2 / 4
        assert right.last_pass_rate == 2 / 3
        assert right.failed_ratio == 2 / 3
        assert (right.repaired, right.repaired_ratio) == (1, 1 / 2)
        assert (wrong.pass_rate, wrong.last_pass_rate, wrong.timeout_ratio, wrong.repaired_ratio) == (0, 0, 1, 0)
        assert metrics.executions.statuses == {"error": 2, "ok": 2, "timeout": 1}
        assert metrics.executions.error_classes == {"NameError": 2}

    def test_tokens(self, record: Record) -> None:
        run = [facts_of(record(answer(42)), TokenCounts(10, 100 * n, 10)) for n in (1, 2, 3)]
        metrics = measure(run)
        assert metrics.behaviour["all"].response_tokens.mean == 210
        assert metrics.behaviour["all"].sampled_tokens.p50 == 200
        assert metrics.distributions["response_tokens"].correct[0] >= 1
        assert sum(metrics.distributions["response_tokens"].correct) == 3
        assert "response_tokens" not in measure([record(answer(42))]).distributions

    def test_histograms_hold_every_attempt_once(self, record: Record) -> None:
        run = [record(answer("4" * n), id="a") for n in (1, 2, 300)] + [record("?" * 5000)] + [record(answer(42))] * 500
        for spread in measure(run).distributions.values():
            assert len(spread.edges) == len(spread.correct) + 1 == len(spread.wrong) + 1
            assert list(spread.edges) == sorted(set(spread.edges))
        assert sum(measure(run).distributions["response_chars"].correct) == 500
        assert sum(measure(run).distributions["response_chars"].wrong) == 4

    def test_what_shaping_paid_for(self, record: Record) -> None:
        idle = "Sure.\n<code>\nprint(41)\n</code>"
        run = [
            record(CODE, answer(42), id="a"),  # 1 + 0.05
            record(idle, answer(41), id="a"),  # 0.02, for nothing
            record(idle, idle, answer(41), id="a"),  # 0.04, the same again
            record(answer(41), id="a"),
            record(idle, CODE, answer(42), id="a"),  # 1 + 0.1, and one of the blocks is of use
        ]
        shaping = measure(run).shaping
        assert shaping.bonus == pytest.approx(0.21)
        assert (shaping.bonus_wrong, shaping.wrong_paid) == (pytest.approx(0.06), 2)
        assert shaping.wrong_with_code_reward_mean == pytest.approx(0.03)
        assert shaping.wrong_without_code_reward_mean == 0.0
        assert (shaping.blocks, shaping.idle, shaping.constant, shaping.repeated) == (6, 4, 4, 1)
        assert (shaping.idle_attempts, shaping.idle_bonus) == (2, pytest.approx(0.06))

    def test_error_classes_that_code_makes_up_are_bounded(self, record: Record) -> None:
        facts = facts_of(record(CODE, answer(41), status="error"))
        block = facts.blocks[0]
        made_up = [replace(facts, blocks=(replace(block, error_class=f"Error{n}"),)) for n in range(500)]
        classes = measure(made_up).executions.error_classes
        assert len(classes) == 65
        assert classes["other"] == 436


def test_not_finite_numbers_become_none(record: Record) -> None:
    facts = facts_of(record(CODE, answer(42)))
    odd = [replace(facts, reward=reward, elapsed_s=math.inf) for reward in (math.nan, math.inf, 1e308, 1e308)]
    shown = measure(odd).to_dict()
    json.dumps(shown, allow_nan=False)
    assert shown["timing"]["work_s"] is None


def many(record: Record, problems: int, samples: int) -> Iterator[AttemptFacts]:
    """Attempts that are made as they are taken; every third is right, the others have answers of their own."""
    facts = facts_of(record(CODE, answer(41)))
    for n in range(problems * samples):
        one = replace(facts, problem_key=f"problem {n % problems}", answer=str(n))
        yield replace(one, verdict="correct") if n % 3 == 0 else one


@pytest.mark.once
@pytest.mark.parametrize("shape", [lambda n: (n // 16, 16), lambda n: (1, n)], ids=["many problems", "one problem"])
def test_twenty_thousand_attempts(shape: Callable[[int], tuple[int, int]], record: Record) -> None:
    def prepare(n: int) -> Callable[[], object]:
        run: Sequence[AttemptFacts] = list(many(record, *shape(n)))

        def call() -> None:
            assert measure(run, k=[1, 4], n_bootstrap=100).counted == len(run)

        return call

    assert growth(prepare, 20_000) < LINEAR


def test_memory_is_a_few_numbers_an_attempt(record: Record) -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        try:
            measure(many(record, 50, n // 50), k=[1], n_bootstrap=10)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    attempt = len(record(CODE, answer(41)).to_json())
    grown = (peak(6000) - peak(2000)) / 4000
    assert grown < min(2000, attempt / 2)
