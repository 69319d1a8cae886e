"""The demo's engine room, with a real sandbox."""

import asyncio
import math
from collections import Counter
from pathlib import Path

import pytest

from retool_env.demo import AttemptFailure, DemoSummary, run_demo
from retool_env.errors import ConfigurationError
from retool_env.problems import Problem, builtin_problems
from retool_env.rollout import Conversation, Reply, ScriptedSolver
from retool_env.rollout.scripted import PROTOCOLS, Style
from retool_env.trajectory import read_jsonl

RIGHT = set(Style) - {Style.WRONG, Style.NO_ANSWER}


def styles(policy: ScriptedSolver, problems: list[Problem]) -> Counter[Style]:
    talks = [Conversation(problem, "code_tags", (), attempt=i) for i, problem in enumerate(problems)]
    return Counter(map(policy.style, talks))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_summary_tells_what_happened_and_the_file_has_every_attempt(protocol: str, tmp_path: Path) -> None:
    problems = builtin_problems(32, seed=1)
    policy = ScriptedSolver(seed=1)
    wanted = styles(policy, problems)
    out = tmp_path / "trajectories.jsonl"
    ticks: list[None] = []
    summary = await run_demo(
        problems, policy, protocol=protocol, timeout_s=1.0, concurrency=8, out=out, progress=lambda: ticks.append(None)
    )
    assert summary.failures == ()
    assert len(ticks) == 32
    assert (summary.attempts, summary.counted) == (32, 32)
    assert summary.correct == sum(wanted[style] for style in RIGHT)
    assert summary.used_tool == 32 - wanted[Style.REASONING] - wanted[Style.NO_ANSWER]
    assert summary.ended == {"answered": 32 - wanted[Style.NO_ANSWER], "no_action": wanted[Style.NO_ANSWER]}
    assert summary.executions["error"] == wanted[Style.ERROR]
    assert summary.executions["timeout"] == wanted[Style.TIMEOUT] == 2
    one_program = (Style.ONE_BLOCK, Style.MALFORMED, Style.WRONG)
    two_programs = (Style.SEVERAL_BLOCKS, Style.ERROR, Style.TIMEOUT)
    assert sum(summary.executions.values()) == sum(
        [wanted[style] for style in one_program] + [2 * wanted[style] for style in two_programs]
    )
    assert summary.tier in ("nsjail", "landlock")

    trajectories = list(read_jsonl(out))
    results = [result for trajectory in trajectories for turn in trajectory.turns for result in turn.results]
    by_themselves = [result.wall_s for result in results if result.status in ("ok", "error")]
    assert 0 < summary.latency_p50_s <= summary.latency_p99_s <= max(by_themselves)
    assert {trajectory.problem.id for trajectory in trajectories} == {problem.id for problem in problems}
    rewards = [trajectory.outcome.reward for trajectory in trajectories if trajectory.outcome is not None]
    assert summary.mean_reward == pytest.approx(math.fsum(rewards) / 32)
    feedback = [t for t in trajectories if any(turn.action == "feedback" for turn in t.turns)]
    assert len(feedback) == wanted[Style.MALFORMED]


async def test_two_runs_of_the_same_seed_agree(tmp_path: Path) -> None:
    problems = builtin_problems(16)

    async def results(name: str, concurrency: int) -> dict[str, object]:
        out = tmp_path / name
        await run_demo(problems, ScriptedSolver(), timeout_s=1.0, concurrency=concurrency, out=out)
        return {t.problem.id: (t.outcome, [(turn.kept, turn.observation) for turn in t.turns]) for t in read_jsonl(out)}

    assert await results("one.jsonl", 2) == await results("two.jsonl", 16)


class Failing(ScriptedSolver):
    """Raises in some attempts, at their second turn."""

    async def act(self, conversation: Conversation) -> Reply:
        if conversation.attempt in (2, 5) and (conversation.exchanges or conversation.attempt == 5):
            raise OSError(f"no connection for attempt {conversation.attempt}")
        return await super().act(conversation)


async def test_an_attempt_that_raises_costs_no_other_attempt_anything(tmp_path: Path) -> None:
    policy = Failing()
    problems = builtin_problems(16)
    attempts = [Conversation(p, "code_tags", (), attempt=i) for i, p in enumerate(problems)]
    second_turn = policy.style(attempts[2]) not in (Style.REASONING, Style.NO_ANSWER)
    expected = [2, 5] if second_turn else [5]
    out = tmp_path / "trajectories.jsonl"
    summary = await run_demo(problems, policy, timeout_s=1.0, concurrency=4, out=out)
    assert [(failure.attempt, failure.problem_id) for failure in summary.failures] == [
        (i, problems[i].id) for i in expected
    ]
    assert isinstance(summary.failures[-1].error, OSError)
    assert summary.counted == 16 - len(expected)
    assert len(list(read_jsonl(out))) == 16 - len(expected)
    assert ("failed attempts", str(len(expected))) in summary.rows()


