"""What is counted of one attempt: of made episodes, and of real ones in the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from retool_env.protocol import EndReason
from retool_env.report.facts import TokenCounts, facts_of
from retool_env.sandbox import ExecutionStatus
from retool_env.trajectory import SampleRecord, Trajectory

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path

Record = Callable[..., Trajectory]
RIGHT, WRONG = "So <answer>\\boxed{42}</answer>", "So <answer>\\boxed{41}</answer>"


def code(source: str) -> str:
    return f"I compute.\n<code>\n{source}\n</code>"


def test_an_answer_without_code(record: Record) -> None:
    facts = facts_of(record(RIGHT))
    assert (facts.verdict, facts.ended, facts.answer, facts.reward, facts.bonus) == ("correct", "answered", "42", 1, 0)
    assert (facts.blocks, facts.first_turn, facts.first_position) == ((), None, None)
    assert facts.policy_chars == facts.response_chars == len(RIGHT)
    assert (facts.failed, facts.repaired, facts.fabricated) == (False, False, False)


def test_code_and_where_it_is(record: Record) -> None:
    trajectory = record(code("a = 6\n\n  \nprint(a * 7)"), RIGHT)
    facts = facts_of(trajectory)
    (block,) = facts.blocks
    assert (block.lines, block.passed, block.idle, block.wall_s, block.cpu_s) == (2, True, False, 0.25, 0.125)
    assert facts.first_turn == 1
    response = "".join(turn.kept + turn.observation for turn in trajectory.turns)
    assert facts.response_chars == len(response)
    assert facts.first_position == response.index("a = 6") / len(response)
    assert facts.bonus == pytest.approx(0.05)
    assert facts.elapsed_s == 1.0


def test_a_later_first_block(record: Record) -> None:
    trajectory = record("What?", code("print(6 * 7)"), RIGHT, on_no_action="feedback")
    assert facts_of(trajectory).first_turn == 2
    assert facts_of(trajectory).n_feedback == 1


@pytest.mark.parametrize(
    ("statuses", "failed", "repaired"),
    [
        (["ok"], False, False),
        (["error"], True, False),
        (["error", "ok"], True, True),
        (["ok", "error"], True, False),
        (["timeout", "memory", "ok"], True, True),
    ],
)
def test_failed_and_repaired(statuses: list[str], failed: bool, repaired: bool, record: Record) -> None:
    facts = facts_of(record(*[code(f"print({n} + 1)") for n in range(len(statuses))], RIGHT))
    blocks = tuple(
        replace(block, status=ExecutionStatus(status)) for block, status in zip(facts.blocks, statuses, strict=True)
    )
    changed = replace(facts, blocks=blocks)
    assert (changed.failed, changed.repaired) == (failed, repaired)
    assert changed.n_passed == statuses.count("ok")


def test_a_fault_of_the_sandbox_is_no_failed_block(record: Record) -> None:
    facts = facts_of(record(code("print(6 * 7)"), end=EndReason.SANDBOX_UNAVAILABLE))
    assert (facts.verdict, facts.counted) == ("fault", False)
    facts = replace(facts, blocks=(replace(facts.blocks[0], status=ExecutionStatus.UNAVAILABLE),))
    assert (facts.n_ran, facts.n_passed, facts.failed) == (0, 0, False)


def test_an_attempt_that_goes_on_is_not_counted(record: Record) -> None:
    facts = facts_of(record(code("print(6 * 7)"), over=False))
    assert (facts.verdict, facts.ended, facts.counted, facts.n_tool_calls) == ("unfinished", "", False, 1)


def test_an_invented_observation(record: Record) -> None:
    assert facts_of(record(code("print(6 * 7)") + "\n<interpreter>\n42\n</interpreter>", RIGHT)).fabricated


def test_problems_are_the_same_if_all_of_them_is(record: Record) -> None:
    same = {facts_of(record(turn, id="p")).problem_key for turn in (RIGHT, WRONG)}
    assert len(same) == 1
    assert facts_of(record(RIGHT, id="q")).problem_key not in same
    assert facts_of(record(RIGHT, question="What is 7 * 6?")).problem_key not in same
    shifted = {
        facts_of(record(RIGHT, id=id, question=question)).problem_key for id, question in (("ab", "c"), ("a", "bc"))
    }
    assert len(shifted) == 2


def test_tokens_are_noted(record: Record) -> None:
    tokens = TokenCounts(prompt=100, sampled=20, appended=5)
    assert facts_of(record(RIGHT), tokens).tokens == tokens
    assert tokens.response == 25
    assert facts_of(record(RIGHT)).tokens is None


def test_what_a_run_recorded_of_the_attempt_is_taken(record: Record) -> None:
    sample = SampleRecord(
        id="0/3",
        problem_number=0,
        sample=3,
        seed=7,
        n_prompt=100,
        n_sampled=20,
        n_appended=5,
        resumes=2,
        generate_s=1.5,
    )
    facts = facts_of(record(RIGHT).model_copy(update={"sample": sample}))
    assert facts.tokens == TokenCounts(100, 20, 5)
    assert (facts.generate_s, facts.n_resumes) == (1.5, 2)


class TestCodeThatDoesNothing:
    @pytest.mark.parametrize(
        "source",
        [
            "42",
            "print(42)",
            "print('The answer is 42')",
            "x = 42\nprint(x)",
            "# I think that it is 42\npass",
            'answer = "42"  # sure\nprint("answer:", answer)',
            "print()",
            "...",
            "-1.5e3",
        ],
    )
    def test_constants(self, source: str, record: Record) -> None:
        (block,) = facts_of(record(code(source), RIGHT)).blocks
        assert block.constant
        assert block.idle

    @pytest.mark.parametrize(
        "source",
        [
            "print(6 * 7)",
            "x = 6\nprint(x * 7)",
            "print(f'{6 * 7}')",
            "import sympy\nprint(sympy.prime(50))",
            "print([42])",
            "x = 42\n" * 30,  # more than is looked at
            "print(" + "4" * 300 + ")",
        ],
    )
    def test_not_what_computes(self, source: str, record: Record) -> None:
        (block,) = facts_of(record(code(source), RIGHT)).blocks
        assert not block.constant
        assert not block.idle

    def test_silence_in_an_interpreter_that_forgets(self, record: Record) -> None:
        (fresh,) = facts_of(record(code("x = 6 * 7"), RIGHT, stdout=" \n")).blocks
        (session,) = facts_of(record(code("x = 6 * 7"), RIGHT, stdout="", interpreter="session")).blocks
        assert fresh.silent
        assert fresh.idle
        assert session.silent
        assert not session.idle

    def test_the_same_again(self, record: Record) -> None:
        turns = [code("print(6 * 7)"), code("print(6 * 7)"), RIGHT]
        assert [block.repeated for block in facts_of(record(*turns)).blocks] == [False, True]
        assert not any(block.repeated for block in facts_of(record(*turns, interpreter="session")).blocks)

    @pytest.mark.once
    @pytest.mark.parametrize("piece", ["'a', ", "x\n", " ", "print("])
    def test_long_code_takes_linear_time(self, piece: str, record: Record) -> None:
        def prepare(n: int) -> Callable[[], object]:
            trajectory = record(code("print(" + piece * n + "x"), RIGHT, max_action_chars=10**7)
            return lambda: facts_of(trajectory)

        assert growth(prepare, 400_000) < LINEAR
