r"""``parallel_env``: the rollouts of one problem, as GRPO samples them, as a PettingZoo environment.

from retool_env.group import parallel_env

env = parallel_env(group_size=8, problems="problems.jsonl")
observations, infos = env.reset(seed=0)
while env.agents:
    turns = {agent: generate(observations[agent]) for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(turns)
print(env.group_result().advantages)

Needs the extra ``multiagent``.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Unpack, get_args

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded, UnsupportedMode
from gymnasium.spaces import Box

from retool_env.config import EpisodeOptions
from retool_env.env import Info, ReToolEnv, StepResult
from retool_env.env_options import InvalidOptionError, checked_options
from retool_env.errors import EpisodeError, MissingDependencyError
from retool_env.exclusive import Exclusive
from retool_env.group_result import GroupResult, Std, compare_rollouts
from retool_env.protocol.base import Finish
from retool_env.side_by_side import Problems, SandboxOption, naming, side_by_side, together, wait_for

try:
    from pettingzoo import ParallelEnv
    from pettingzoo.utils import BaseParallelWrapper
except ImportError as error:
    raise MissingDependencyError(
        'retool_env.group needs the pettingzoo package: pip install "retool-env[multiagent]"'
    ) from error

GroupStep = tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]

_CHECKERS_OPTION: Final = "options"
"""PettingZoo's checkers (1.25 to 1.27) pass ``options={"options": 1}`` and want it to be taken."""


