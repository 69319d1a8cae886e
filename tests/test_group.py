"""``retool_env.group`` with a real sandbox, by PettingZoo's own checks and beside verl's and TRL's arithmetic."""

import asyncio
import copy
import pickle
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded, UnsupportedMode

from retool_env.env_options import InvalidOptionError
from retool_env.errors import EpisodeError, RewardError
from retool_env.group_result import compare_rollouts
from retool_env.outcome import Outcome
from retool_env.problems import Problem
from retool_env.protocol.base import EndReason
from retool_env.reward import RewardFacts
from retool_env.sandbox import Sandbox

pytest.importorskip("pettingzoo", reason="needs the extra `multiagent`")

from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test
from pettingzoo.utils.conversions import parallel_to_aec

from retool_env.group import CodePoints, ReToolGroup, parallel_env

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"
WRONG = "<answer>\\boxed{41}</answer>"
CODE = "<code>print(6 * 7)</code>"
FOREVER = "<code>while True: pass</code>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20, max_concurrency=8, preload=()) as shared:
        yield shared


@pytest.fixture
def make(sandbox: Sandbox) -> Iterator[Callable[..., ReToolGroup]]:
    made: list[ReToolGroup] = []

    def new(group_size: int = 3, problems: Any = PROBLEMS, **options: Any) -> ReToolGroup:
        made.append(parallel_env(group_size, problems, **{"sandbox": sandbox, **options}))
        return made[-1]

    yield new
    for env in made:
        env.close()


def turns(env: ReToolGroup, *texts: str) -> dict[str, str]:
    return dict(zip(env.agents, texts, strict=True))


# PettingZoo's checks


