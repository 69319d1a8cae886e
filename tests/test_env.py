"""``ReToolEnv`` with real protocols, grading, problems and sandbox."""

import asyncio
import copy
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium
import pytest
from gymnasium.error import (
    ClosedEnvironmentError,
    InvalidAction,
    ResetNeeded,
    UnsupportedMode,
)
from gymnasium.utils.env_checker import check_env

from retool_env.config import EpisodeConfig, EpisodeOptions
from retool_env.env import ReToolEnv
from retool_env.env_options import InvalidOptionError
from retool_env.errors import ConfigurationError, ProblemError, RewardError, SandboxClosedError
from retool_env.problems import Problem
from retool_env.sandbox import ExecutionResult, ExecutionStatus, Sandbox, SandboxConfig

PROBLEMS = [Problem(id=f"p{n}", question=f"What is {n} * 7?", answer=str(n * 7)) for n in range(10)]
ANSWER = "<answer>\\boxed{42}</answer>"
KEYS = {
    "problem_id",
    "turn",
    "action",
    "kept",
    "fabricated",
    "statuses",
    "tool_calls",
    "interpreter_calls",
    "ended",
    "fault",
    "answer",
    "correct",
    "grade_timed_out",
    "reward_breakdown",
}


def code(source: str) -> str:
    return f"<code>\n```python\n{source}\n```\n</code>"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout_s=20) as shared:
        yield shared


@pytest.fixture
def env(sandbox: Sandbox) -> Iterator[ReToolEnv]:
    with ReToolEnv(PROBLEMS, sandbox=sandbox) as made:
        yield made


class UnreliableSandbox(Sandbox):
    """A real sandbox whose first executions are lost, as when its process dies: that cannot be had on demand."""

    n_lost = 0

    def run(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        result = super().run(code, timeout_s)
        return self._lose() or result

    async def arun(self, code: str, timeout_s: float | None = None) -> ExecutionResult:
        result = await super().arun(code, timeout_s)
        return self._lose() or result

    def _lose(self) -> ExecutionResult | None:
        self.n_lost -= 1
        return ExecutionResult(ExecutionStatus.UNAVAILABLE) if self.n_lost >= 0 else None


@pytest.fixture(scope="module")
def unreliable() -> Iterator[UnreliableSandbox]:
    with UnreliableSandbox(preload=()) as made:
        yield made


# gymnasium's rules


@pytest.mark.parametrize("make", [lambda: gymnasium.make("ReTool-v0").unwrapped, ReToolEnv], ids=["make", "direct"])
def test_gymnasiums_checker_finds_nothing_to_warn_of(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(), skip_render_check=False)


@pytest.mark.parametrize("render_mode", ["ansi", "human", "html"])
def test_the_checker_passes_with_every_render_mode_and_own_problems(render_mode: str, sandbox: Sandbox) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("ReTool-v0", problems=PROBLEMS, sandbox=sandbox, render_mode=render_mode)
        check_env(env.unwrapped, skip_render_check=False)


def test_made_by_name_it_runs_an_episode_inside_gymnasiums_wrappers(sandbox: Sandbox) -> None:
    env = gymnasium.make("ReTool-v0", problems=PROBLEMS, sandbox=sandbox)
    prompt, _ = env.reset(seed=1, options={"problem": 6})
    assert "What is 6 * 7?" in prompt
    observation, reward, terminated, truncated, info = env.step(code("print(6 * 7)"))
    assert "42" in observation
    assert (reward, terminated, truncated, info["statuses"]) == (0.0, False, False, ("ok",))
    observation, reward, terminated, truncated, info = env.step(ANSWER)
    assert (observation, reward, terminated, truncated, info["correct"]) == ("", 1.05, True, False, True)


def test_gymnasiums_vector_environment_takes_it(sandbox: Sandbox) -> None:
    envs = gymnasium.make_vec("ReTool-v0", num_envs=2, vectorization_mode="sync", problems=PROBLEMS, sandbox=sandbox)
    prompts, _ = envs.reset(seed=[1, 2], options={"problem": 6})
    assert all("What is 6 * 7?" in prompt for prompt in prompts)
    _, rewards, terminated, _, infos = envs.step((ANSWER, code("1")))
    assert rewards.tolist() == [1.0, 0.0]
    assert terminated.tolist() == [True, False]
    assert infos["ended"].tolist() == ["answered", ""]
    envs.close()


def test_every_reset_and_step_has_the_documented_info(env: ReToolEnv) -> None:
    _, info = env.reset(options={"problem": 6})
    infos = [info] + [env.step(turn)[-1] for turn in (code("1 / 0"), "<code></code>", ANSWER)]
    assert all(set(info) == KEYS for info in infos)
    assert all(f"``{key}``" in (ReToolEnv.__doc__ or "") for key in KEYS)
    assert [info["action"] for info in infos] == ["reset", "run_code", "feedback", "answer"]
    assert [info["turn"] for info in infos] == [0, 1, 2, 3]
    assert [info["statuses"] for info in infos] == [(), ("error",), (), ()]
    assert [info["interpreter_calls"] for info in infos] == [0, 1, 1, 1]
    assert infos[-1]["reward_breakdown"] == {"base": 1.0, "tool_bonus": 0.05}
    assert env.reset()[1]["reward_breakdown"] == {}


def test_the_same_actions_give_the_same_everything(env: ReToolEnv) -> None:
    turns = (code("import random; print(random.random())"), code("1 / 0"), ANSWER)
    runs = [[env.reset(seed=5), *(env.step(turn) for turn in turns)] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("turns", "options", "terminated", "ended"),
    [
        ([ANSWER], {}, True, "answered"),
        (["I give up"], {}, True, "no_action"),
        ([code("1")], {"max_turns": 1}, False, "max_turns"),
        ([code("1"), code("1")], {"max_tool_calls": 1}, False, "max_tool_calls"),
        (["x" * 11], {"max_action_chars": 10}, False, "max_length"),
        (["<code>\nprint(1)"], {}, False, "incomplete"),
    ],
)
def test_an_end_is_terminated_or_truncated(
    turns: list[str], options: Any, terminated: bool, ended: str, sandbox: Sandbox
) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, **options)
    env.reset(options={"problem": 6})
    for turn in turns:
        _, _, was_terminated, was_truncated, info = env.step(turn)
    assert (was_terminated, was_truncated, info["ended"]) == (terminated, not terminated, ended)


