r"""``ReToolEnv``: ReTool as a gymnasium environment over text.

import gymnasium
import retool_env

env = gymnasium.make("ReTool-v0", problems="problems.jsonl")
prompt, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step("<code>print(6 * 7)</code>")
observation, reward, terminated, truncated, info = env.step(r"<answer>\boxed{42}</answer>")
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Final, Unpack, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction, ResetNeeded, UnsupportedMode

from retool_env.config import EpisodeOptions
from retool_env.driver import TurnWork, adrive, drive
from retool_env.env_options import InvalidOptionError, checked_options, episode_config, sandbox_config
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError, ProblemError
from retool_env.exclusive import Exclusive
from retool_env.interpreter import Interpreter, LazySandbox, make_interpreter
from retool_env.problem_order import ProblemOrder
from retool_env.problems import Problem, load_problems
from retool_env.protocol.base import Action, EndReason, Finish, Observation
from retool_env.recorder import ACTION_NAMES, Recorder
from retool_env.render import as_html, as_text, opening_blocks, outcome_blocks, print_blocks, turn_blocks
from retool_env.sandbox import ExecutionResult, Sandbox, SandboxConfig
from retool_env.spaces import UnicodeText
from retool_env.tools import ToolResult
from retool_env.trajectory import Trajectory

Info = dict[str, Any]
StepResult = tuple[str, float, bool, bool, Info]

_MAX_PROMPT_CHARS: Final = 1 << 20


class ReToolEnv(Exclusive, gymnasium.Env[str, str]):
    """One problem an episode: the policy writes turns of text, code in them runs, an answer ends it and is paid.

    **Action**: the text of one turn, as the policy generated it. Any text will do; what cannot be understood is
    answered with feedback, or ends the episode. What is longer than ``max_action_chars`` is cut.

    **Observation**: the text appended for the policy: at reset the prompt, after a call its result in the protocol's
    form, at the end the empty string. Chat-level drivers read ``episode.messages()`` instead.

    **Reward**: 0.0 until the last step, which pays what the reward table says.

    **End**: ``terminated`` when the policy answered, or wrote a turn without any action; ``truncated`` when a budget
    ran out (turns, tool calls, length) or something failed that is not the policy's fault (``info["fault"]``).

    **Info**, the same keys at every reset and step, and nothing that depends on a clock:

    | key | type | meaning |
    |---|---|---|
    | ``problem_id`` | str | the problem |
    | ``turn`` | int | turns so far; 0 at reset |
    | ``action`` | str | what the turn was taken for: run_code, answer, feedback, ended; "reset" at reset |
    | ``kept`` | str | what belongs to the turn, without what the policy wrote past it |
    | ``fabricated`` | bool | the turn invents an observation |
    | ``statuses`` | tuple of str | how the turn's calls ended: an ``ExecutionStatus``; ok or error for other tools |
    | ``tool_calls`` | int | calls that ran so far, of any tool |
    | ``interpreter_calls`` | int | those of ``code_interpreter`` |
    | ``ended`` | str | an ``EndReason``; "" while the episode goes on |
    | ``fault`` | bool | it ended through no fault of the policy: mask it out or drop it |
    | ``answer`` | str | the final answer; "" if there is none |
    | ``correct`` | bool | the answer was graded as right |
    | ``grade_timed_out`` | bool | the answer could not be compared within the grader's limits |
    | ``reward_breakdown`` | dict | the parts of the reward; empty until the end |

    Timings are in ``last_execution`` and in ``trajectory()``.

    ``areset`` and ``astep`` do the same as ``reset`` and ``step`` without blocking the event loop. gymnasium's wrappers
    forward neither them nor the keywords of ``step``: use ``env.unwrapped``. One environment is for one caller at a
    time; many may share a sandbox.

    Wrong use is gymnasium's kind of error: ``ResetNeeded`` (step before reset, or after the end), ``InvalidAction`` (an
    action that is not a string), ``InvalidOptionError`` (also a ``ConfigurationError``), ``ClosedEnvironmentError``.

    ``gymnasium.make_vec`` makes a ``ReToolVectorEnv``. Of gymnasium's own modes ``vectorization_mode="sync"`` works as
    it is; ``"async"`` needs ``vector_kwargs={"shared_memory": False}``: shared memory would lose every character that
    is not printable ASCII, so it is refused.

    A copy or an unpickled environment shares a sandbox that was given, and makes its own where this one does. With
    ``interpreter="session"`` it has no copy of what the episode's blocks have defined: its next block ends the episode
    as a fault (``sandbox_unavailable``), unless no block had run.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "human", "html"], "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        problems: str | os.PathLike[str] | Sequence[Problem | Mapping[str, Any]] | None = None,
        *,
        sandbox: Sandbox | SandboxConfig | Mapping[str, Any] | str | None = None,
        render_mode: str | None = None,
        **rules: Unpack[EpisodeOptions],
    ):
        """Makes an environment. No sandbox is started before there is code to run.

        Args:
            problems: None or "builtin" for the built-in mix, the path of a JSONL file, or a sequence of problems.
            sandbox: A ``Sandbox`` to share (it stays open when this environment closes); or the ``SandboxConfig``, its
                fields or the name of a tier for a sandbox of its own; None for one with the defaults.
            render_mode: "ansi" (``render`` returns text), "html" (it returns a fragment), "human" (every reset and step
                prints), or None.
            **rules: The fields of ``EpisodeConfig``: ``protocol="code_tags"``, ``reward="tool_aware"``,
                ``grader="default"``, ``max_turns=16``, ``max_tool_calls=16``, ``tools=[...]``, ... Not ``timeout_s``
                and ``memory_mb``: the limits that are stated are those of the sandbox.

        Raises:
            InvalidOptionError: An option has a value that cannot work.
            ProblemError: A problem file, or a gold answer, is not good.
            MissingDependencyError: The built-in problems are asked for and reasoning-gym is not installed.
            gymnasium.error.UnsupportedMode: There is no such render mode.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            modes = ", ".join(self.metadata["render_modes"])
            raise UnsupportedMode(f"render_mode: {render_mode!r} is not one of {modes}")
        self.render_mode = render_mode
        with checked_options():
            config = sandbox_config(sandbox)
            self.config = episode_config(rules, config)
            self.problems: Sequence[Problem] = load_problems(problems)
        # gymnasium.make sets the spec; with this one an environment that was made directly can be checked, too.
        options = {"problems": problems, "sandbox": sandbox, "render_mode": render_mode, **rules}
        self.spec = EnvSpec(
            "ReTool-v0",
            entry_point=cast(Any, type(self)),
            order_enforce=False,
            disable_env_checker=True,
            kwargs={name: value for name, value in options.items() if value is not None},
        )
        self._sandbox = LazySandbox(sandbox if isinstance(sandbox, Sandbox) else None, config)
        self._begin()

    def _begin(self) -> None:
        """Sets all that an environment does not have in common with its siblings."""
        self.action_space = UnicodeText(self.config.max_action_chars)
        # A turn may make as many calls as are allowed, and the protocol wraps what is shown of each result.
        self.observation_space = UnicodeText(
            _MAX_PROMPT_CHARS + 4 * self.config.max_observation_chars * max(1, self.config.max_tool_calls)
        )
        self._order = ProblemOrder(len(self.problems), getattr(self.problems, "is_shuffled", False))
        self._interpreter: Interpreter = make_interpreter(self.config.interpreter, self._sandbox)
        self._episode: Episode | None = None
        self._recorder: Recorder | None = None
        self._unrecorded: list[tuple[Any, ...]] = []
        self.last_execution: ExecutionResult | None = None
        """The latest execution of this episode, with its timings; None before the first."""
        self.last_observation: Observation | None = None
        """What the latest step showed the policy, as text and as chat messages; None at reset and at the end."""

    def sibling(self) -> ReToolEnv:
        """Returns an environment with the same problems, rules and sandbox, for an episode beside this one's.

        Nothing is loaded or checked again. The sandbox stays open when the sibling closes, and closes with this one.
        """
        other = copy.copy(self)
        other._sandbox = LazySandbox(self._sandbox)
        other._np_random = other._np_random_seed = None
        other._begin()
        return other

    @property
    def episode(self) -> Episode:
        """The current attempt: ``messages()`` is the conversation, ``stop`` the stop strings for the engine.

        Raises:
            gymnasium.error.ResetNeeded: There is none yet.
        """
        if self._episode is None:
            raise ResetNeeded("there is no episode yet: call reset() first")
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begins an attempt at the next problem.

        Args:
            seed: Begins a new order of the problems, fixed by this number.
            options: ``{"problem": ...}`` picks the problem, as a ``Problem``, a mapping with its fields or an index
                into ``problems``; the order is not moved on by it.

        Returns:
            The prompt, and the info described above.

        Raises:
            InvalidOptionError: The options are not understood.
            ProblemError: The problem's prompt is longer than an observation can be (2^20 characters).
            gymnasium.error.ClosedEnvironmentError: The environment was closed.
        """
        with self._exclusive("reset"):
            return self._open(self.pick(self._choice(seed, options)))

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Does what ``reset`` does, without blocking the event loop."""
        with self._exclusive("areset"):
            choice = self._choice(seed, options)
            # A problem may have to be generated, and a gold answer checked.
            return self._open(await asyncio.to_thread(self.pick, choice))

    def step(self, action: str, *, finish: Finish = "stop", stop_reason: object = None) -> StepResult:
        """Takes one turn of text.

        Args:
            action: The turn.
            finish: How generation stopped: "stop" (by itself), "length" (cut: not run, not graded) or "abort".
            stop_reason: What the engine says stopped it: a stop string that it dropped is put back.

        Returns:
            Observation, reward, terminated, truncated and info, as described above.

        Raises:
            gymnasium.error.ResetNeeded: No episode was begun, or it is over.
            gymnasium.error.InvalidAction: The action is not a string.
            InvalidOptionError: ``finish`` is not one of the three words.
            gymnasium.error.ClosedEnvironmentError: The environment was closed.
            SandboxError: The sandbox cannot be made, or was closed. The attempt is over then (aborted).
            RewardError: A custom reward table returned something that is not a finite number.
        """
        with self._exclusive("step"):
            turn = self._turn(action, finish, stop_reason)
            try:
                turn.done = drive(turn.episode, turn.action, self._interpreter)
            except BaseException:
                turn.abort()
                raise
            finally:
                self._note(turn)
        return self._report(turn)

    async def astep(self, action: str, *, finish: Finish = "stop", stop_reason: object = None) -> StepResult:
        """Does what ``step`` does, without blocking the event loop. If it is cancelled, the attempt is aborted."""
        with self._exclusive("astep"):
            turn = self._turn(action, finish, stop_reason)
            try:
                turn.done = await adrive(turn.episode, turn.action, self._interpreter)
            except BaseException:
                turn.abort()
                raise
            finally:
                self._note(turn)
        return self._report(turn)

    def trajectory(self) -> Trajectory:
        """Returns the record of the current attempt; while it goes on, of its turns so far.

        Raises:
            gymnasium.error.ResetNeeded: No episode was begun.
        """
        if self._recorder is None:
            raise ResetNeeded("there is no attempt to record yet: call reset() first")
        while self._unrecorded:
            self._recorder.add_turn(*self._unrecorded.pop(0))
        return self._recorder.trajectory(self._interpreter.tier)

    def render(self) -> str | None:
        """Returns the attempt as text ("ansi") or HTML ("html"); None in "human" mode, which prints as it goes.

        Raises:
            gymnasium.error.ResetNeeded: No episode was begun.
        """
        trajectory = self.trajectory()
        if self.render_mode == "ansi":
            return as_text(trajectory)
        return as_html(trajectory) if self.render_mode == "html" else None

    def close(self) -> None:
        """Closes the episode's session and the sandbox, if it is this environment's own. May be called again."""
        self._closed = True
        self._interpreter.close()
        self._sandbox.close()

    def _choice(self, seed: int | None, options: Mapping[str, Any] | None) -> object:
        """Seeds, and returns which problem comes next, in any of the forms that ``options`` takes."""
        options = options or {}
        unknown = set(options) - {"problem"}
        if unknown:
            raise InvalidOptionError(f'options: unknown {sorted(map(str, unknown))}; there is only "problem"')
        super().reset(seed=seed)
        if seed is not None:
            self._order.restart()
        return options["problem"] if "problem" in options else self._order.next(self.np_random)

    def pick(self, choice: object) -> Problem:
        """Returns the problem that ``options={"problem": choice}`` stands for; nothing is begun.

        Raises:
            InvalidOptionError: It stands for none.
            ProblemError: Its gold answer is not good.
        """
        with checked_options():
            if isinstance(choice, Problem | Mapping):
                return load_problems([choice])[0]
            if not isinstance(choice, int | np.integer) or isinstance(choice, bool):
                raise ConfigurationError(
                    f"options: problem must be a Problem, a mapping or an index, got {type(choice).__name__}"
                )
            if not -len(self.problems) <= choice < len(self.problems):
                raise ConfigurationError(f"options: problem {choice} does not exist; there are {len(self.problems)}")
        return self.problems[int(choice)]

    def _open(self, problem: Problem) -> tuple[str, Info]:
        with checked_options():
            episode = Episode(problem, self.config)
        length = len(episode.prompt())
        if length > _MAX_PROMPT_CHARS:
            raise ProblemError(
                f"problem {problem.id!r:.80}: its prompt has {length} characters, and observation_space ends at "
                f"{_MAX_PROMPT_CHARS}; shorten the question (or the prompt template), or leave the problem out"
            )
        self._episode = episode
        self._recorder = Recorder(self._episode)
        self._unrecorded = []
        self._interpreter.close()
        self._interpreter = make_interpreter(self.config.interpreter, self._sandbox)
        self.last_execution = None
        self.last_observation = None
        if self.render_mode == "human":
            print_blocks(opening_blocks(self.trajectory()))
        return self._episode.prompt(), self._info(None)

    def _turn(self, text: str, finish: Finish, stop_reason: object) -> _Turn:
        """Reads a turn, for the caller to do the work."""
        episode = self._episode
        if episode is None:
            raise ResetNeeded("step: no episode was begun: call reset() first")
        if episode.over:
            raise ResetNeeded(f"step: the episode is over ({episode.ended}): call reset() for the next one")
        if not isinstance(text, str):
            raise InvalidAction(f"step: an action is the text of one turn (str), got {type(text).__name__}")
        started = perf_counter()
        try:
            action = episode.read(text, finish, stop_reason)
        except ConfigurationError as error:
            raise InvalidOptionError(str(error)) from error
        return _Turn(episode, (text, finish, stop_reason), started, action)

    def _note(self, turn: _Turn) -> None:
        """Keeps what is to be recorded. The record is made when somebody asks: that takes half as long as the rest."""
        self._unrecorded.append((*turn.given, turn.action, turn.done, perf_counter() - turn.started))

    def _report(self, turn: _Turn) -> StepResult:
        """Returns what ``step`` returns for a turn whose work is done."""
        episode, done = self.episode, turn.done
        executions = [result for result in done.results if isinstance(result, ExecutionResult)]
        self.last_execution = executions[-1] if executions else self.last_execution
        self.last_observation = done.observation
        reward, ended = (episode.outcome().reward, episode.ended) if episode.over else (0.0, None)
        if self.render_mode == "human":
            trajectory = self.trajectory()
            print_blocks(turn_blocks(episode.turns, trajectory.turns[-1]))
            print_blocks(outcome_blocks(trajectory))
        text = "" if done.observation is None else done.observation.text
        truncated = ended is not None and ended.truncated
        return text, reward, ended is not None and not truncated, truncated, self._info(turn)

    def _info(self, turn: _Turn | None) -> Info:
        episode = self.episode
        outcome = episode.outcome() if episode.over else None
        return {
            "problem_id": episode.problem.id,
            "turn": episode.turns,
            "action": "reset" if turn is None else ACTION_NAMES[type(turn.action)],
            "kept": "" if turn is None else turn.action.kept,
            "fabricated": turn is not None and turn.action.fabricated,
            "statuses": () if turn is None else tuple(_status(result) for result in turn.done.results),
            "tool_calls": episode.tool_calls,
            "interpreter_calls": episode.interpreter_calls,
            "ended": "" if outcome is None else str(outcome.ended),
            "fault": outcome is not None and outcome.fault,
            "answer": "" if outcome is None else outcome.answer or "",
            "correct": outcome is not None and outcome.correct,
            "grade_timed_out": turn is not None and turn.done.grade is not None and turn.done.grade.timed_out,
            "reward_breakdown": {} if outcome is None else dict(outcome.breakdown),
        }


@dataclass(slots=True)
class _Turn:
    """A turn.

    Attributes:
        episode: The attempt.
        given: What the caller said of it: the text, ``finish`` and ``stop_reason``.
        started: When it was read.
        action: What it means.
        done: What was done for it.
    """

    episode: Episode
    given: tuple[Any, ...]
    started: float
    action: Action
    done: TurnWork = field(default_factory=TurnWork)

    def abort(self) -> None:
        """Ends the attempt: the work has failed."""
        if not self.episode.over:
            self.episode.fail(EndReason.ABORTED)


def _status(result: ExecutionResult | ToolResult) -> str:
    if isinstance(result, ExecutionResult):
        return str(result.status)
    return "error" if result.is_error else "ok"
