"""The interpreter of one attempt, as a driver of an ``Episode`` that is no environment uses it."""

import asyncio
import copy
import pickle
from collections.abc import Callable

import pytest

from retool_env.config import EpisodeConfig
from retool_env.driver import adrive, drive
from retool_env.episode import Episode
from retool_env.errors import SandboxClosedError
from retool_env.interpreter import LazySandbox, SessionInterpreter, make_interpreter
from retool_env.problems import Problem
from retool_env.protocol.base import InterpreterMode
from retool_env.sandbox import Sandbox, SandboxConfig

PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42")
TURNS = ("<code>x = 42</code>", "<code>x</code>", "<answer>\\boxed{42}</answer>")


@pytest.mark.parametrize(("mode", "statuses"), [("fresh", ["ok", "error"]), ("session", ["ok", "ok"])])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_loop_of_ones_own_needs_an_episode_and_an_interpreter(
    mode: InterpreterMode, statuses: list[str], is_async: bool, tier_sandbox: Sandbox
) -> None:
    episode = Episode(PROBLEM, EpisodeConfig(interpreter=mode))
    interpreter = make_interpreter(episode.config.interpreter, tier_sandbox)
    assert interpreter.tier is None
    seen = []
    for turn in TURNS:
        action = episode.read(turn)
        done = asyncio.run(adrive(episode, action, interpreter)) if is_async else drive(episode, action, interpreter)
        seen += [getattr(result, "status", None) for result in done.results]
    assert seen == statuses
    assert episode.outcome().correct
    assert interpreter.tier == tier_sandbox.tier


def test_a_session_is_closed_with_the_attempt_and_then_runs_nothing(tier_sandbox: Sandbox) -> None:
    interpreter = SessionInterpreter(LazySandbox(tier_sandbox))
    interpreter.run("x = 42")
    session = interpreter._session
    assert session is not None
    episode = Episode(PROBLEM, EpisodeConfig(interpreter="session"))
    drive(episode, episode.read("I give up"), interpreter)
    assert episode.over
    assert session.closed
    for run in (interpreter.run, lambda code: asyncio.run(interpreter.arun(code))):
        with pytest.raises(SandboxClosedError, match="each attempt"):
            run("x")
    interpreter.close()
    assert not tier_sandbox.closed


def test_a_retry_is_honest_only_where_nothing_is_lost(tier_sandbox: Sandbox) -> None:
    assert make_interpreter("fresh", tier_sandbox).can_retry
    interpreter = make_interpreter("session", tier_sandbox)
    assert interpreter.can_retry
    interpreter.run("1 / 0")  # it may have defined something before it failed
    assert not interpreter.can_retry
    interpreter.run("import os; os._exit(0)")
    assert interpreter.can_retry
    interpreter.close()


def repickled(lazy: LazySandbox) -> LazySandbox:
    return pickle.loads(pickle.dumps(lazy))  # type: ignore[no-any-return]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, repickled], ids=["deep", "shallow", "pickle"])
def test_copies_make_sandboxes_of_their_own(copied: Callable[[LazySandbox], LazySandbox]) -> None:
    lazy = LazySandbox(config=SandboxConfig(preload=(), light=False))
    assert lazy.own is None
    own = lazy.get()
    assert lazy.get() is own is lazy.own
    other = copied(lazy)
    assert other.own is None
    assert other.get() is not own
    other.close()
    assert not own.closed
    lazy.close()
    assert own.closed


def test_a_shared_sandbox_stays_open(tier_sandbox: Sandbox) -> None:
    lazy = LazySandbox(tier_sandbox)
    assert lazy.get() is copy.deepcopy(lazy).get() is tier_sandbox
    lazy.close()
    assert not tier_sandbox.closed
