"""``ReToolVectorEnv`` with a real sandbox, beside gymnasium's ``SyncVectorEnv``."""

import copy
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from retool_env import ReToolVectorEnv
from retool_env.env import ReToolEnv
from retool_env.env_options import InvalidOptionError
from retool_env.errors import RewardError
from retool_env.problems import Problem
from retool_env.reward import RewardFacts
from retool_env.sandbox import ExecutionResult, ExecutionStatus, Sandbox

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"
MODES = [mode.value for mode in AutoresetMode]


def code(source: str) -> str:
    return f"<code>\n```python\n{source}\n```\n</code>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20, max_concurrency=8, preload=()) as shared:
        yield shared


@pytest.fixture
def make(sandbox: Sandbox) -> Iterator[Callable[..., ReToolVectorEnv]]:
    made: list[ReToolVectorEnv] = []

    def new(num_envs: int = 3, problems: Any = PROBLEMS, **options: Any) -> ReToolVectorEnv:
        made.append(ReToolVectorEnv(num_envs, problems, **{"sandbox": sandbox, **options}))
        return made[-1]

    yield new
    for envs in made:
        envs.close()


def same(left: Any, right: Any) -> bool:
    """Whether two results are equal, their types, dtypes and the order of their keys included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and same(left.tolist(), right.tolist())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


# As gymnasium has it


def test_make_vec_makes_it_and_has_nothing_to_warn_of(sandbox: Sandbox) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec(
            "ReTool-v0", num_envs=3, problems=PROBLEMS, sandbox=sandbox, autoreset_mode="SameStep"
        )
    assert isinstance(envs, ReToolVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert ReToolVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert str(envs) == "ReToolVectorEnv(ReTool-v0, num_envs=3)"
    assert envs.spec is not None
    again = gymnasium.make_vec(envs.spec)
    assert (again.num_envs, again.metadata["autoreset_mode"]) == (3, AutoresetMode.SAME_STEP)


def test_made_directly_it_has_a_spec_that_makes_it_again(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2, max_turns=5, autoreset_mode=AutoresetMode.DISABLED)
    assert envs.spec is not None
    again = gymnasium.make_vec(envs.spec)
    assert isinstance(again, ReToolVectorEnv)
    assert (again.num_envs, again.envs[1].config.max_turns, again.autoreset_mode) == (2, 5, AutoresetMode.DISABLED)
    assert same(again.reset(seed=3), envs.reset(seed=3))


def test_spaces_are_those_of_gymnasiums(make: Callable[..., ReToolVectorEnv], sandbox: Sandbox) -> None:
    envs = make(3)
    others = SyncVectorEnv([lambda: ReToolEnv(PROBLEMS, sandbox=sandbox)] * 3)
    for name in ("single_action_space", "action_space", "single_observation_space", "observation_space"):
        assert getattr(envs, name) == getattr(others, name)
    prompts, _ = envs.reset()
    assert envs.observation_space.contains(prompts)
    actions = envs.action_space.sample()
    assert envs.observation_space.contains(envs.step(actions)[0])


TURNS = [
    (code("print(6 * 7)"), ANSWER, "<code></code>", "I do not know."),
    (code("1 / 0"), code("1"), ANSWER, code("print('é \U0001f600')")),
    (ANSWER, ANSWER, code("print(3)"), code("raise SystemExit(3)")),
    (code("2"), code("import random; random.random()"), ANSWER, ANSWER),
    (ANSWER, code("5"), code("6"), ANSWER),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [7, [5, None, 5, 1]], ids=["integer", "list"])
def test_it_gives_what_gymnasiums_vector_environment_gives(mode: str, seed: Any, sandbox: Sandbox) -> None:
    options: dict[str, Any] = {"problems": PROBLEMS, "sandbox": sandbox, "max_turns": 3}
    ours = gymnasium.make_vec("ReTool-v0", num_envs=4, autoreset_mode=mode, **options)
    theirs = gymnasium.make_vec(
        "ReTool-v0",
        num_envs=4,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        **options,
    )

    def play(envs: VectorEnv) -> Iterator[Any]:
        # Without a seed an order is random: here all have one, the last time that it is asked for.
        yield envs.reset(seed=[4, 3, 2, 1])
        yield envs.reset(seed=seed, options={"problem": 6})
        for turns in TURNS:
            step = envs.step(turns)
            yield step
            over = step[2] | step[3]
            if mode == "Disabled" and over.any():
                yield envs.reset(options={"reset_mask": over})
        yield envs.reset(seed=9)
        yield envs.np_random_seed
        yield [generator.random() for generator in envs.np_random]

    results = list(zip(play(ours), play(theirs), strict=True))
    assert len(results) >= len(TURNS) + 5
    for mine, gymnasiums in results:
        assert same(mine, gymnasiums)
    ours.close()
    theirs.close()


def test_infos_tell_of_the_end_in_the_same_step(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2, autoreset_mode="SameStep")
    envs.reset(options={"problem": 6})
    observations, rewards, terminated, _, infos = envs.step([ANSWER, code("1")])
    assert (rewards.tolist(), terminated.tolist()) == ([1.0, 0.0], [True, False])
    assert infos["final_obs"].tolist() == ["", None]
    assert infos["_final_info"].tolist() == [True, False]
    assert infos["final_info"]["answer"].tolist() == ["42", None]
    assert infos["action"].tolist() == ["reset", "run_code"]
    assert "What is" in observations[0]


# Wrappers of gymnasium


def test_vector_statistics_are_kept(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(make(2))
    envs.reset(options={"problem": 6})
    *_, infos = envs.step((ANSWER, code("1")))
    assert (infos["episode"]["r"].tolist(), infos["episode"]["l"].tolist()) == ([1.0, 0.0], [1, 0])
    envs.step(("", ANSWER))
    assert (list(envs.return_queue), list(envs.length_queue)) == ([1.0, 1.05], [1, 2])


def test_vector_statistics_go_on_where_an_environment_is_not_reset(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(make(2, autoreset_mode="Disabled"))
    envs.reset(options={"problem": 6})
    envs.step((ANSWER, code("1")))
    envs.reset(options={"reset_mask": np.array([True, False]), "problem": 6})
    envs.step((ANSWER, ANSWER))
    assert (list(envs.return_queue), list(envs.length_queue)) == ([1.0, 1.0, 1.05], [1, 1, 2])


def test_the_options_of_the_caller_stay_as_they_are(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2)
    envs.reset()
    options = {"reset_mask": np.array([True, False]), "problem": 6}
    envs.reset(options=options)
    assert list(options) == ["reset_mask", "problem"]


def test_statistics_of_a_single_environment_are_kept(sandbox: Sandbox) -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("ReTool-v0", problems=PROBLEMS, sandbox=sandbox))
    env.reset(options={"problem": 6})
    env.step(code("1"))
    assert env.step(ANSWER)[-1]["episode"]["r"] == 1.05


def test_infos_become_a_list(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = gymnasium.wrappers.vector.DictInfoToList(make(2))
    envs.reset(options={"problem": 6})
    *_, infos = envs.step((ANSWER, code("1")))
    assert [info["action"] for info in infos] == ["answer", "run_code"]
    assert [info["reward_breakdown"] for info in infos] == [{"base": 1.0, "tool_bonus": 0.0}, {}]


def test_rewards_are_wrapped(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = gymnasium.wrappers.vector.ClipReward(make(2), 0.0, 0.5)
    envs.reset(options={"problem": 6})
    assert envs.step((ANSWER, code("1")))[1].tolist() == [0.5, 0.0]


# At the same time


@pytest.mark.slow
def test_32_environments_with_slow_code_step_in_about_the_time_of_one() -> None:
    def seconds(n: int) -> float:
        envs = gymnasium.make_vec("ReTool-v0", num_envs=n, problems=PROBLEMS)
        envs.reset()
        envs.step([code("1")] * n)  # starts the sandbox
        started = time.perf_counter()
        *_, infos = envs.step([code("import time; time.sleep(1)")] * n)
        elapsed_s = time.perf_counter() - started
        assert infos["statuses"].tolist() == [("ok",)] * n
        envs.close()
        return elapsed_s

    assert seconds(32) < 32 / 3 * seconds(1)  # one after another, 32 times


def test_environments_that_start_at_once_share_one_sandbox() -> None:
    envs = ReToolVectorEnv(6, PROBLEMS, sandbox={"preload": ()})
    envs.reset()
    assert envs.envs[0]._sandbox.own is None
    envs.step([code("1")] * 6)
    own = envs.envs[0]._sandbox.own
    assert own is not None
    assert own.metrics().calls == 6
    envs.close()
    assert own.closed


def test_answers_that_need_a_worker_are_graded_together(make: Callable[..., ReToolVectorEnv]) -> None:
    golds = ["\\frac{\\sqrt{2}}{3}", "x^2+2x+1", "\\sin(x)", "\\pi"]
    problems = [Problem(id=gold, question="?", answer=gold) for gold in golds]
    answers = ["\\sqrt{2/9}", "(x+1)^2", "\\cos(x)", "3.14"]
    envs = make(4, problems)
    envs.reset(options={"problem": range(4)})
    *_, infos = envs.step([f"<answer>\\boxed{{{answer}}}</answer>" for answer in answers])
    assert infos["correct"].tolist() == [True, True, False, False]


def test_sessions_are_each_environments_own(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(3, interpreter="session")
    envs.reset()
    envs.step([code(f"x = {n}") for n in range(3)])
    observations, *_ = envs.step([code("print('x is', x)")] * 3)
    assert [f"x is {n}" in shown for n, shown in enumerate(observations)] == [True] * 3
    mask = np.array([False, True, False])
    envs.reset(options={"reset_mask": mask})
    *_, infos = envs.step([code("x")] * 3)
    assert infos["statuses"].tolist() == [("ok",), ("error",), ("ok",)]


# Problems and seeds


def test_problems_are_picked_for_all_or_for_each(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(3)
    assert envs.reset(options={"problem": 6})[1]["problem_id"].tolist() == ["p6"] * 3
    assert envs.reset(options={"problem": np.arange(3)})[1]["problem_id"].tolist() == ["p0", "p1", "p2"]
    own = Problem(id="own", question="1 + 1?", answer="2")
    expected = envs.reset(seed=1)[1]["problem_id"][1]
    assert envs.reset(seed=1, options={"problem": [own, None, 4]})[1]["problem_id"].tolist() == ["own", expected, "p4"]


def test_each_environment_goes_through_all_problems(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2, PROBLEMS[:4])
    envs.reset(seed=3)
    seen: list[Sequence[str]] = [envs.reset()[1]["problem_id"].tolist() for _ in range(3)]
    envs.reset(seed=3)
    assert [set(column) for column in zip(*seen, strict=True)] != [set(), set()]
    assert all(len(set(column)) == 3 for column in zip(*seen, strict=True))


@pytest.mark.parametrize(
    "seed", [[1, 2], "1", True, 1.5, -1, [1, 2, -1], [1, 2, 1.5], [1, 2, True], np.array(5.0), [[1], 2, 3]], ids=str
)
def test_bad_seeds_are_refused(seed: Any, make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(3)
    envs.reset(options={"problem": 6})
    episodes = envs.get_attr("episode")
    with pytest.raises(InvalidOptionError, match="seed"):
        envs.reset(seed=seed)
    assert envs.get_attr("episode") == episodes


@pytest.mark.parametrize(
    "options",
    [
        {"problm": 1},
        {"problem": [1, 2]},
        {"problem": [1, 2, 99]},
        {"problem": [1, None, "p2"]},
        {"reset_mask": [True, False, True]},
        {"reset_mask": np.array([1, 0, 1])},
        {"reset_mask": np.array([True, False])},
        {"reset_mask": np.zeros(3, dtype=bool)},
    ],
    ids=str,
)
def test_bad_options_are_refused_before_any_environment_is_reset(
    options: dict[str, Any], make: Callable[..., ReToolVectorEnv]
) -> None:
    envs = make(3)
    envs.reset(options={"problem": 6})
    episodes = envs.get_attr("episode")
    with pytest.raises(InvalidOptionError, match="options"):
        envs.reset(options=options)
    assert envs.get_attr("episode") == episodes


def test_a_bad_problem_is_told_with_its_environment(make: Callable[..., ReToolVectorEnv]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        make(3).reset(options={"problem": [1, 2, 99]})
    assert caught.value.__notes__ == ["(environment 2)"]


@pytest.mark.parametrize(
    "options", [{"num_envs": 0}, {"num_envs": True}, {"autoreset_mode": "Later"}, {"max_turns": 0}], ids=str
)
def test_bad_options_of_the_constructor_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        ReToolVectorEnv(**options)


# Wrong use


def test_steps_out_of_order_are_refused(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2, autoreset_mode="Disabled")
    with pytest.raises(ResetNeeded, match="no episode yet"):
        envs.step((ANSWER, ANSWER))
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset()
    envs.step((ANSWER, code("1")))
    with pytest.raises(ResetNeeded, match=r"environments \[0\] are over"):
        envs.step((ANSWER, ANSWER))


@pytest.mark.parametrize("actions", [ANSWER, (ANSWER,), {1: ANSWER, 2: ANSWER}, (ANSWER, None), None], ids=repr)
def test_a_step_that_is_refused_is_taken_by_no_environment(actions: Any, make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2)
    envs.reset()
    with pytest.raises(InvalidAction):
        envs.step(actions)
    assert [env.episode.turns for env in envs.envs] == [0, 0]


@pytest.mark.parametrize("finish", ["stopped", ["stop"], ["stop", None]], ids=repr)
def test_a_finish_that_does_not_exist_is_refused(finish: Any, make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2)
    envs.reset()
    with pytest.raises(InvalidOptionError, match="finish"):
        envs.step((ANSWER, ANSWER), finish=finish)
    assert [env.episode.turns for env in envs.envs] == [0, 0]


def test_how_turns_stopped_is_told_for_each(make: Callable[..., ReToolVectorEnv]) -> None:
    envs = make(2)
    envs.reset(options={"problem": 6})
    cut = "<code>print(6 * 7)"
    *_, infos = envs.step((ANSWER, cut), finish=("length", "stop"), stop_reason=[None, "</code>"])
    assert (infos["ended"].tolist(), infos["statuses"].tolist()) == (["max_length", ""], [(), ("ok",)])


# Faults and failures of one


def test_an_environment_whose_reward_fails_leaves_the_others_whole(make: Callable[..., ReToolVectorEnv]) -> None:
    def reward(facts: RewardFacts) -> float:
        return float("nan") if facts.answer == "13" else float(facts.correct)

    envs = make(3, reward=reward)
    envs.reset(options={"problem": 6})
    with pytest.raises(RewardError) as caught:
        envs.step((code("1"), "<answer>\\boxed{13}</answer>", ANSWER))
    assert caught.value.__notes__ == ["(environment 1)"]
    assert [env.episode.turns for env in envs.envs] == [1, 1, 1]
    _, rewards, terminated, _, infos = envs.step((ANSWER, "", ""))
    assert (rewards.tolist(), terminated.tolist()) == ([1.0, 0.0, 0.0], [True, False, False])
    assert infos["action"].tolist() == ["answer", "reset", "reset"]


class ForgetfulSandbox(Sandbox):
    """A real sandbox that loses some programs, as when its process dies: that cannot be had on demand."""

    async def arun(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        result = await super().arun(code, timeout_s)
        return ExecutionResult(ExecutionStatus.UNAVAILABLE) if "lost" in code else result


def test_a_fault_of_the_sandbox_ends_only_the_episodes_it_meets() -> None:
    with ForgetfulSandbox(preload=()) as forgetful:
        envs = ReToolVectorEnv(3, PROBLEMS, sandbox=forgetful)
        envs.reset(options={"problem": 6})
        *_, truncated, infos = envs.step((code("1"), code("lost = 1"), code("2")))
        assert truncated.tolist() == infos["fault"].tolist() == [False, True, False]
        assert infos["statuses"].tolist() == [("ok",), ("unavailable",), ("ok",)]
        _, rewards, *_ = envs.step((ANSWER, "", ANSWER))
        assert rewards.tolist() == [1.05, 0.0, 1.05]


# Copies, views, the end


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_copies_go_their_own_ways(duplicate: Any) -> None:
    with closing(ReToolVectorEnv(2, PROBLEMS, sandbox={"preload": ()})) as envs:
        envs.reset(seed=1, options={"problem": 6})
        other = duplicate(envs)
        envs.step((ANSWER, ANSWER))
        assert other.step((ANSWER, code("1")))[1].tolist() == [1.0, 0.0]
        assert other.envs[1]._sandbox.get() is other.envs[0]._sandbox.own
        assert envs.envs[0]._sandbox.own is None
        other.close()


def test_all_attempts_can_be_looked_at(make: Callable[..., ReToolVectorEnv], capsys: Any) -> None:
    envs = make(2, render_mode="ansi")
    envs.reset(options={"problem": [6, 5]})
    assert ["5 * 7" in text for text in envs.render() if text is not None] == [False, True]
    assert [record.problem.id for record in envs.call("trajectory")] == ["p6", "p5"]
    assert make(1).render_mode is None
    human = make(2, render_mode="human")
    human.reset(options={"problem": [3, 4]})
    assert "4 * 7" in capsys.readouterr().out


def test_closing_it_closes_its_sandbox_but_not_a_shared_one(sandbox: Sandbox) -> None:
    envs = ReToolVectorEnv(2, PROBLEMS, sandbox=sandbox)
    envs.reset()
    for _ in range(2):
        envs.close()
    assert envs.closed
    assert not sandbox.closed
    for use in (envs.reset, lambda: envs.step((ANSWER, ANSWER))):
        with pytest.raises(ClosedEnvironmentError):
            use()


def test_a_sibling_shares_problems_and_sandbox_and_nothing_of_the_episode(sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, max_turns=5)
    env.reset(seed=1, options={"problem": 6})
    env.step(code("1"))
    other = env.sibling()
    with pytest.raises(ResetNeeded):
        _ = other.episode
    assert other.last_execution is None
    assert (other.problems, other.config) == (env.problems, env.config)
    assert other.np_random is not env.np_random
    assert other.action_space is not env.action_space
    other.reset(options={"problem": 3})
    other.close()
    assert (env.step(ANSWER)[1], sandbox.closed) == (1.05, False)
