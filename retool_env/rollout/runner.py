"""``run``: several attempts at each of many problems, so many at a time, into a folder.

    with Sandbox() as sandbox, RunFolder(path, problems, asked) as folder:
        await run(problems, engine, codec, sandbox, folder, config, n=16, concurrency=256)

Problems are taken one after the other, all attempts at one before the next, so that a server computes a prompt once.
What an attempt gets does not depend on when it runs: its seed follows from the run's seed, the problem and the sample.

An attempt that a fault ends (the engine's, the sandbox's) is recorded as one and counts neither as right nor as wrong;
when the run is continued it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError, PolicyError, ReToolError, SandboxClosedError
from retool_env.outcome import FAULTS
from retool_env.problems.problem import Problem
from retool_env.protocol.base import EndReason
from retool_env.recorder import Recorder
from retool_env.rollout.attempt import AttemptConfig, AttemptFaultError, AttemptResult, attempt, fill_in, make_codec
from retool_env.rollout.balancer import NoServerError
from retool_env.rollout.engines.base import Engine
from retool_env.rollout.progress import CountingEngine, RunFigures
from retool_env.rollout.store import RunFolder
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec, Tokenizer
from retool_env.trajectory import SampleRecord, Trajectory

_SEED_BITS: Final = 31
"""Every engine takes seeds of that many."""

_ENDS_THE_RUN: Final = (ConfigurationError, NoServerError, SandboxClosedError, AttemptFaultError)
"""What would end every other attempt alike."""


class TooManyFaultsError(ReToolError):
    """Attempts end in faults, one after the other; the message has the last one. Mend it, and continue the run."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Which attempt: the problem, its number, the number of the sample; and its number in the run."""

    number: int
    problem: Problem
    problem_number: int
    sample: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.problem_number}/{self.sample}"