async def test_results_that_cannot_be_written_end_the_run_at_once() -> None:
    ticks: list[None] = []
    with pytest.raises(OSError, match=r"No space left.*/dev/full"):
        await run_demo(
            builtin_problems(16), ScriptedSolver(), concurrency=1, out="/dev/full", progress=lambda: ticks.append(None)
        )
    assert ticks == []


class Counting(ScriptedSolver):
    """Lets nobody's first turn through before ``together`` attempts have begun; counts how many are under way."""

    def __init__(self, together: int):
        super().__init__()
        self.barrier = asyncio.Barrier(together)
        self.running: set[int] = set()
        self.most = 0

    async def act(self, conversation: Conversation) -> Reply:
        if not conversation.exchanges:
            self.running.add(conversation.attempt)
            self.most = max(self.most, len(self.running))
            await self.barrier.wait()
            self.running.discard(conversation.attempt)
        return await super().act(conversation)


async def test_attempts_run_at_the_same_time_and_never_more_than_asked_for() -> None:
    problems = [Problem(id=str(i), question="What is 6 times 7?", answer="42") for i in range(12)]
    policy = Counting(together=4)
    summary = await asyncio.wait_for(run_demo(problems, policy, concurrency=4), timeout=60)
    assert (summary.attempts, policy.most) == (12, 4)


async def test_what_would_fail_every_attempt_is_raised_at_once() -> None:
    problems = builtin_problems(4)
    with pytest.raises(ConfigurationError, match="concurrency"):
        await run_demo(problems, ScriptedSolver(), concurrency=0)
    with pytest.raises(ConfigurationError, match="telepathy"):
        await run_demo(problems, ScriptedSolver(), protocol="telepathy")
    with pytest.raises(ConfigurationError, match="generosity"):
        await run_demo(problems, ScriptedSolver(), reward="generosity")
    with pytest.raises(ConfigurationError, match="dungeon"):
        await run_demo(problems, ScriptedSolver(), tier="dungeon")


class Choosy(ScriptedSolver):
    async def act(self, conversation: Conversation) -> Reply:
        raise ConfigurationError("this policy cannot write code_tags")


async def test_a_policy_that_cannot_write_the_protocol_is_an_error_not_64_failures() -> None:
    with pytest.raises(ConfigurationError, match="cannot write code_tags"):
        await run_demo(builtin_problems(4), Choosy())


def test_rows_are_readable_even_when_nothing_was_counted() -> None:
    failure = AttemptFailure(0, "p", OSError("gone"))
    nothing = DemoSummary(1, 0, 0, 0, math.nan, {}, 0, math.nan, math.nan, {}, (failure,), "nsjail", "code_tags",
                          "paper", 0.5)  # fmt: skip
    rows = dict(nothing.rows())
    assert (rows["accuracy"], rows["mean reward (paper)"], rows["latency p50 / p99"]) == ("n/a", "n/a", "n/a / n/a")
    assert (rows["failed attempts"], rows["other verdicts"], rows["wall time"]) == ("1", "none", "0.5 s")


def test_rows_name_every_verdict() -> None:
    executions = {"ok": 5, "error": 2, "timeout": 1, "memory": 3, "unavailable": 1}
    ended = {"answered": 7, "sandbox_unavailable": 1}
    summary = DemoSummary(8, 7, 6, 5, 1.0, executions, 2, 0.0012, 0.5, ended, (), "nsjail", "code_tags", "paper", 3.0)
    assert summary.rows() == [
        ("problems", "8"),
        ("accuracy", "85.7 % (6 of 7)"),
        ("tool use", "71.4 % (5 of 7)"),
        ("mean reward (paper)", "1.000"),
        ("executions", "12"),
        ("errors", "2"),
        ("time-outs", "1"),
        ("other verdicts", "memory 3, unavailable 1, retried 2"),
        ("latency p50 / p99", "1.2 ms / 500.0 ms"),
        ("grading time-outs", "0"),
        ("ended", "answered 7, sandbox_unavailable 1"),
        ("protocol", "code_tags"),
        ("interpreter", "fresh"),
        ("grader", "default"),
        ("sandbox tier", "nsjail"),
        ("wall time", "3.0 s"),
    ]
