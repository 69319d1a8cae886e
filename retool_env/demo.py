"""The demo's engine room: many attempts at once through one sandbox, their trajectories on disk, and a summary."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from retool_env.config import EpisodeConfig
from retool_env.env import ReToolEnv
from retool_env.errors import ConfigurationError
from retool_env.grading.presets import Preset
from retool_env.outcome import FAULTS
from retool_env.problems import Problem
from retool_env.protocol.base import InterpreterMode
from retool_env.rollout.policy import Conversation, Exchange, Reply, TextPolicy
from retool_env.rollout.token_policy import TokenPolicy
from retool_env.sandbox import ExecutionStatus, Sandbox
from retool_env.trajectory import ExecutionRecord, Trajectory, write_jsonl

_SELF_ENDED = (ExecutionStatus.OK, ExecutionStatus.ERROR)


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """An attempt that raised, which a model's output never does: a server gave up, or we have a bug.

    Attributes:
        attempt: Its number, from 0.
        problem_id: The problem.
        error: What it raised.
    """

    attempt: int
    problem_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """What came of a run. Shares and means are over the attempts that count: finished, and without a fault of ours.

    Attributes:
        attempts: Attempts that were asked for.
        counted: Attempts that count.
        correct: Those with a correct answer.
        used_tool: Those that ran code at least once.
        mean_reward: Mean of their shaped rewards; NaN if none counts.
        executions: How many executions of code ended in each status, over all finished attempts.
        retries: Executions that were repeated because the sandbox failed.
        latency_p50_s: Median wall-clock seconds of the executions that ended by themselves (ok or error); NaN if none.
        latency_p99_s: Their 99th percentile.
        ended: How many finished attempts ended for each reason.
        failures: The attempts that raised.
        tier: Sandbox tier.
        protocol: Name of the protocol.
        reward: Name of the reward table.
        wall_s: Seconds of the whole run, the sandbox's start included.
        interpreter: Whether the blocks of an attempt shared one interpreter ("session") or not ("fresh").
        grader: Name of the grader's preset.
        grade_timeouts: Answers that could not be compared within the grader's limits, over all finished attempts.
    """

    attempts: int
    counted: int
    correct: int
    used_tool: int
    mean_reward: float
    executions: Mapping[str, int]
    retries: int
    latency_p50_s: float
    latency_p99_s: float
    ended: Mapping[str, int]
    failures: tuple[AttemptFailure, ...]
    tier: str
    protocol: str
    reward: str
    wall_s: float
    interpreter: InterpreterMode = "fresh"
    grader: Preset = "default"
    grade_timeouts: int = 0

    def rows(self) -> list[tuple[str, str]]:
        """Returns the summary as rows of a table: a name and a value, in order."""
        shown = (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.TIMEOUT)
        others = {status: count for status, count in self.executions.items() if status not in shown}
        if self.retries:
            others["retried"] = self.retries
        rows = [
            ("problems", str(self.attempts)),
            ("accuracy", _share(self.correct, self.counted)),
            ("tool use", _share(self.used_tool, self.counted)),
            (f"mean reward ({self.reward})", "n/a" if math.isnan(self.mean_reward) else f"{self.mean_reward:.3f}"),
            ("executions", str(sum(self.executions.values()))),
            ("errors", str(self.executions.get(ExecutionStatus.ERROR, 0))),
            ("time-outs", str(self.executions.get(ExecutionStatus.TIMEOUT, 0))),
            ("other verdicts", _counts(others)),
            ("latency p50 / p99", f"{_milliseconds(self.latency_p50_s)} / {_milliseconds(self.latency_p99_s)}"),
            ("grading time-outs", str(self.grade_timeouts)),
            ("ended", _counts(self.ended)),
            ("protocol", self.protocol),
            ("interpreter", self.interpreter),
            ("grader", self.grader),
            ("sandbox tier", self.tier),
            ("wall time", f"{self.wall_s:.1f} s"),
        ]
        if self.failures:
            rows.insert(1, ("failed attempts", str(len(self.failures))))
        return rows


async def run_demo(
    problems: Sequence[Problem],
    policy: TextPolicy | TokenPolicy,
    *,
    protocol: str = "code_tags",
    reward: str = "tool_aware",
    interpreter: InterpreterMode = "fresh",
    grader: Preset = "default",
    prompt_template: str | None = None,
    tier: str = "auto",
    timeout_s: float = 5.0,
    concurrency: int = 16,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[], object] | None = None,
) -> DemoSummary:
    """Runs one attempt at every problem, several at once, through one sandbox.

    An attempt that raises is kept as a failure in the summary and costs no other attempt anything. Only what would
    fail every attempt alike is raised, at once; what is in the file by then stays there.

    Args:
        problems: The problems.
        policy: Writes the turns. It is not closed here.
        protocol: Name of the protocol.
        reward: Name of the reward table.
        interpreter: Whether the blocks of an attempt share one interpreter ("session") or not ("fresh").
        grader: Name of the grader's preset.
        prompt_template: A template in place of the protocol's own.
        tier: Name of the sandbox tier.
        timeout_s: Seconds a block of code may run.
        concurrency: Attempts at the same time.
        out: File to which every trajectory is appended as soon as its attempt ends.
        progress: Called after every attempt.

    Raises:
        ConfigurationError: An option has a value that cannot work, or the policy cannot write the protocol.
        SandboxUnavailableError: The tier cannot run on this machine.
        OSError: ``out`` cannot be written (a full disk, for example).
    """
    if concurrency < 1:
        raise ConfigurationError(f"concurrency: must be at least 1, got {concurrency}")
    rules = EpisodeConfig(
        protocol=protocol, reward=reward, interpreter=interpreter, grader=grader, prompt_template=prompt_template
    )
    begin = time.perf_counter()
    trajectories: list[Trajectory] = []
    failures: list[AttemptFailure] = []

    with Sandbox(tier=tier, timeout_s=timeout_s) as sandbox:

        async def work(queue: Iterator[tuple[int, Problem]]) -> None:
            for attempt, problem in queue:
                try:
                    trajectory = await run_attempt(problem, policy, sandbox, rules, attempt)
                except ConfigurationError:
                    raise
                except Exception as error:
                    failures.append(AttemptFailure(attempt, problem.id, error))
                else:
                    if out is not None:
                        _write(out, trajectory)
                    trajectories.append(trajectory)
                if progress is not None:
                    progress()

        queue = iter(list(enumerate(problems)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(problems))):
                    group.create_task(work(queue))
        except ExceptionGroup as raised:
            raise raised.exceptions[0] from None
        used_tier = str(sandbox.tier)
    return _summarise(
        trajectories,
        attempts=len(problems),
        failures=tuple(sorted(failures, key=lambda failure: failure.attempt)),
        tier=used_tier,
        protocol=protocol,
        reward=reward,
        wall_s=time.perf_counter() - begin,
        interpreter=interpreter,
        grader=grader,
    )


async def run_attempt(
    problem: Problem,
    policy: TextPolicy | TokenPolicy,
    sandbox: Sandbox,
    rules: EpisodeConfig | None = None,
    attempt: int = 0,
) -> Trajectory:
    """Runs one attempt to its end: for a policy at text level, the loop between it and a ``ReToolEnv``.

    Args:
        problem: The problem.
        policy: Writes the turns.
        sandbox: Runs the code; stays open.
        rules: Protocol, reward table, interpreter, grader and prompt; the defaults if None.
        attempt: Number of the attempt, which the policy may see.

    Returns:
        The finished trajectory.
    """
    rules = rules or EpisodeConfig()
    if isinstance(policy, TokenPolicy):
        return await policy.attempt(problem, sandbox, rules, attempt)
    protocol = rules.protocol
    env = ReToolEnv(
        [problem],
        protocol=protocol,
        reward=rules.reward,
        interpreter=rules.interpreter,
        grader=rules.grader,
        prompt_template=rules.prompt_template,
        sandbox=sandbox,
    )
    try:
        await env.areset(options={"problem": 0})
        episode = env.episode
        conversation = Conversation(
            problem,
            protocol,
            messages=tuple(episode.messages()),
            # Elsewhere the prompt itself explains the tool, and a server's tool template would only contradict it.
            tools=tuple(episode.tools) if protocol == "tool_calls" else (),
            stop=tuple(episode.stop),
            attempt=attempt,
        )
        while True:
            reply = await policy.act(conversation)
            _, _, terminated, truncated, info = await env.astep(
                reply.text, finish=reply.finish, stop_reason=reply.stop_reason
            )
            if terminated or truncated:
                return env.trajectory()
            observation = env.last_observation
            assert observation is not None  # there is one after every turn but the last
            conversation.exchanges.append(Exchange(_kept(reply, info["kept"]), observation))
    finally:
        env.close()


def _write(out: str | os.PathLike[str], trajectory: Trajectory) -> None:
    """Appends the trajectory; an error names the file, which a full disk does not do by itself."""
    try:
        write_jsonl(out, trajectory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(out)) from error


def _kept(reply: Reply, kept: str) -> Reply:
    """The reply without what the episode dropped; a server's own message only fits where nothing was dropped."""
    whole = kept.strip() == reply.text.strip()
    return dataclasses.replace(reply, text=kept, message=reply.message if whole else None)