def test_how_generation_stopped_is_told_by_keyword(env: ReToolEnv) -> None:
    env.reset(options={"problem": 6})
    _, _, _, _, info = env.step(code("6 * 7").removesuffix("</code>"), stop_reason="</code>")
    assert info["action"] == "run_code"
    _, _, _, truncated, info = env.step(ANSWER, finish="length")
    assert (truncated, info["ended"], info["answer"]) == (True, "max_length", "")


# Problems and their order


def order(env: ReToolEnv, n: int, seed: int | None = None) -> list[str]:
    return [env.reset(seed=seed if i == 0 else None)[1]["problem_id"] for i in range(n)]


def test_the_seed_fixes_the_order_and_every_round_has_every_problem(env: ReToolEnv) -> None:
    first = order(env, 30, seed=1)
    assert order(env, 30, seed=1) == first
    assert order(env, 30, seed=2) != first
    everything = sorted(problem.id for problem in PROBLEMS)
    assert [sorted(first[i : i + 10]) for i in (0, 10, 20)] == [everything] * 3
    assert first[:10] != first[10:20]


def test_without_a_seed_orders_differ(sandbox: Sandbox) -> None:
    assert len({tuple(order(ReToolEnv(PROBLEMS, sandbox=sandbox), 10)) for _ in range(4)}) > 1


def test_the_builtin_problems_are_drawn_by_seed() -> None:
    env, other = ReToolEnv(), ReToolEnv("builtin")
    assert order(env, 3, seed=1) == order(other, 3, seed=1)
    assert order(env, 3, seed=1) != order(other, 3, seed=2)


def test_a_problem_can_be_picked_in_three_ways_without_moving_the_order_on(env: ReToolEnv) -> None:
    expected = order(env, 3, seed=1)
    seen = [env.reset(seed=1)[1]["problem_id"]]
    assert env.reset(options={"problem": 3})[1]["problem_id"] == "p3"
    assert env.reset(options={"problem": -1})[1]["problem_id"] == "p9"
    assert env.reset(options={"problem": Problem(id="own", question="?", answer="1")})[1]["problem_id"] == "own"
    prompt, _ = env.reset(options={"problem": {"question": "Who?", "answer": "1"}})
    assert "Who?" in prompt
    assert seen + [env.reset()[1]["problem_id"] for _ in range(2)] == expected


def test_a_file_of_problems(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"input": "What is 6 * 7?", "output": 42}\n', encoding="utf-8")
    env = ReToolEnv(tmp_path / "own.jsonl")
    prompt, _ = env.reset()
    assert "What is 6 * 7?" in prompt
    assert env.step(ANSWER)[1] == 1.0


# Wrong use


