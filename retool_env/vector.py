r"""``ReToolVectorEnv``: n episodes at a time, whose code runs at the same time in one sandbox.

import gymnasium
import retool_env

envs = gymnasium.make_vec("ReTool-v0", num_envs=32, problems="problems.jsonl")
prompts, infos = envs.reset(seed=0)
observations, rewards, terminated, truncated, infos = envs.step(generate(prompts))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeGuard, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from retool_env.config import EpisodeOptions
from retool_env.env import Info, ReToolEnv, StepResult
from retool_env.env_options import InvalidOptionError
from retool_env.exclusive import Exclusive
from retool_env.protocol.base import Finish
from retool_env.side_by_side import Problems, SandboxOption, naming, side_by_side, together, wait_for

Observations = tuple[str, ...]
Flags = npt.NDArray[np.bool_]
VectorStep = tuple[Observations, npt.NDArray[np.float64], Flags, Flags, Info]

_MASK: Final = "reset_mask"

_Reset = Callable[[ReToolEnv], Awaitable[tuple[str, Info]]]


class ReToolVectorEnv(Exclusive, VectorEnv[Observations, Sequence[str], np.ndarray]):
    """``num_envs`` episodes side by side; a step takes a turn of each, and all their code runs at the same time.

    It gives what gymnasium's ``SyncVectorEnv`` of as many ``ReToolEnv`` gives, in the time of the slowest turn instead
    of the sum of all: so much as the sandbox runs at the same time (``max_concurrency``; a sandbox that is not given is
    made with room for all). Answers are graded at the same time, too, and tools of the user's are called so: they have
    to be safe to use from many threads.

    **Actions**: a sequence of ``num_envs`` texts. **Observations**: a tuple of as many. Rewards are float64 and
    ``terminated`` and ``truncated`` bool, of shape ``(num_envs,)``. **Infos**: those of ``ReToolEnv`` as gymnasium
    puts them together: for every key an array, and a mask ``_key`` of the environments that have it.

    **The end of an episode** (``autoreset_mode``, with gymnasium's names):

    | mode | what happens |
    |---|---|
    | ``"NextStep"`` | the next step begins the environment's next episode; its action there is not looked at |
    | ``"SameStep"`` | the next one begins at once; ``infos["final_obs"]`` and ``infos["final_info"]`` tell of the end |
    | ``"Disabled"`` | it waits for ``reset(options={"reset_mask": ...})``, a bool array of shape ``(num_envs,)`` |

    ``envs`` are the environments: ``envs.envs[3].trajectory()``, ``envs.envs[3].episode.messages()``. Let the vector
    environment do their steps.

    A fault of the sandbox ends the episodes that it meets, as in ``ReToolEnv``, and no other. If a step raises for one
    environment (a custom reward table that fails, say), the others have taken their turns before it is raised, with a
    note of which it was. What they returned is in their trajectories only, but the next steps go on from there;
    the episode of that one is over. In the mode "SameStep" it then needs ``reset_mask``.

    ``areset`` and ``astep`` do the same as ``reset`` and ``step`` without blocking the event loop. gymnasium's wrappers
    forward neither them nor the keywords of ``step``.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        **ReToolEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    envs: Sequence[ReToolEnv] = ()
    """The environments. (None yet where the constructor raises: gymnasium 1.1 then closes what there is.)"""

    def __init__(
        self,
        num_envs: int = 1,
        problems: Problems = None,
        *,
        sandbox: SandboxOption = None,
        render_mode: str | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **rules: Unpack[EpisodeOptions],
    ):
        """Makes the environments. Problems are loaded once; no sandbox is started before there is code to run.

        Args:
            num_envs: Number of environments.
            problems: As for ``ReToolEnv``. Each environment goes through all of them, in an order of its own.
            sandbox: As for ``ReToolEnv``.
            render_mode: As for ``ReToolEnv``.
            autoreset_mode: See above.
            **rules: As for ``ReToolEnv``.

        Raises:
            InvalidOptionError: An option has a value that cannot work.
            ReToolError, gymnasium.error.UnsupportedMode: As ``ReToolEnv`` does.
        """
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise InvalidOptionError(f"num_envs: must be an integer of at least 1, got {num_envs!r}")
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            modes = ", ".join(mode.value for mode in AutoresetMode)
            raise InvalidOptionError(f"autoreset_mode: must be one of {modes}, got {autoreset_mode!r}") from None
        self.num_envs = num_envs
        self.envs = side_by_side(num_envs, problems, sandbox, render_mode, **rules)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}  # type: ignore[misc]
        self.single_action_space = self.envs[0].action_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = self.envs[0].observation_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        options = {"problems": problems, "sandbox": sandbox, "render_mode": render_mode, **rules}
        self.spec = EnvSpec(
            "ReTool-v0",
            entry_point=cast(Any, ReToolEnv),
            vector_entry_point=cast(Any, type(self)),
            kwargs={
                "num_envs": num_envs,
                "vectorization_mode": "vector_entry_point",
                "autoreset_mode": self.autoreset_mode,
                **{name: value for name, value in options.items() if value is not None},
            },
        )
        self._observations: list[str | None] = [None] * num_envs
        """What each environment showed last; None before its first episode."""

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments, which fix the order of their problems."""
        return tuple(env.np_random for env in self.envs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments."""
        return tuple(env.np_random_seed for env in self.envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Begins an attempt in each environment, or in some.

        Args:
            seed: Environment ``i`` gets ``seed + i``, or number ``i`` of a sequence; None leaves its order as it is.
            options: ``{"problem": ...}`` as for ``ReToolEnv.reset``, for all environments, or a sequence with one for
                each, where None stands for the next in its order. ``{"reset_mask": mask}``, with a bool array of shape
                ``(num_envs,)``, leaves the episodes of the others as they are.

        Returns:
            The observations, and the infos of those that were reset.

        Raises:
            InvalidOptionError: An argument is not understood; no environment was reset.
            ResetNeeded: The mask leaves out an environment that has no episode yet.
            ProblemError, gymnasium.error.ClosedEnvironmentError: As for ``ReToolEnv.reset``.
        """
        with self._exclusive("reset"):
            infos: Info = {}
            for i, arguments in self._openings(seed, options):
                with naming(f"environment {i}"):
                    self._observations[i], info = self.envs[i].reset(**arguments)
                infos = self._add_info(infos, info, i)
            return self._shown(), infos

    async def areset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Does what ``reset`` does, without blocking the event loop."""
        with self._exclusive("areset"):
            infos: Info = {}
            # A problem that is brought along has a gold answer to check.
            for i, arguments in await asyncio.to_thread(self._openings, seed, options):
                with naming(f"environment {i}"):
                    self._observations[i], info = await self.envs[i].areset(**arguments)
                infos = self._add_info(infos, info, i)
            return self._shown(), infos

    def step(
        self,
        actions: Sequence[str],
        *,
        finish: Finish | Sequence[Finish] = "stop",
        stop_reason: object = None,
    ) -> VectorStep:
        """Takes one turn of text in each environment.

        Args:
            actions: The turns.
            finish: As for ``ReToolEnv.step``: one word for all, or a sequence with one for each.
            stop_reason: The same.

        Returns:
            Observations, rewards, terminated, truncated and infos, as described above.

        Raises:
            gymnasium.error.ResetNeeded: No episode was begun, or some are over that are not begun again by themselves.
            gymnasium.error.InvalidAction: The actions are not as many texts as there are environments.
            InvalidOptionError: ``finish`` or ``stop_reason`` is not understood.
            gymnasium.error.ClosedEnvironmentError: The environment was closed, perhaps during the step.
            Exception: As for ``ReToolEnv.step``, from one of the environments; only then have turns been taken.
        """
        with self._exclusive("step"):
            turns = self._turns(actions, finish, stop_reason)
            return self._report(wait_for(together([self._take(turn, _reset) for turn in turns])))

    async def astep(
        self,
        actions: Sequence[str],
        *,
        finish: Finish | Sequence[Finish] = "stop",
        stop_reason: object = None,
    ) -> VectorStep:
        """Does what ``step`` does, without blocking the event loop. If it is cancelled, all attempts are aborted."""
        with self._exclusive("astep"):
            turns = self._turns(actions, finish, stop_reason)
            return self._report(await together([self._take(turn, ReToolEnv.areset) for turn in turns]))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns an attribute of each environment, called with the arguments where it can be called."""
        found = [getattr(env, name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Does what ``call`` does without arguments, as gymnasium has it."""
        return self.call(name)

    def render(self) -> tuple[str | None, ...]:  # type: ignore[override]
        """Returns what the environments' ``render`` returns."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments, and the sandbox if it is their own. Part of ``close``, which may be called again."""
        self._closed = True
        for env in reversed(self.envs):
            env.close()

    def _shown(self) -> Observations:
        return cast(Observations, tuple(self._observations))

    def _openings(self, seed: object, options: Mapping[str, Any] | None) -> list[tuple[int, dict[str, Any]]]:
        """Returns which environments to reset, and with which arguments."""
        seeds = self._seeds(seed)
        rest = dict(options or {})
        mask = self._mask(rest.pop(_MASK)) if _MASK in rest else np.ones(self.num_envs, dtype=np.bool_)
        missing = [i for i, shown in enumerate(self._observations) if shown is None and not mask[i]]
        if missing:
            raise ResetNeeded(f"reset: {_MASK} leaves out environments {missing}, which have no episode yet")
        choices = self._each(rest.pop("problem"), "options: problem") if "problem" in rest else [None] * self.num_envs
        if rest:
            raise InvalidOptionError(
                f'options: unknown {sorted(map(str, rest))}; there are only "problem" and "{_MASK}"'
            )
        openings = []
        for i in np.flatnonzero(mask).tolist():
            arguments: dict[str, Any] = {"seed": seeds[i], "options": None}
            if choices[i] is not None:
                with naming(f"environment {i}"):
                    arguments["options"] = {"problem": self.envs[i].pick(choices[i])}
            openings.append((i, arguments))
        return openings

    def _seeds(self, seed: object) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if _is_seed(seed):
            return [int(seed) + i for i in range(self.num_envs)]
        if _is_row(seed) and len(seed) == self.num_envs and all(one is None or _is_seed(one) for one in seed):
            return [None if one is None else int(one) for one in seed]
        raise InvalidOptionError(
            f"seed: must be None, an integer that is not negative, or {self.num_envs} of these, got {seed!r:.100}"
        )

    def _mask(self, mask: object) -> Flags:
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise InvalidOptionError(
                f"options: {_MASK} must be a numpy array of dtype bool and shape ({self.num_envs},), got {mask!r:.100}"
            )
        if not mask.any():
            raise InvalidOptionError(f"options: {_MASK} must have at least one True")
        return mask

    def _each(self, value: object, name: str) -> Sequence[Any]:
        """Returns a value for each environment: those of a sequence, or the same for all."""
        if not _is_row(value):
            return [value] * self.num_envs
        if len(value) != self.num_envs:
            raise InvalidOptionError(f"{name}: must be one for all or {self.num_envs}, got {len(value)}")
        return list(value)

    def _turns(self, actions: object, finish: object, stop_reason: object) -> list[_Turn]:
        """Checks all that can be wrong with a step, so that it is taken by every environment or by none."""
        missing = [i for i, shown in enumerate(self._observations) if shown is None]
        if missing:
            raise ResetNeeded(f"step: environments {missing} have no episode yet: call reset() first")
        over = [i for i, env in enumerate(self.envs) if env.episode.over]
        if over and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ResetNeeded(f"step: the episodes of environments {over} are over: call reset with {_MASK!r} first")
        if isinstance(actions, str | bytes) or not (isinstance(actions, Sequence) or _is_row(actions)):
            raise InvalidAction(f"step: actions must be a sequence of texts, got {type(actions).__name__}")
        if len(actions) != self.num_envs:
            raise InvalidAction(f"step: there are {self.num_envs} environments, got {len(actions)} actions")
        finishes, reasons = self._each(finish, "finish"), self._each(stop_reason, "stop_reason")
        turns = [_Turn(i, *turn) for i, turn in enumerate(zip(actions, finishes, reasons, strict=True))]
        for turn in turns:
            if turn.i in over:
                continue
            if not isinstance(turn.text, str):
                raise InvalidAction(
                    f"step: an action is the text of one turn (str), got {type(turn.text).__name__} for "
                    f"environment {turn.i}"
                )
            if turn.finish not in get_args(Finish):
                words = ", ".join(get_args(Finish))
                raise InvalidOptionError(
                    f"finish: must be one of {words}, got {turn.finish!r:.100} for environment {turn.i}"
                )
        return turns

    async def _take(self, turn: _Turn, reset: _Reset) -> _Taken:
        """Takes an environment's turn, or begins its next episode."""
        i, env = turn.i, self.envs[turn.i]
        with naming(f"environment {i}"):
            if env.episode.over:
                prompt, info = await reset(env)
                self._observations[i] = prompt
                return _Taken((prompt, 0.0, False, False, info))
            result = await env.astep(turn.text, finish=turn.finish, stop_reason=turn.stop_reason)
            self._observations[i] = result[0]
            if not env.episode.over or self.autoreset_mode is not AutoresetMode.SAME_STEP:
                return _Taken(result)
            prompt, info = await reset(env)
            self._observations[i] = prompt
            return _Taken((prompt, *result[1:4], info), {"final_obs": result[0], "final_info": result[4]})

    def _report(self, taken: Sequence[_Taken]) -> VectorStep:
        """Puts the results of the environments together."""
        if self._closed:
            raise ClosedEnvironmentError("step: the environment was closed before the step had ended")
        infos: Info = {}
        for i, (result, final) in enumerate((one.result, one.final) for one in taken):
            if final is not None:
                infos = self._add_info(infos, final, i)
            infos = self._add_info(infos, result[4], i)
        return (
            self._shown(),
            np.array([one.result[1] for one in taken], dtype=np.float64),
            np.array([one.result[2] for one in taken], dtype=np.bool_),
            np.array([one.result[3] for one in taken], dtype=np.bool_),
            infos,
        )


@dataclass(frozen=True, slots=True)
class _Turn:
    """What an environment is to do in a step."""

    i: int
    text: str
    finish: Finish
    stop_reason: object


@dataclass(frozen=True, slots=True)
class _Taken:
    """What it did; in the mode "SameStep" also how the episode before ended."""

    result: StepResult
    final: Info | None = None


def _is_row(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether it may hold something for each environment: an array without a dimension is one thing for all."""
    return isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _is_seed(value: object) -> TypeGuard[int | np.integer[Any]]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


async def _reset(env: ReToolEnv) -> tuple[str, Info]:
    return env.reset()