def test_the_parallel_checks_pass_with_nothing_to_warn_of(make: Callable[..., ReToolGroup]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(make(4, on_no_action="feedback"), num_cycles=50)
        parallel_seed_test(lambda: make(4, on_no_action="feedback"), num_cycles=20)


def test_it_looks_the_same_with_the_same_seed_where_code_runs(make: Callable[..., ReToolGroup]) -> None:
    def play(env: ReToolGroup) -> Iterator[Any]:
        yield env.reset(seed=5)
        for texts in ((CODE, WRONG, "<code>1 / 0</code>"), (ANSWER, CODE), (ANSWER,)):
            yield env.step(turns(env, *texts))

    assert list(play(make())) == list(play(make()))


def test_with_code_points_the_check_of_the_other_form_passes(make: Callable[..., ReToolGroup]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Action space for each agent probably should be")  # actions are text
        api_test(parallel_to_aec(CodePoints(make(4, on_no_action="feedback"))), num_cycles=20)


# Rollouts of one problem


def test_all_rollouts_have_the_same_problem(make: Callable[..., ReToolGroup]) -> None:
    env = make(4)
    seen = set()
    for _ in range(5):
        prompts, infos = env.reset()
        assert list(prompts) == list(infos) == env.agents == env.possible_agents
        assert len(set(prompts.values())) == len({info["problem_id"] for info in infos.values()}) == 1
        seen.add(infos["rollout_0"]["problem_id"])
    assert len(seen) == 5
    assert env.reset(options={"problem": 6})[1]["rollout_3"]["problem_id"] == "p6"
    own = {"id": "own", "question": "1 + 1?", "answer": "2"}
    assert "1 + 1?" in env.reset(options={"problem": own})[0]["rollout_2"]


def test_rollouts_leave_as_they_end(make: Callable[..., ReToolGroup]) -> None:
    env = make(3)
    env.reset(options={"problem": 6})
    observations, rewards, terminations, truncations, infos = env.step(turns(env, CODE, ANSWER, CODE))
    assert list(rewards) == ["rollout_0", "rollout_1", "rollout_2"]
    assert rewards == {"rollout_0": 0.0, "rollout_1": 1.0, "rollout_2": 0.0}
    assert terminations == {"rollout_0": False, "rollout_1": True, "rollout_2": False}
    assert not any(truncations.values())
    assert ("42" in observations["rollout_0"], observations["rollout_1"]) == (True, "")
    assert infos["rollout_1"]["correct"]
    assert env.agents == ["rollout_0", "rollout_2"]
    with pytest.raises(EpisodeError, match="rollout_0, rollout_2 have not ended"):
        env.group_result()
    step = env.step(turns(env, ANSWER, "cut"), finish={"rollout_0": "stop", "rollout_2": "length"})
    assert step[3] == {"rollout_0": False, "rollout_2": True}
    assert env.agents == []
    with pytest.raises(ResetNeeded):
        env.step({})
    assert env.envs["rollout_0"].trajectory().outcome is not None


def test_code_of_all_rollouts_runs_at_the_same_time(make: Callable[..., ReToolGroup]) -> None:
    env = make(6)
    env.reset()
    own = next(iter(env.envs.values()))._sandbox.get()

    async def most_that_ran() -> int:
        step = asyncio.create_task(env.astep(turns(env, *["<code>import time; time.sleep(3)</code>"] * 6)))
        most = 0
        while most < 6 and not step.done():
            most = max(most, own.metrics().running)
            await asyncio.sleep(0.01)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        return most

    assert asyncio.run(most_that_ran()) == 6


async def test_the_async_side_does_the_same(make: Callable[..., ReToolGroup]) -> None:
    env = make(2)
    expected = [env.reset(seed=1), env.step(turns(env, CODE, WRONG)), env.step(turns(env, ANSWER))]
    found: list[Any] = [await env.areset(seed=1), await env.astep(turns(env, CODE, WRONG))]
    assert [*found, await env.astep(turns(env, ANSWER))] == expected


# What the group came to


def test_the_result_compares_the_rollouts(make: Callable[..., ReToolGroup]) -> None:
    env = make(4)
    with pytest.raises(EpisodeError, match="reset"):
        env.group_result()
    env.reset(options={"problem": 6})
    env.step(turns(env, CODE, CODE, ANSWER, WRONG))
    env.step(turns(env, ANSWER, WRONG))
    result = env.group_result()
    rewards = [1.05, 0.02, 1.0, 0.0]
    assert list(result.rewards.values()) == rewards
    assert list(result.correct.values()) == [True, False, True, False]
    assert [outcome.interpreter_calls for outcome in result.outcomes.values()] == [1, 1, 0, 0]
    assert result.problem.id == "p6"
    assert (result.mean, result.std) == (pytest.approx(0.5175), pytest.approx(statistics.stdev(rewards)))
    assert list(result.advantages.values()) == pytest.approx(
        [(reward - 0.5175) / (statistics.stdev(rewards) + 1e-6) for reward in rewards]
    )


def outcome(reward: float, ended: EndReason = EndReason.ANSWERED) -> Outcome:
    return Outcome(reward, reward > 0.5, "1", 0, 0, 1, ended, False, {})


@pytest.mark.parametrize("rewards", [[0.0, 1.0], [1.05, 0.02, 1.0, 0.0], [-1.0, 1.0, 1.0, 1.0, -0.6]], ids=str)
@pytest.mark.parametrize(("std", "ddof", "eps"), [("sample", 1, 1e-6), ("sample", 1, 1e-4), ("population", 0, 1e-6)])
def test_advantages_are_those_of_the_trainers(rewards: list[float], std: Any, ddof: int, eps: float) -> None:
    """verl: ``torch.std`` and 1e-6; TRL: ``torch.std`` and 1e-4; ``torch.std`` divides by n - 1."""
    group = {f"rollout_{n}": outcome(reward) for n, reward in enumerate(rewards)}
    result = compare_rollouts(PROBLEMS[0], group, std=std, eps=eps)
    array = np.array(rewards)
    assert list(result.advantages.values()) == pytest.approx((array - array.mean()) / (array.std(ddof=ddof) + eps))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_rollouts_that_are_paid_the_same_have_no_advantage(size: int) -> None:
    result = compare_rollouts(PROBLEMS[0], {str(n): outcome(1.05) for n in range(size)})
    assert (result.mean, result.std, set(result.advantages.values())) == (1.05, 0.0, {0.0})


def test_faults_are_left_out_of_the_comparison() -> None:
    fault = outcome(0.0, EndReason.SANDBOX_UNAVAILABLE)
    group = {"a": outcome(1.0), "b": fault, "c": outcome(0.0)}
    result = compare_rollouts(PROBLEMS[0], group)
    sound = compare_rollouts(PROBLEMS[0], {"a": group["a"], "c": group["c"]})
    assert (result.mean, result.std) == (sound.mean, sound.std) == (0.5, pytest.approx(0.5**0.5))
    assert result.advantages == {**sound.advantages, "b": 0.0}
    nothing = compare_rollouts(PROBLEMS[0], {"a": fault, "b": fault})
    assert (nothing.mean, nothing.std, set(nothing.advantages.values())) == (0.0, 0.0, {0.0})


@pytest.mark.parametrize("options", [{"std": "unbiased"}, {"eps": 0.0}, {"eps": float("nan")}], ids=str)
def test_a_comparison_that_does_not_exist_is_refused(options: Any, make: Callable[..., ReToolGroup]) -> None:
    env = make(1)
    env.reset()
    env.step(turns(env, WRONG))
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        env.group_result(**options)


# Wrong use, failures, the end


@pytest.mark.parametrize(
    "actions",
    [
        {"rollout_0": ANSWER},
        {"rollout_0": ANSWER, "rollout_1": ANSWER, "rollout_2": ANSWER},
        {"rollout_0": ANSWER, "rollout_1": None},
        [ANSWER, ANSWER],
    ],
    ids=repr,
)
def test_a_step_that_is_refused_is_taken_by_no_rollout(actions: Any, make: Callable[..., ReToolGroup]) -> None:
    env = make(2)
    env.reset()
    with pytest.raises(InvalidAction):
        env.step(actions)
    assert [one.episode.turns for one in env.envs.values()] == [0, 0]


@pytest.mark.parametrize("finish", ["stopped", {"rollout_0": "stop"}, {"rollout_0": 1, "rollout_1": "stop"}], ids=repr)
def test_a_finish_that_does_not_exist_is_refused(finish: Any, make: Callable[..., ReToolGroup]) -> None:
    env = make(2)
    env.reset()
    with pytest.raises(InvalidOptionError, match="finish"):
        env.step(turns(env, ANSWER, ANSWER), finish=finish)


def test_bad_options_are_refused(make: Callable[..., ReToolGroup]) -> None:
    for options in ({"group_size": 0}, {"group_size": 2.0}, {"max_turns": 0}):
        with pytest.raises(InvalidOptionError, match=next(iter(options))):
            make(**options)
    with pytest.raises(UnsupportedMode, match="human"):
        make(render_mode="human")
    env = make(2)
    env.reset(options={"problem": 6})
    env.step(turns(env, ANSWER, CODE))
    with pytest.raises(InvalidOptionError, match="problm"):
        env.reset(options={"problm": 6})
    assert env.agents == ["rollout_1"]


def test_a_rollout_whose_reward_fails_leaves_the_others_whole(make: Callable[..., ReToolGroup]) -> None:
    def reward(facts: RewardFacts) -> float:
        return float("nan") if facts.answer == "41" else float(facts.correct)

    env = make(3, reward=reward)
    env.reset(options={"problem": 6})
    with pytest.raises(RewardError) as caught:
        env.step(turns(env, CODE, WRONG, ANSWER))
    assert caught.value.__notes__ == ["(rollout_1)"]
    assert env.agents == ["rollout_0"]
    assert env.step({"rollout_0": ANSWER})[1] == {"rollout_0": 1.0}


async def test_a_cancelled_step_aborts_the_rollouts(make: Callable[..., ReToolGroup]) -> None:
    env = make(2)
    await env.areset()
    step = asyncio.create_task(env.astep(turns(env, FOREVER, FOREVER)))
    for _ in range(3):
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert env.agents == []
    result = env.group_result()
    assert all(one.fault for one in result.outcomes.values())


def test_copies_go_their_own_ways() -> None:
    with closing(parallel_env(2, PROBLEMS, sandbox={"preload": ()})) as env:
        env.reset(options={"problem": 6})
        for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            other.step(turns(other, ANSWER, CODE))
            assert (other.agents, len(env.agents)) == (["rollout_1"], 2)
            other.close()


def test_closing_it_closes_its_sandbox_but_not_a_shared_one(sandbox: Sandbox) -> None:
    own = parallel_env(2, PROBLEMS, sandbox={"preload": ()})
    own.reset()
    own.step(turns(own, CODE, CODE))
    opened = own.envs["rollout_0"]._sandbox.own
    assert opened is not None
    shared = parallel_env(2, PROBLEMS, sandbox=sandbox)
    for env in (own, shared):
        env.close()
        env.close()
        with pytest.raises(ClosedEnvironmentError):
            env.reset()
    assert (opened.closed, sandbox.closed) == (True, False)


@pytest.mark.parametrize("mode", ["ansi", "html"])
def test_all_rollouts_are_shown(mode: str, make: Callable[..., ReToolGroup]) -> None:
    env = make(2, render_mode=mode)
    with pytest.raises(ResetNeeded):
        env.render()
    env.reset(options={"problem": 6})
    env.step(turns(env, ANSWER, "<code>print('<b>')</code>"))
    shown = env.render()
    assert shown is not None
    assert [shown.count(text) for text in ("rollout_0", "rollout_1", "What is 6 * 7?")] == [1, 1, 2]
    assert ("<b>" in shown) is (mode == "ansi")
    assert make(1).render_mode is None


# Code points


@pytest.mark.parametrize("text", ["", "What is 6 * 7?", "é\U0001f600\x00\ud800", "\n" * 16], ids=ascii)
def test_code_points_hold_any_text(text: str, make: Callable[..., ReToolGroup]) -> None:
    env = CodePoints(make(1), length=16)
    codes = env.encode(text)
    assert (codes.shape, codes.dtype) == ((16,), np.int32)
    assert env.observation_space("rollout_0").contains(codes)
    assert CodePoints.decode(codes) == text


def test_code_points_cut_the_end_and_leave_the_rest_as_it_is(make: Callable[..., ReToolGroup]) -> None:
    plain = make(2)
    env = CodePoints(plain, length=10)
    observations, infos = env.reset(seed=2)
    prompts, expected = plain.reset(seed=2)
    assert {agent: CodePoints.decode(codes) for agent, codes in observations.items()} == {
        agent: prompt[:10] for agent, prompt in prompts.items()
    }
    assert infos == expected
    _, rewards, *_ = env.step(dict.fromkeys(env.agents, WRONG))
    assert env.group_result().rewards == rewards
    with pytest.raises(InvalidOptionError, match="length"):
        CodePoints(plain, length=0)