def test_order_is_enforced_for_sync_and_async_callers(env: ReToolEnv) -> None:
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(ANSWER)
    with pytest.raises(ResetNeeded, match="reset"):
        asyncio.run(env.astep(ANSWER))
    with pytest.raises(ResetNeeded, match="reset"):
        env.render()
    with pytest.raises(ResetNeeded, match="reset"):
        env.trajectory()
    with pytest.raises(ResetNeeded, match="reset"):
        env.episode  # noqa: B018
    env.reset(options={"problem": 6})
    env.step(ANSWER)
    with pytest.raises(ResetNeeded, match=r"over \(answered"):
        env.step(ANSWER)
    with pytest.raises(ResetNeeded, match=r"over \(answered"):
        asyncio.run(env.astep(ANSWER))


@pytest.mark.parametrize("action", [None, 3, b"text", ["text"]])
def test_an_action_must_be_text_and_a_wrong_one_changes_nothing(env: ReToolEnv, action: Any) -> None:
    env.reset(options={"problem": 6})
    with pytest.raises(InvalidAction, match="str"):
        env.step(action)
    with pytest.raises(InvalidAction, match="str"):
        asyncio.run(env.astep(action))
    assert env.step(ANSWER)[1] == 1.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"protocol": "xml"}, "code_tags"),
        ({"reward": "generous"}, "tool_aware"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turn": 3}, "max_turn"),
        ({"interpreter": "immortal"}, "interpreter.*'fresh' or 'session'"),
        ({"timeout_s": 3}, "sandbox={'timeout_s': 3}"),
        ({"sandbox": "jail"}, "sandbox.*tier"),
        ({"sandbox": {"memory": 3}}, "sandbox.*memory"),
        ({"sandbox": 3}, "sandbox"),
        ({"problems": []}, "problems"),
        ({"problems": 3}, "problems"),
        ({"problems": "no/such/file.jsonl"}, "no/such/file"),
    ],
)
def test_a_bad_option_is_gymnasiums_kind_of_error_and_ours(options: dict[str, Any], complaint: str) -> None:
    for make in (ReToolEnv, lambda **given: gymnasium.make("ReTool-v0", **given)):
        with pytest.raises(InvalidOptionError, match=complaint) as caught:
            make(**{"problems": PROBLEMS, **options})  # type: ignore[operator]
        assert isinstance(caught.value, gymnasium.error.Error)
        assert isinstance(caught.value, ConfigurationError)


def test_there_are_three_render_modes() -> None:
    with pytest.raises(UnsupportedMode, match="ansi, human, html"):
        ReToolEnv(PROBLEMS, render_mode="rgb_array")


@pytest.mark.parametrize("options", [{"problem": 10}, {"problem": True}, {"problem": "p1"}, {"problme": 1}])
def test_bad_reset_options_are_errors(env: ReToolEnv, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        env.reset(options=options)
    with pytest.raises(InvalidOptionError):
        asyncio.run(env.areset(options=options))


def test_a_gold_that_cannot_be_parsed_is_an_error_at_reset(env: ReToolEnv) -> None:
    with pytest.raises(ProblemError):
        env.reset(options={"problem": Problem(id="bad", question="?", answer="\\frac{")})


def test_a_prompt_too_long_for_the_space_is_an_error_and_changes_nothing(env: ReToolEnv) -> None:
    prompt, _ = env.reset(options={"problem": 1})
    long = {"id": "long", "question": "x" * (2 << 20), "answer": "1"}
    with pytest.raises(ProblemError, match=r"problem 'long': its prompt has 2.* characters"):
        env.reset(options={"problem": long})
    with pytest.raises(ProblemError, match="problem 'long'"):
        asyncio.run(env.areset(options={"problem": long}))
    assert env.episode.prompt() == prompt
    just_fits = (1 << 20) - len(prompt) + len(PROBLEMS[1].question)
    assert env.reset(options={"problem": {**long, "question": "x" * just_fits}})[0] in env.observation_space


def test_an_unknown_finish_is_an_error_and_changes_nothing(env: ReToolEnv) -> None:
    env.reset(options={"problem": 6})
    with pytest.raises(InvalidOptionError, match="finish"):
        env.step(ANSWER, finish="eos")  # type: ignore[arg-type]
    assert env.step(ANSWER)[1] == 1.0


def test_a_closed_environment_says_so(sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox)
    env.reset()
    env.close()
    env.close()
    for use in (env.reset, lambda: env.step(ANSWER), lambda: asyncio.run(env.areset())):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            use()


def test_a_reward_that_is_not_finite_is_an_error(sandbox: Sandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=sandbox, reward=lambda facts: float("nan"))
    env.reset()
    with pytest.raises(RewardError):
        env.step(ANSWER)


def test_the_typed_options_are_those_of_the_episode() -> None:
    assert set(get_type_hints(EpisodeOptions)) == set(EpisodeConfig.model_fields) - {"timeout_s", "memory_mb"}


# The sandbox


def test_the_stated_limits_are_the_sandboxs() -> None:
    env = ReToolEnv(PROBLEMS, sandbox={"timeout_s": 1.5, "memory_mb": 123}, protocol="tool_calls")
    assert (env.config.timeout_s, env.config.memory_mb) == (1.5, 123)
    env.reset()
    assert "1.5" in env.episode.tools[0]["function"]["description"]
    same = ReToolEnv(PROBLEMS, sandbox=SandboxConfig(timeout_s=1.5, memory_mb=123))
    assert same.config.timeout_s == 1.5


def test_an_own_sandbox_is_made_at_the_first_code_and_closed_with_the_environment() -> None:
    env = ReToolEnv(PROBLEMS, sandbox={"preload": ()})
    env.reset(options={"problem": 6})
    env.step(ANSWER)
    assert env.trajectory().sandbox_tier is None
    assert env._sandbox.own is None
    env.reset()
    env.step(code("1"))
    own = env._sandbox.own
    assert own is not None
    assert env.trajectory().sandbox_tier == own.tier
    env.close()
    assert own.closed


def test_a_shared_sandbox_serves_many_environments_at_once_and_stays_open(sandbox: Sandbox) -> None:
    def attempt(n: int) -> tuple[str, float]:
        with ReToolEnv(PROBLEMS, sandbox=sandbox) as env:
            env.reset(options={"problem": n})
            observation = env.step(code(f"print({n} * 7)"))[0]
            return observation, env.step(f"<answer>\\boxed{{{n * 7}}}</answer>")[1]

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(attempt, range(10)))
    assert [reward for _, reward in results] == [1.05] * 10
    assert all(str(n * 7) in observation for n, (observation, _) in enumerate(results))
    assert not sandbox.closed