@contextlib.contextmanager
def settled_heap() -> Iterator[None]:
    """Keeps the garbage collector from looking at what is there already, for a process that does nothing but a run.

    Modules, tokenizer and problems stay to the end; each full collection would go through all of them, in which time
    the event loop stands still.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def sample_seed(seed: int, problem_number: int, problem_id: str, sample: int) -> int:
    """Returns the seed of an attempt: another for every problem and sample, and the same whenever it is made."""
    text = f"{seed}/{problem_number}/{sample}/{problem_id}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 64 - _SEED_BITS


def describe(config: AttemptConfig) -> dict[str, Any]:
    """Returns what of the attempts' configuration decides what they are, as JSON values by name, for ``RunFolder``.

    Time-outs and what is done about faults do not: they decide whether an attempt ends in a fault, and such attempts
    are made again.
    """
    how = {"seed", "turn_timeout_s", "max_resumes", "resume_pause_s", "deadline_s", "on_fault"}
    described = config.model_dump(mode="json", exclude=how | {"episode"})
    # The last three are filled in for each attempt, from the sandbox and the tokenizer.
    filled_in = {"reward", "tools", "timeout_s", "memory_mb", "special_tokens"}
    episode = config.episode.model_dump(mode="json", exclude=filled_in)
    episode |= {"reward": config.episode.reward_name, "tools": [tool.name for tool in config.episode.tools]}
    return {**described, "episode": episode}


async def run(
    problems: Sequence[Problem],
    engine: Engine,
    tokenizer: Tokenizer | TokenCodec,
    sandbox: Sandbox,
    folder: RunFolder,
    config: AttemptConfig | None = None,
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
    figures: RunFigures | None = None,
    max_faults_in_a_row: int = 100,
) -> RunFigures:
    """Makes the attempts of a run that are not done yet. If the call is cancelled, what has ended by then is kept.

    Args:
        problems: The problems; those of ``folder``.
        engine: Writes the turns. It is not closed here.
        tokenizer: The model's, or a codec of it.
        sandbox: Runs the code.
        folder: Where the attempts go.
        config: How attempts are made. ``on_fault="raise"`` ends the run at the first fault.
        n: Attempts at each problem.
        concurrency: Attempts at the same time.
        seed: Fixes the attempts' seeds.
        figures: Counts, to be looked at meanwhile; new ones if None.
        max_faults_in_a_row: So many faults without an attempt that ends well end the run.

    Returns:
        The figures.

    Raises:
        ConfigurationError: An option has a value that cannot work, or the rules, the tokenizer and the chat template
            do not fit together.
        NoServerError: All servers are down (see ``Balancer``).
        TooManyFaultsError: See ``max_faults_in_a_row``.
        OSError: The folder cannot be written (a full disk, for example).
    """
    if n < 1 or concurrency < 1 or max_faults_in_a_row < 1:
        raise ConfigurationError(
            f"n, concurrency, max_faults_in_a_row: must be at least 1, got {n}, {concurrency}, {max_faults_in_a_row}"
        )
    config = config or AttemptConfig()
    figures = figures or RunFigures()
    figures.total = len(problems) * n
    figures.before, figures.correct_before = folder.found.attempts, folder.found.correct
    codec = tokenizer if isinstance(tokenizer, TokenCodec) else make_codec(tokenizer, config)
    config = config.model_copy(update={"episode": fill_in(config.episode, codec, sandbox)})
    runner = _Runner(CountingEngine(engine, figures), codec, sandbox, folder, config, figures, max_faults_in_a_row)
    places = _places(problems, n, seed, folder)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, figures.total - figures.before)):
                group.create_task(runner.work(places))
    except ExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return figures


def _places(problems: Sequence[Problem], n: int, seed: int, folder: RunFolder) -> Iterator[_Place]:
    for number in range(len(problems)):
        wanted = [sample for sample in range(n) if not folder.is_done(number, sample)]
        if wanted:
            problem = problems[number]
            for sample in wanted:
                yield _Place(
                    number * n + sample, problem, number, sample, sample_seed(seed, number, problem.id, sample)
                )


@dataclass(slots=True)
class _Runner:
    engine: Engine
    codec: TokenCodec
    sandbox: Sandbox
    folder: RunFolder
    config: AttemptConfig
    figures: RunFigures
    max_faults_in_a_row: int
    faults_in_a_row: int = 0

    async def work(self, places: Iterator[_Place]) -> None:
        for place in places:
            config = self.config.model_copy(update={"seed": place.seed})
            try:
                result = await attempt(
                    place.problem,
                    self.engine,
                    self.codec,
                    self.sandbox,
                    config,
                    number=place.number,
                )
            except _ENDS_THE_RUN:
                raise
            except Exception as error:
                self._failed(place, error)
            else:
                self._ended(place, result)

    def _ended(self, place: _Place, result: AttemptResult) -> None:
        figures, tokens = self.figures, result.tokens
        n_sampled = tokens.n_sampled
        sample = SampleRecord(
            id=place.id,
            problem_number=place.problem_number,
            sample=place.sample,
            seed=place.seed,
            n_prompt=tokens.n_prompt,
            n_sampled=n_sampled,
            n_appended=len(tokens) - tokens.n_prompt - n_sampled,
            resumes=result.resumes,
            generate_s=result.generate_s,
            work_s=result.work_s,
            fault=result.fault,
        )
        self.folder.add(result.record.model_copy(update={"sample": sample}), result)
        figures.resumes += result.resumes
        figures.generate_s += result.generate_s
        figures.work_s += result.work_s
        if result.outcome.ended in FAULTS:
            self._count_fault(result.fault)
            return
        figures.done += 1
        figures.correct += result.outcome.correct
        self.faults_in_a_row = 0

    def _failed(self, place: _Place, error: Exception) -> None:
        """Records an attempt that raised, as far as it is known: that it was begun, and what was raised."""
        fault = str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"
        sample = SampleRecord(
            id=place.id, problem_number=place.problem_number, sample=place.sample, seed=place.seed, fault=fault
        )
        record = _aborted(place.problem, self.config.episode).model_copy(update={"sample": sample})
        self.folder.add(record, None)
        self._count_fault(fault)

    def _count_fault(self, fault: str) -> None:
        self.figures.faults += 1
        self.faults_in_a_row += 1
        if self.faults_in_a_row >= self.max_faults_in_a_row:
            raise TooManyFaultsError(
                f"{self.faults_in_a_row} attempts in a row ended in faults, so the run stops; the last fault: {fault}"
            )


def _aborted(problem: Problem, config: EpisodeConfig) -> Trajectory:
    episode = Episode(problem, config)
    recorder = Recorder(episode)
    episode.fail(EndReason.ABORTED)
    return recorder.trajectory(None)