def _summarise(
    trajectories: Sequence[Trajectory],
    *,
    attempts: int,
    failures: tuple[AttemptFailure, ...],
    tier: str,
    protocol: str,
    reward: str,
    wall_s: float,
    interpreter: InterpreterMode,
    grader: Preset,
) -> DemoSummary:
    outcomes = [trajectory.outcome for trajectory in trajectories if trajectory.outcome is not None]
    counted = [outcome for outcome in outcomes if outcome.ended not in FAULTS]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    executions = [result for turn in turns for result in turn.results if isinstance(result, ExecutionRecord)]
    latencies = sorted(execution.wall_s for execution in executions if execution.status in _SELF_ENDED)
    return DemoSummary(
        attempts=attempts,
        counted=len(counted),
        correct=sum(outcome.correct for outcome in counted),
        used_tool=sum(outcome.interpreter_calls > 0 for outcome in counted),
        mean_reward=math.fsum(outcome.reward for outcome in counted) / len(counted) if counted else math.nan,
        executions=_count(execution.status.value for execution in executions),
        retries=sum(turn.retries for turn in turns),
        latency_p50_s=_percentile(latencies, 0.50),
        latency_p99_s=_percentile(latencies, 0.99),
        ended=_count(outcome.ended.value for outcome in outcomes),
        failures=failures,
        tier=tier,
        protocol=protocol,
        reward=reward,
        wall_s=wall_s,
        interpreter=interpreter,
        grader=grader,
        grade_timeouts=sum(turn.grade is not None and turn.grade.timed_out for turn in turns),
    )


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values do not exceed (nearest rank)."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "n/a"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _milliseconds(seconds: float) -> str:
    return "n/a" if math.isnan(seconds) else f"{1000 * seconds:.1f} ms"