def test_a_sandbox_that_fails_once_is_asked_again(unreliable: UnreliableSandbox) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=unreliable)
    env.reset()
    unreliable.n_lost = 1
    observation, _, _, _, info = env.step(code("print(41 + 1)"))
    assert "42" in observation
    assert info["statuses"] == ("ok",)
    assert env.trajectory().turns[0].retries == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_sandbox_that_fails_twice_ends_the_attempt_as_a_fault(unreliable: UnreliableSandbox, is_async: bool) -> None:
    env = ReToolEnv(PROBLEMS, sandbox=unreliable, reward="paper")
    env.reset()
    unreliable.n_lost = 2
    step = asyncio.run(env.astep(code("1"))) if is_async else env.step(code("1"))
    observation, reward, terminated, truncated, info = step
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert (info["ended"], info["fault"], info["statuses"]) == ("sandbox_unavailable", True, ("unavailable",))
    assert info["interpreter_calls"] == 0


def test_an_error_of_ours_aborts_the_attempt_and_is_raised() -> None:
    shared = Sandbox(preload=())
    shared.close()
    env = ReToolEnv(PROBLEMS, sandbox=shared)
    env.reset()
    with pytest.raises(SandboxClosedError):
        env.step(code("1"))
    assert env.trajectory().ended == "aborted"
    assert env.trajectory().turns[-1].action == "run_code"
    with pytest.raises(ResetNeeded, match="aborted"):
        env.step(ANSWER)


def test_timings_are_beside_the_info(env: ReToolEnv) -> None:
    env.reset(options={"problem": 6})
    assert env.last_execution is None
    env.step(code("print(1)"))
    assert env.last_execution is not None
    assert env.last_execution.wall_s > 0
    assert env.last_observation is not None
    assert "1" in env.last_observation.text
    env.step(ANSWER)
    assert env.last_execution.stdout == "1\n"
    assert env.last_observation is None
    assert env.trajectory().turns[0].elapsed_s >= env.trajectory().turns[0].results[0].wall_s  # type: ignore[union-attr]
    env.reset()
    assert env.last_execution is None


# Copies


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
def test_a_copy_goes_on_from_where_it_was_made(copied: Any) -> None:
    env = ReToolEnv(PROBLEMS, sandbox={"preload": ()})
    env.reset(seed=1, options={"problem": 6})
    env.step(code("print(6 * 7)"))
    other = copied(env)
    assert other.trajectory() == env.trajectory()
    env.close()
    assert "43" in other.step(code("print(43)"))[0]
    assert other.step(ANSWER)[1] == 1.1
    assert len(env.trajectory().turns) == 1
    other.close()


def test_copies_share_a_shared_sandbox(env: ReToolEnv, sandbox: Sandbox) -> None:
    env.reset()
    other = copy.deepcopy(env)
    other.step(code("1"))
    other.close()
    assert not sandbox.closed
    assert env.step(code("1"))[-1]["statuses"] == ("ok",)


def test_a_copy_goes_through_the_same_problems(env: ReToolEnv) -> None:
    env.reset(seed=1)
    other = copy.deepcopy(env)
    assert order(other, 15) == order(env, 15)
