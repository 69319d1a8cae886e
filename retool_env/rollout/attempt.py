"""``attempt``: one attempt at one problem, token by token. The one loop: the runner and every trainer's adapter use it.

    result = await attempt(problem, engine, tokenizer, sandbox, config)
    result.prompt_ids, result.response_ids, result.response_mask, result.response_logprobs, result.reward

The episode decides, the engine writes, the sandbox runs; this is the driver that moves them along and keeps the tokens,
the budgets and the clock.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retool_env.config import EpisodeConfig, explain
from retool_env.driver import TurnWork, adrive
from retool_env.errors import ConfigurationError, ReToolError
from retool_env.interpreter import LazySandbox, make_interpreter
from retool_env.outcome import Outcome
from retool_env.problems.problem import Problem
from retool_env.protocol import get_protocol
from retool_env.protocol.base import EndReason, Message, Observation
from retool_env.recorder import Recorder
from retool_env.rollout.engines.base import Engine, GenerateParams, Generation, TurnLostError
from retool_env.rollout.fitting import FittedEpisode
from retool_env.rollout.policy import Conversation, Exchange, Reply
from retool_env.sandbox.api import ExecutionResult
from retool_env.tokenizer import TokenCodec, Tokenizer
from retool_env.tokens import TokenBudget, TokenTrajectory
from retool_env.trajectory import Trajectory

if TYPE_CHECKING:
    from retool_env.sandbox import Sandbox

_FULL: Final = Generation((), "", (), "length")
"""The turn for which there is no room: empty, and cut by length."""


class AttemptConfig(BaseModel):
    """How attempts are made. Frozen.

    Attributes:
        episode: The rules. The limits of the sandbox and the tokenizer's added tokens are filled in.
        budget: How many tokens an attempt may have.
        temperature: Sampling temperature.
        top_p: Nucleus of the distribution that is sampled.
        top_k: How many of the likeliest tokens are sampled; None for all.
        seed: Fixes the sampling where the engine can. Attempts at one problem need different ones.
        sampling: Further sampling parameters in the engine's own words.
        template_options: Further arguments of the chat template, such as ``{"enable_thinking": False}``.
        turn_timeout_s: Seconds for generating one turn; after them the turn is lost. None leaves it to the engine.
        max_resumes: How often in an attempt a lost turn is generated again.
        resume_pause_s: Seconds before that; doubled for each further time in a row.
        deadline_s: Seconds for the whole attempt; after them it is aborted, a fault. None for none.
        on_fault: What an attempt means that a fault has ended (the sandbox, the engine, the deadline, the grader):
            ``"mask"`` it out of the loss, ``"score"`` it with a reward of 0.0, or ``"raise"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    budget: TokenBudget = Field(default_factory=TokenBudget)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    seed: int | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    template_options: dict[str, Any] = Field(default_factory=dict)
    turn_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_resumes: int = Field(default=3, ge=0)
    resume_pause_s: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    on_fault: Literal["mask", "score", "raise"] = "mask"

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **options):
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise ConfigurationError(explain(error)) from None


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """An attempt that is over.

    Attributes:
        tokens: Its tokens.
        outcome: How it came out.
        record: What happened, turn by turn, as text.
        masked: Nothing in it may be learned from: a fault has ended it, and ``on_fault`` is ``"mask"``.
        fault: What failed, in words; empty if nothing did.
        resumes: Turns that were lost and generated again.
        n_shortened: Observations that were shortened to keep the token budget.
        generate_s: Seconds spent waiting for the engine.
        work_s: Seconds spent running code and grading.
    """

    tokens: TokenTrajectory
    outcome: Outcome
    record: Trajectory
    masked: bool
    fault: str
    resumes: int
    n_shortened: int
    generate_s: float
    work_s: float

    @property
    def reward(self) -> float:
        """What the reward table pays; 0.0 after a fault."""
        return self.outcome.reward

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self.tokens.prompt_ids

    @property
    def response_ids(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens.response_ids

    @property
    def response_mask(self) -> list[int]:
        """1 for each token of the response to be learned from; all 0 if the attempt is masked."""
        mask = self.tokens.response_mask
        return [0] * len(mask) if self.masked else mask

    @property
    def response_logprobs(self) -> list[float]:
        """The logprobs of the sampled tokens, 0.0 for the others."""
        return self.tokens.response_logprobs


class AttemptFaultError(ReToolError):
    """A fault that is not the policy's has ended an attempt, and ``on_fault`` is ``"raise"``. The message says which.

    Attributes:
        result: The attempt, as far as it came.
    """

    def __init__(self, message: str, result: AttemptResult):
        super().__init__(message)
        self.result = result


async def attempt(
    problem: Problem,
    engine: Engine,
    tokenizer: Tokenizer | TokenCodec,
    sandbox: Sandbox | LazySandbox,
    config: AttemptConfig | None = None,
    *,
    number: int = 0,
    trajectory_id: str | None = None,
) -> AttemptResult:
    """Makes one attempt at a problem.

    A turn that is lost with its server is generated again from the last whole turn. If the call is cancelled, the
    engine stops generating and the sandbox is freed.

    Args:
        problem: The problem.
        engine: Writes the turns.
        tokenizer: The model's. A ``TokenCodec`` of it (``make_codec``) saves looking at it anew for each attempt.
        sandbox: Runs the code; stays open.
        config: How the attempt is made.
        number: Number of the attempt in its run, which a scripted policy may look at.
        trajectory_id: Tells the engine which turns belong together; a new one if None.

    Returns:
        The attempt, whatever has ended it.

    Raises:
        AttemptFaultError: A fault has ended the attempt, and ``on_fault`` is ``"raise"``.
        ConfigurationError: The rules, the tokenizer and the chat template do not fit together.
        PolicyError: The engine refuses what it is asked, or its answer makes no sense.
        SandboxError: The sandbox cannot be made, is closed, or has as many sessions as it may have.
        RewardError: A custom reward table returned something that is not a finite number.
    """
    config = config or AttemptConfig()
    codec = tokenizer if isinstance(tokenizer, TokenCodec) else make_codec(tokenizer, config)
    return await _Attempt(problem, engine, codec, sandbox, config, number, trajectory_id or uuid.uuid4().hex).run()


def make_codec(tokenizer: Tokenizer, config: AttemptConfig) -> TokenCodec:
    """Returns the codec of a tokenizer for all attempts of one configuration.

    Raises:
        ConfigurationError: The tokenizer cannot be used.
    """
    tags = get_protocol(config.episode.protocol).tags
    return TokenCodec(tokenizer, tags=tags, template_options=config.template_options)


def fill_in(rules: EpisodeConfig, codec: TokenCodec, sandbox: Sandbox | LazySandbox) -> EpisodeConfig:
    """Returns the rules with the limits of the sandbox and the tokenizer's added tokens; the same object if they agree.

    ``attempt`` does it. Who makes many does it once, which saves a copy each time.
    """
    known: dict[str, Any] = {"special_tokens": codec.added}
    if not isinstance(sandbox, LazySandbox):
        known |= {"timeout_s": sandbox.config.timeout_s, "memory_mb": sandbox.config.memory_mb}
    if all(getattr(rules, name) == value for name, value in known.items()):
        return rules
    return rules.model_copy(update=known)


class _Attempt:
    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        codec: TokenCodec,
        sandbox: Sandbox | LazySandbox,
        config: AttemptConfig,
        number: int,
        trajectory_id: str,
    ):
        self._config = config
        self._engine = engine
        self._episode = FittedEpisode(problem, fill_in(config.episode, codec, sandbox))
        self._episode.fits = self._fits
        self._recorder = Recorder(self._episode)
        self._interpreter = make_interpreter(config.episode.interpreter, sandbox)
        self._probe: tuple[Observation, TokenTrajectory] | None = None
        opening = self._episode.messages()
        # Elsewhere the prompt itself explains the tool, and the template's words on tools would only contradict it.
        tools = tuple(self._episode.tools) if config.episode.protocol == "tool_calls" else ()
        self._tokens = TokenTrajectory.open(codec, opening, tools=tools, budget=config.budget)
        self._conversation = Conversation(
            problem,
            config.episode.protocol,
            messages=tuple(opening),
            tools=tools,
            stop=tuple(self._episode.stop),
            attempt=number,
        )
        self._trajectory_id = trajectory_id
        self._sampling: dict[str, Any] = {
            "stop": tuple(self._episode.stop),
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "seed": config.seed,
            "extra": config.sampling,
            "trajectory_id": trajectory_id,
            "conversation": self._conversation,
        }
        self._full = False
        self._fault = ""
        self._resumes = 0
        self._generate_s = self._work_s = 0.0

    async def run(self) -> AttemptResult:
        try:
            async with asyncio.timeout(self._config.deadline_s) as deadline:
                await self._turns()
        except TimeoutError:
            if not deadline.expired():
                raise
            self._abort(f"the attempt took longer than its deadline of {self._config.deadline_s:g} s")
        finally:
            self._interpreter.close()
            release = getattr(self._engine, "release", None)
            if release is not None:
                release(self._trajectory_id)
        return self._result()

    async def _turns(self) -> None:
        while not self._episode.over:
            started = perf_counter()
            try:
                generation = await self._generate()
            except TurnLostError as error:
                self._abort(f"a turn was lost {self._resumes + 1} times, the last time: {error}")
                return
            finally:
                self._generate_s += perf_counter() - started
            started = perf_counter()
            try:
                await self._take(generation)
            finally:
                self._work_s += perf_counter() - started

    async def _generate(self) -> Generation:
        """Generates the next turn; one that is lost, again.

        Raises:
            TurnLostError: It was lost more often than is allowed.
        """
        room = self._tokens.room()
        if self._full or room == 0:
            return _FULL
        params = GenerateParams(max_tokens=room, **self._sampling)
        pause_s = self._config.resume_pause_s
        while True:
            lost: TurnLostError
            try:
                generation = await self._ask(params)
                if generation.finish_reason != "abort":
                    return generation
                lost = TurnLostError("the engine aborted it")
            except TurnLostError as error:
                lost = error
            except TimeoutError:
                lost = TurnLostError(f"it took longer than {self._config.turn_timeout_s} s")
            if self._resumes >= self._config.max_resumes:
                raise lost
            self._resumes += 1
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _ask(self, params: GenerateParams) -> Generation:
        limit_s = self._config.turn_timeout_s
        if limit_s is None:
            return await self._engine.generate(self._tokens.ids, params)
        async with asyncio.timeout(limit_s):
            return await self._engine.generate(self._tokens.ids, params)

    async def _take(self, generation: Generation) -> None:
        """Reads a turn, keeps its tokens, does what it asks for and appends what the policy sees next."""
        started = perf_counter()
        episode = self._episode
        action = episode.read(generation.text, generation.finish_reason, generation.stop_reason)
        if generation is not _FULL:
            self._tokens.add_turn(generation.ids, generation.logprobs, generation.text, action.kept)
        done = TurnWork()
        try:
            done = await adrive(episode, action, self._interpreter)
        finally:
            self._recorder.add_turn(
                generation.text,
                generation.finish_reason,
                generation.stop_reason,
                action,
                done,
                perf_counter() - started,
            )
        if episode.ended is EndReason.SANDBOX_UNAVAILABLE:
            failure = done.results[-1]
            words = failure.stderr.strip() if isinstance(failure, ExecutionResult) else ""
            self._fault = f"the sandbox was not available: {words}"
        elif episode.ended is EndReason.GRADE_TIMEOUT:
            self._fault = "the answer could not be graded within the grader's limits"
        if done.observation is not None:
            self._show(generation, action.kept, done.observation)

    def _show(self, generation: Generation, kept: str, observation: Observation) -> None:
        whole = kept.strip() == generation.text.strip()
        reply = Reply(kept, message=generation.message if whole else None)
        self._conversation.exchanges.append(Exchange(reply, observation))
        if self._probe is None or self._probe[0] != observation:
            self._probe_with(observation, self._episode.messages())
        assert self._probe is not None
        tokens, self._probe = self._probe[1], None
        if tokens.within_budget():
            self._tokens = tokens
        else:  # not even the shortest form fits: there is no next turn
            self._full = True

    def _fits(self, observation: Observation) -> bool:
        tokens = self._probe_with(observation, [*self._episode.messages(), *observation.messages])
        return tokens.within_budget()

    def _probe_with(self, observation: Observation, messages: list[Message]) -> TokenTrajectory:
        """Appends an observation to a branch, which becomes the trajectory if this is what the policy will see."""
        tokens = self._tokens.branch()
        if observation.messages:
            tokens.add_messages(messages, len(observation.messages))
        else:
            tokens.add_text(observation.text)
        self._probe = (observation, tokens)
        return tokens

    def _abort(self, why: str) -> None:
        if not self._episode.over:
            self._fault = why
            self._episode.fail(EndReason.ABORTED)

    def _result(self) -> AttemptResult:
        outcome = self._episode.outcome()
        result = AttemptResult(
            tokens=self._tokens,
            outcome=outcome,
            record=self._recorder.trajectory(self._interpreter.tier),
            masked=outcome.fault and self._config.on_fault == "mask",
            fault=self._fault,
            resumes=self._resumes,
            n_shortened=self._episode.n_shortened,
            generate_s=self._generate_s,
            work_s=self._work_s,
        )
        if outcome.fault and self._config.on_fault == "raise":
            raise AttemptFaultError(
                f"problem {self._episode.problem.id!r:.80}: the attempt ended as {outcome.ended}: {self._fault}", result
            )
        return result
