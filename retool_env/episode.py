"""``Episode``: one attempt at one problem, as a pure state machine.

It knows the rules and nothing else: no I/O, no clock, no randomness. A driver moves it along:

    episode = Episode(problem, config)
    while not episode.over:
        action = episode.read(generate(episode.messages(), stop=episode.stop))
        if isinstance(action, RunCode):
            episode.observe([run(call) for call in action.calls])
        elif isinstance(action, Feedback):
            episode.observe(())
        elif isinstance(action, Answer):
            episode.finish(grade_answer(action.text, problem.answer))
    print(episode.outcome())

The environment (``ReToolEnv``) and the rollout loop are such drivers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any, Final, Protocol, get_args

from retool_env.config import EpisodeConfig
from retool_env.errors import ConfigurationError, EpisodeError
from retool_env.outcome import FAULTS, Outcome
from retool_env.plain import plain_text
from retool_env.problems.problem import Problem
from retool_env.protocol import get_protocol
from retool_env.protocol.base import (
    Action,
    Answer,
    Ended,
    EndReason,
    Feedback,
    Finish,
    Limits,
    Message,
    Observation,
    RunCode,
)
from retool_env.protocol.observation import render
from retool_env.reward import RewardFacts, compute_reward
from retool_env.sandbox.api import ExecutionResult
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry, ToolResult

_FINISHES: Final = get_args(Finish)
_NO_ACTION_MESSAGE: Final = (
    "this turn held neither code to run nor a final answer; write code, or give the final answer in \\boxed{}"
)


class Verdict(Protocol):
    """What an episode needs of a grade (``retool_env.grading.Grade`` has it).

    With ``on_grade_timeout="fault"`` it is asked for ``timed_out``, too, where it has that.
    """

    @property
    def correct(self) -> bool:
        """Whether the answer equals the gold answer."""


class _Awaits(Enum):
    """What the episode waits for; the value is the method that brings it."""

    TEXT = "read"
    RESULTS = "observe"
    GRADE = "finish"
    NOTHING = "outcome"


class Episode:
    """One attempt at one problem. Not thread-safe; can be copied and pickled (where a custom reward can).

    Attributes:
        problem: The problem; its gold answer is never shown.
        config: The rules.
        registry: The tools.
    """

    def __init__(self, problem: Problem, config: EpisodeConfig | None = None):
        """Opens the attempt.

        Args:
            problem: The problem.
            config: The rules; the defaults if None.

        Raises:
            ConfigurationError: The prompt template or a tool is not valid.
        """
        self.problem = problem
        self.config = config or EpisodeConfig()
        self._protocol = get_protocol(self.config.protocol)
        self.registry: ToolRegistry = self.config.registry()
        self._limits = self.config.limits
        self._markers = (*self._protocol.tags, *self.config.special_tokens)
        self._messages = self._protocol.messages(
            problem.question, self.registry, self._limits, self.config.prompt_template
        )
        self._prompt = "\n\n".join(str(message["content"]) for message in self._messages)
        self._awaits = _Awaits.TEXT
        self._action: Action | None = None
        self._ended: EndReason | None = None
        self._outcome: Outcome | None = None
        self._correct = False
        self._answer: str | None = None
        self._fabricated = False
        self._continues = False  # the last message is an assistant's that the protocol adds to
        self._added: list[str] = []  # to its content: a turn must not cost a copy of the whole conversation
        self._turns = self._observations = self._tool_calls = self._interpreter_calls = self._no_action = 0

    @property
    def stop(self) -> list[str]:
        """Stop strings the engine should use. Best kept in the text it returns; else pass it as ``stop_reason``."""
        return list(self._protocol.stop)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools, as chat templates take them."""
        return self.registry.schemas()

    @property
    def over(self) -> bool:
        """Whether the attempt has ended, so that ``outcome`` has something to tell."""
        return self._awaits is _Awaits.NOTHING

    @property
    def ended(self) -> EndReason | None:
        """Why the attempt ended, or None while it goes on."""
        return self._ended

    @property
    def turns(self) -> int:
        """Turns of text read so far."""
        return self._turns

    @property
    def tool_calls(self) -> int:
        """Calls that have run so far, of any tool."""
        return self._tool_calls

    @property
    def interpreter_calls(self) -> int:
        """Calls of ``code_interpreter`` that have run so far."""
        return self._interpreter_calls

    @property
    def needs_grade(self) -> bool:
        """Whether an answer waits that only grading can judge; without a box it may be wrong by its format."""
        return (
            self._awaits is _Awaits.GRADE
            and isinstance(self._action, Answer)
            and (self._action.boxed or not self.config.require_box)
        )

    def prompt(self) -> str:
        """Returns the opening as plain text: the contents of the opening messages, a blank line between them."""
        return self._prompt

    def messages(self) -> list[Message]:
        """Returns a copy of the whole conversation so far, as chat templates take it.

        Where the protocol continues the assistant's turn, kept text and observations follow one another in the last
        assistant message; generation goes on from its end.
        """
        self._join()
        return [dict(message) for message in self._messages]

    def read(self, text: str, finish: Finish = "stop", stop_reason: object = None) -> Action:
        r"""Reads a turn the policy wrote.

        Surrogates are made valid first. A stop string that the engine dropped is put back. Any text is fine.

        Args:
            text: The turn.
            finish: How generation stopped. A turn cut by ``"length"`` is neither run nor graded.
            stop_reason: What the engine says stopped it: one of ``stop`` if a stop string did. Anything else (None, a
                token's id) is ignored.

        Returns:
            What the turn means. ``RunCode`` and ``Feedback`` want ``observe`` next, ``Answer`` wants ``finish``, and
            after ``Ended`` the attempt is over.

        Raises:
            TypeError: The text is not a string.
            ConfigurationError: ``finish`` is not one of the three words.
            EpisodeError: Not the time to read.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: must be a str, got {type(text).__name__}")
        if finish not in _FINISHES:
            raise ConfigurationError(f"finish: must be one of {', '.join(_FINISHES)}, got {finish!r}")
        self._expect(_Awaits.TEXT)
        text = plain_text(text)
        if len(text) > self.config.max_action_chars:
            text = text[: self.config.max_action_chars]
            finish = "abort" if finish == "abort" else "length"
        elif finish == "stop" and isinstance(stop_reason, str) and stop_reason in self._protocol.stop:
            text = text if text.rstrip().endswith(stop_reason) else text + stop_reason
        self._turns += 1
        action = self._within_budget(self._interpret(text, finish))
        self._action = action
        self._fabricated |= action.fabricated
        self._append_turn(action.kept)
        match action:
            case RunCode() | Feedback():
                self._awaits = _Awaits.RESULTS
            case Answer():
                self._answer = action.text
                self._awaits = _Awaits.GRADE
            case Ended():
                self._end(action.reason)
        return action

    def observe(
        self, results: Sequence[ExecutionResult | ToolResult] = (), *, restarted: Collection[int] = ()
    ) -> Observation:
        """Takes the results of the calls of the last turn, and returns what the policy sees next.

        Args:
            results: One for each call of ``RunCode``, in order; none after ``Feedback``.
            restarted: Which of the results (from 0) ended the interpreter that the attempt's code shares. The policy
                is told that what was defined is lost.

        Raises:
            EpisodeError: Not the time to observe; or the results do not fit the calls; or one is ``UNAVAILABLE``,
                which is no result: call ``fail(EndReason.SANDBOX_UNAVAILABLE)`` instead; or an interpreter was
                restarted where none is shared.
        """
        self._expect(_Awaits.RESULTS)
        if isinstance(self._action, RunCode):
            calls = self._action.calls
            n_executions = self._check_results(calls, results)
            if restarted:
                self._check_restarts(calls, restarted)
            observation = self._shown(calls, results, restarted)
            self._tool_calls += len(calls)
            self._interpreter_calls += n_executions
        else:
            if results or restarted:
                raise EpisodeError(f"observe: there was no call, so there can be no result, got {len(results)}")
            assert isinstance(self._action, Feedback)
            observation = self._rendered((), [ToolResult(self._action.message, is_error=True)], (), self._limits)
        self._observations += 1
        if observation.messages:
            self._join()
            self._messages.extend(dict(message) for message in observation.messages)
            self._continues = False
        else:
            self._added.append(observation.text)
        self._awaits = _Awaits.TEXT
        return observation

    def finish(self, grade: Verdict | None) -> None:
        """Takes the grade of the answer and ends the attempt; one that timed out may be a fault (``on_grade_timeout``).

        Args:
            grade: The grade, or None where the answer was not graded (see ``needs_grade``): it is wrong then.

        Raises:
            EpisodeError: No answer waits for a grade.
        """
        self._expect(_Awaits.GRADE)
        self._correct = self.needs_grade and grade is not None and bool(grade.correct)
        timed_out = self.config.on_grade_timeout == "fault" and getattr(grade, "timed_out", False)
        self._end(EndReason.GRADE_TIMEOUT if timed_out else EndReason.ANSWERED)

    def fail(self, reason: EndReason) -> None:
        """Ends the attempt because of a fault that is not the policy's.

        Args:
            reason: ``SANDBOX_UNAVAILABLE``, ``ABORTED`` or ``GRADE_TIMEOUT``.

        Raises:
            EpisodeError: The attempt is over, or the reason is not a fault.
        """
        if self.over:
            raise EpisodeError(f"fail: the attempt is over ({self._ended})")
        if reason not in FAULTS:
            raise EpisodeError(f"fail: {reason!r} is not a fault; one of {', '.join(sorted(FAULTS))}")
        self._end(reason)

    def outcome(self) -> Outcome:
        """Returns how the attempt came out.

        Raises:
            EpisodeError: The attempt is not over.
            RewardError: A custom reward table returned something that is not a finite number.
        """
        self._expect(_Awaits.NOTHING)
        if self._outcome is None:
            self._outcome = self._settle()
        return self._outcome

    def _expect(self, wanted: _Awaits) -> None:
        if self._awaits is not wanted:
            state = f"the attempt is over ({self._ended})" if self.over else f"{self._awaits.value}() comes next"
            raise EpisodeError(f"{wanted.value}: out of order: {state}")

    def _interpret(self, text: str, finish: Finish) -> Action:
        if finish != "stop":
            return Ended(EndReason.ABORTED if finish == "abort" else EndReason.MAX_LENGTH, kept=text)
        action = self._protocol.parse(text, self.registry)
        if isinstance(action, Ended) and action.reason is EndReason.NO_ACTION and self._may_remind():
            self._no_action += 1
            return Feedback(_NO_ACTION_MESSAGE, action.kept, action.fabricated)
        return action

    def _may_remind(self) -> bool:
        config = self.config
        wanted = config.on_no_action == "feedback" and self._no_action < config.max_no_action
        return wanted and self._turns < config.max_turns

    def _within_budget(self, action: Action) -> Action:
        """Turns an action that the budget no longer allows into an end; a batch of calls runs whole or not at all."""
        if not isinstance(action, RunCode | Feedback):
            return action
        if self._turns >= self.config.max_turns:
            return Ended(EndReason.MAX_TURNS, action.kept, action.fabricated)
        if isinstance(action, RunCode) and self._tool_calls + len(action.calls) > self.config.max_tool_calls:
            return Ended(EndReason.MAX_TOOL_CALLS, action.kept, action.fabricated)
        return action

    def _append_turn(self, kept: str) -> None:
        if not self._continues:
            self._messages.append({"role": "assistant", "content": ""})
            self._continues = True
        self._added.append(kept)

    def _join(self) -> None:
        """Adds to the last message what was kept apart."""
        if self._added:
            self._messages[-1]["content"] = "".join([self._messages[-1]["content"], *self._added])
            self._added.clear()

    def _check_results(self, calls: Sequence[ToolCall], results: Sequence[ExecutionResult | ToolResult]) -> int:
        """Returns how many of the results are executions."""
        if len(results) != len(calls):
            raise EpisodeError(f"observe: {len(calls)} calls were made, got {len(results)} results")
        n_executions = 0
        for call, result in zip(calls, results, strict=True):
            wanted = ExecutionResult if call.name == CODE_INTERPRETER else ToolResult
            if not isinstance(result, wanted):
                raise EpisodeError(f"observe: {call.name} gives a {wanted.__name__}, got {type(result).__name__}")
            if isinstance(result, ExecutionResult):
                n_executions += 1
                if not result.status.ran:
                    raise EpisodeError(
                        "observe: an execution is unavailable, which is not the code's output; "
                        "call fail(EndReason.SANDBOX_UNAVAILABLE)"
                    )
        return n_executions

    def _check_restarts(self, calls: Sequence[ToolCall], restarted: Collection[int]) -> None:
        if self.config.interpreter == "fresh":
            raise EpisodeError("observe: restarted: every block has an interpreter of its own, so none is lost")
        possible = {number for number, call in enumerate(calls) if call.name == CODE_INTERPRETER}
        if not possible.issuperset(restarted):
            raise EpisodeError(f"observe: restarted: {sorted(restarted)} are not all results of {CODE_INTERPRETER}")

    def _shown(
        self, calls: Sequence[ToolCall], results: Sequence[ExecutionResult | ToolResult], restarted: Collection[int]
    ) -> Observation:
        """Returns what the policy sees of results."""
        return self._rendered(calls, results, restarted, self._limits)

    def _rendered(
        self,
        calls: Sequence[ToolCall],
        results: Sequence[ExecutionResult | ToolResult],
        restarted: Collection[int],
        limits: Limits,
    ) -> Observation:
        """Returns results as the policy reads them: clean, no longer than allowed, and without a protocol's tags."""
        outputs = [
            render(result, limits, self._markers, restarted=number in restarted)
            for number, result in enumerate(results)
        ]
        return self._protocol.observe(outputs, calls)

    def _end(self, reason: EndReason) -> None:
        self._ended = reason
        self._awaits = _Awaits.NOTHING

    def _settle(self) -> Outcome:
        assert self._ended is not None
        facts = RewardFacts(
            correct=self._correct,
            answer=self._answer,
            ended=self._ended,
            interpreter_calls=self._interpreter_calls,
            tool_calls=self._tool_calls,
            turns=self._turns,
            observations=self._observations,
            fabricated=self._fabricated,
        )
        reward = None if self._ended in FAULTS else compute_reward(self.config.reward, facts)
        return Outcome(
            reward=0.0 if reward is None else reward.total,
            correct=facts.correct,
            answer=facts.answer,
            tool_calls=facts.tool_calls,
            interpreter_calls=facts.interpreter_calls,
            turns=facts.turns,
            ended=facts.ended,
            fabricated=facts.fabricated,
            breakdown={} if reward is None else reward.breakdown,
        )