class ReToolGroup(Exclusive, ParallelEnv[str, str, str]):  # type: ignore[misc]
    """The rollouts of one problem, ``rollout_0`` to ``rollout_{group_size - 1}``; all their code runs at the same time.

    Actions, observations, rewards and infos of each are those of ``ReToolEnv``. A rollout that has ended leaves
    ``agents``; once all have, ``group_result`` tells what the group came to.

    If a step raises for one rollout, the others have taken their turns before it is raised, with a note of which it
    was; that one has ended. ``areset`` and ``astep`` do the same as ``reset`` and ``step`` without blocking the event
    loop. PettingZoo's wrappers forward neither them nor the keywords of ``step``: use ``env.unwrapped``.

    ``envs`` has the environment of each rollout: ``env.envs["rollout_3"].trajectory()``.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "retool_group_v0", "render_modes": ["ansi", "html"]}

    def __init__(
        self,
        group_size: int = 8,
        problems: Problems = None,
        *,
        sandbox: SandboxOption = None,
        render_mode: str | None = None,
        **rules: Unpack[EpisodeOptions],
    ):
        """Makes the environments. No sandbox is started before there is code to run.

        Args:
            group_size: Number of rollouts.
            problems: As for ``ReToolEnv``.
            sandbox: As for ``ReToolEnv``; one that is not given is made with room for the code of all rollouts.
            render_mode: "ansi" (``render`` returns text), "html" or None.
            **rules: As for ``ReToolEnv``.

        Raises:
            InvalidOptionError: An option has a value that cannot work.
            gymnasium.error.UnsupportedMode: There is no such render mode.
            ReToolError: As ``ReToolEnv`` does.
        """
        if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
            raise InvalidOptionError(f"group_size: must be an integer of at least 1, got {group_size!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = ", ".join(self.metadata["render_modes"])
            raise UnsupportedMode(f"render_mode: {render_mode!r} is not one of {modes}")
        self.render_mode = render_mode
        self.possible_agents = [f"rollout_{number}" for number in range(group_size)]
        envs = side_by_side(group_size, problems, sandbox, render_mode, **rules)
        self.envs: dict[str, ReToolEnv] = dict(zip(self.possible_agents, envs, strict=True))
        self.agents: list[str] = []
        self._begun = False

    def observation_space(self, agent: str) -> Space[str]:
        """Returns the space of a rollout's observations, always the same object."""
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> Space[str]:
        """Returns the space of a rollout's actions, always the same object."""
        return self.envs[agent].action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Info]]:
        """Begins the rollouts of the next problem.

        Args:
            seed: Begins a new order of the problems, fixed by this number.
            options: ``{"problem": ...}`` picks the problem, as in ``ReToolEnv.reset``.

        Returns:
            The prompt and the info of each rollout.

        Raises:
            InvalidOptionError, ProblemError, gymnasium.error.ClosedEnvironmentError: As ``ReToolEnv.reset`` does.
        """
        with self._exclusive("reset"):
            first, *others = self.envs.values()
            opened = [first.reset(seed=seed, options=_without_checkers_option(options))]
            same = self._same_problem()
            opened += [env.reset(options=same) for env in others]
            return self._opened(opened)

    async def areset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Info]]:
        """Does what ``reset`` does, without blocking the event loop."""
        with self._exclusive("areset"):
            first, *others = self.envs.values()
            opened = [await first.areset(seed=seed, options=_without_checkers_option(options))]
            same = self._same_problem()
            opened += [await env.areset(options=same) for env in others]
            return self._opened(opened)

    def step(
        self,
        actions: Mapping[str, str],
        *,
        finish: Finish | Mapping[str, Finish] = "stop",
        stop_reason: object = None,
    ) -> GroupStep:
        """Takes one turn of text in each rollout that goes on.

        Args:
            actions: The turn of each of ``agents``.
            finish: As for ``ReToolEnv.step``: one word for all, or a mapping with one for each.
            stop_reason: The same.

        Returns:
            Observations, rewards, terminations, truncations and infos of the rollouts that took a turn.

        Raises:
            gymnasium.error.ResetNeeded: No rollout goes on.
            gymnasium.error.InvalidAction: The actions are not a text for each of ``agents``.
            InvalidOptionError: ``finish`` or ``stop_reason`` is not understood.
            gymnasium.error.ClosedEnvironmentError: The environment was closed, perhaps during the step.
            Exception: As for ``ReToolEnv.step``, from one of the rollouts; only then have turns been taken.
        """
        with self._exclusive("step"), self._turns(actions, finish, stop_reason) as turns:
            return _by_agent(self.agents, wait_for(together(turns)))

    async def astep(
        self,
        actions: Mapping[str, str],
        *,
        finish: Finish | Mapping[str, Finish] = "stop",
        stop_reason: object = None,
    ) -> GroupStep:
        """Does what ``step`` does, without blocking the event loop. If it is cancelled, the rollouts are aborted."""
        with self._exclusive("astep"), self._turns(actions, finish, stop_reason) as turns:
            return _by_agent(self.agents, await together(turns))

    def group_result(self, *, std: Std = "sample", eps: float = 1e-6) -> GroupResult:
        """Returns what the group came to.

        Args:
            std: How the standard deviation is taken: of a sample (divided by n - 1), as verl and TRL do with
                ``torch.std``; or of the whole population (divided by n).
            eps: Added to the standard deviation: 1e-6 as in verl; TRL adds 1e-4.

        Raises:
            EpisodeError: Some rollouts have not ended.
            InvalidOptionError: ``std`` is neither, or ``eps`` is not above 0.
            RewardError: A custom reward table returned something that is not a finite number.
        """
        if not self._begun:
            raise EpisodeError("group_result: no group was begun: call reset() first")
        if self.agents:
            raise EpisodeError(f"group_result: {', '.join(self.agents)} have not ended")
        with checked_options():
            return compare_rollouts(
                self.envs[self.possible_agents[0]].episode.problem,
                {agent: env.episode.outcome() for agent, env in self.envs.items()},
                std=std,
                eps=eps,
            )

    def render(self) -> str | None:
        """Returns all rollouts as text ("ansi") or as HTML ("html").

        Raises:
            gymnasium.error.ResetNeeded: No group was begun.
        """
        shown = {agent: env.render() for agent, env in self.envs.items()}
        if self.render_mode is None:
            return None
        title = "=== {} ===\n{}" if self.render_mode == "ansi" else "<section><h2>{}</h2>{}</section>"
        return "\n".join(title.format(agent, text) for agent, text in shown.items())

    def close(self) -> None:
        """Closes the environments, and the sandbox if it is their own. May be called again."""
        self._closed = True
        for env in reversed(self.envs.values()):
            env.close()

    def _same_problem(self) -> dict[str, Any]:
        """Returns the options with which the others begin what the first has begun; until then there is no group."""
        self._begun, self.agents = False, []
        return {"problem": self.envs[self.possible_agents[0]].episode.problem}

    def _opened(self, opened: Collection[tuple[str, Info]]) -> tuple[dict[str, str], dict[str, Info]]:
        self._begun = True
        self.agents = list(self.possible_agents)
        prompts, infos = zip(*opened, strict=True)
        return dict(zip(self.agents, prompts, strict=True)), dict(zip(self.agents, infos, strict=True))

    @contextmanager
    def _turns(
        self, actions: object, finish: object, stop_reason: object
    ) -> Iterator[list[Coroutine[Any, Any, StepResult]]]:
        """Checks a step, so that every rollout takes its turn or none does; lets those go that have ended."""
        if not self.agents:
            raise ResetNeeded("step: no rollout goes on: call reset() for the next group")
        if not isinstance(actions, Mapping) or set(actions) != set(self.agents):
            given = sorted(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
            raise InvalidAction(f"step: actions must be a mapping with a text for each of {self.agents}, got {given}")
        finishes, reasons = self._each(finish, "finish"), self._each(stop_reason, "stop_reason")
        for agent in self.agents:
            if not isinstance(actions[agent], str):
                kind = type(actions[agent]).__name__
                raise InvalidAction(f"step: an action is the text of one turn (str), got {kind} for {agent}")
            if finishes[agent] not in get_args(Finish):
                words = ", ".join(get_args(Finish))
                raise InvalidOptionError(f"finish: must be one of {words}, got {finishes[agent]!r:.100} for {agent}")
        try:
            yield [self._take(agent, actions[agent], finishes[agent], reasons[agent]) for agent in self.agents]
            if self._closed:
                raise ClosedEnvironmentError("step: the environment was closed before the step had ended")
        finally:
            self.agents = [agent for agent in self.agents if not self.envs[agent].episode.over]

    def _each(self, value: object, name: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            return dict.fromkeys(self.agents, value)
        if missing := set(self.agents) - set(value):
            raise InvalidOptionError(
                f"{name}: must be one for all or one for each of agents; {sorted(missing)} lack it"
            )
        return value

    async def _take(self, agent: str, text: str, finish: Finish, stop_reason: object) -> StepResult:
        with naming(agent):
            return await self.envs[agent].astep(text, finish=finish, stop_reason=stop_reason)


def parallel_env(
    group_size: int = 8,
    problems: Problems = None,
    *,
    sandbox: SandboxOption = None,
    render_mode: str | None = None,
    **rules: Unpack[EpisodeOptions],
) -> ReToolGroup:
    """Returns a ``ReToolGroup``, under the name that PettingZoo's environments give their makers."""
    return ReToolGroup(group_size, problems, sandbox=sandbox, render_mode=render_mode, **rules)


class CodePoints(BaseParallelWrapper[str, npt.NDArray[np.int32], str]):  # type: ignore[misc]
    """Shows text as an array, for what needs observations with a dtype (``parallel_to_aec`` with ``api_test``).

    An observation is an int32 array of shape ``(length,)``: the code points of the text, then -1. Of a text that is
    longer, the end is cut. Actions stay text.
    """

    def __init__(self, env: ParallelEnv[str, str, str], length: int = 8192):
        """Wraps an environment.

        Args:
            env: A ``ReToolGroup``, perhaps wrapped.
            length: Characters of an observation.

        Raises:
            InvalidOptionError: ``length`` is below 1.
        """
        super().__init__(env)
        if length < 1:
            raise InvalidOptionError(f"length: must be at least 1, got {length!r}")
        self.length = length
        self._spaces = {agent: Box(-1, 0x10FFFF, (length,), np.int32) for agent in env.possible_agents}

    def observation_space(self, agent: str) -> Space[npt.NDArray[np.int32]]:
        """Returns the space of the arrays."""
        return self._spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, Info]]:
        """Does what the environment does, and shows the observations as arrays."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._encode_all(observations), infos

    def step(
        self, actions: dict[str, str]
    ) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Does what the environment does, and shows the observations as arrays."""
        observations, *rest = self.env.step(actions)
        return self._encode_all(observations), *rest

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Returns the array for a text."""
        codes = np.full(self.length, -1, dtype=np.int32)
        shown = text[: self.length]
        codes[: len(shown)] = np.frombuffer(shown.encode("utf-32-le", "surrogatepass"), dtype="<i4")
        return codes

    @staticmethod
    def decode(codes: npt.NDArray[np.int32]) -> str:
        """Returns the text of an array."""
        return codes[codes >= 0].astype("<i4").tobytes().decode("utf-32-le", "surrogatepass")

    def _encode_all(self, observations: Mapping[str, Any]) -> dict[str, npt.NDArray[np.int32]]:
        return {agent: self.encode(text) for agent, text in observations.items()}


def _by_agent(agents: Collection[str], results: Collection[StepResult]) -> GroupStep:
    observations, rewards, terminations, truncations, infos = (
        dict(zip(agents, column, strict=True)) for column in zip(*results, strict=True)
    )
    return observations, rewards, terminations, truncations, infos


def _without_checkers_option(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if name != _CHECKERS_OPTION}
