"""``AttemptFacts``: what a report counts of one attempt. A few numbers and its answer, so that many can be looked at.

Blocks are the ``code_interpreter`` calls that were allowed to run; one passed if its code ran to its end (status
``ok``), and failed if it ran and did not. A block that the sandbox could not run is neither.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from retool_env.protocol.base import EndReason
from retool_env.report.blocks import Verdict, verdict
from retool_env.sandbox.api import ExecutionStatus
from retool_env.tools import CODE_INTERPRETER
from retool_env.trajectory import ExecutionRecord, Trajectory, TurnRecord

_KEPT_CHARS: Final = 200
_SOURCE_LINES: Final = 20
_CONSTANT: Final = r"(?:[-+]?[0-9][0-9_.eE]*|\"[^\"\\]*\"|'[^'\\]*'|[A-Za-z_]\w*)"
_IDLE_LINE: Final = re.compile(
    rf"\s*(?:\.\.\.|(?:[A-Za-z_]\w*\s*=\s*)?{_CONSTANT}|print\(\s*(?:{_CONSTANT}(?:\s*,\s*{_CONSTANT})*)?\s*\))?\s*(?:#.*)?"
)
"""A line that computes nothing: a comment, a constant or a name, one assigned to a name, or printed."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How many tokens an attempt has.

    Attributes:
        prompt: Tokens of the prompt.
        sampled: Tokens the policy sampled (mask 1).
        appended: Tokens after the prompt that it was shown: observations and template text (mask 0).
    """

    prompt: int
    sampled: int
    appended: int

    @property
    def response(self) -> int:
        """Tokens after the prompt."""
        return self.sampled + self.appended


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block of code and how it went.

    Attributes:
        status: How it ended.
        error_class: What the code raised, as it claims.
        lines: Lines of the code that are not blank.
        wall_s: Seconds it ran.
        cpu_s: Seconds of CPU time.
        queue_s: Seconds it waited for its turn.
        silent: It passed and printed nothing.
        repeated: The same code ran before in the attempt, in an interpreter that remembers nothing.
        constant: Nothing in it computes: comments, ``pass``, constants, and printing of constants.
        idle: It can have told the policy nothing that it did not know: repeated, constant, or silent in an interpreter
            that forgets what it defined.
    """

    status: ExecutionStatus
    error_class: str
    lines: int
    wall_s: float
    cpu_s: float
    queue_s: float
    silent: bool
    repeated: bool
    constant: bool
    idle: bool

    @property
    def passed(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is ExecutionStatus.OK


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What a report counts of one attempt.

    Attributes:
        problem_key: Same for attempts at one problem: a digest of id, question and gold answer, so that two problems
            with one id are not mixed up.
        problem_id: The problem's id; its first 200 characters.
        source: Where the problem comes from; the same.
        verdict: How it came out. Faults and unfinished attempts are counted, and left out of every figure.
        ended: Why it ended; empty while it goes on.
        reward: What the reward table paid; 0.0 while it goes on.
        bonus: What of it was not paid for the answer (all parts but ``base``).
        reward_name: Name of the reward table.
        interpreter: Whether its blocks shared an interpreter.
        answer: The final answer, or None.
        n_turns: Turns of text.
        n_feedback: Turns that were answered with feedback: malformed calls, and what held neither code nor an answer.
        n_tool_calls: Calls that ran, of any tool.
        n_retries: Executions that were repeated because the sandbox failed.
        blocks: The blocks, in order.
        first_turn: The turn of the first block, from 1; None if there is no block.
        first_position: Share of the response that came before the first block's code, from 0 to 1, in characters.
        policy_chars: Characters the policy wrote and that were kept.
        response_chars: The same with the observations.
        fabricated: It invented an observation in at least one turn.
        grade_s: Seconds of grading.
        grade_timed_out: The answer could not be compared within the grader's limits.
        elapsed_s: Seconds of all its turns, without the policy's own time.
        generate_s: Seconds spent waiting for the engine, where that is known.
        n_resumes: Turns that were lost with their server and generated again.
        tokens: How many tokens it has, where that is known.
        no_room: Its prompt left no room for a turn.
    """

    problem_key: str
    problem_id: str
    source: str
    verdict: Verdict
    ended: str
    reward: float
    bonus: float
    reward_name: str
    interpreter: str
    answer: str | None
    n_turns: int
    n_feedback: int
    n_tool_calls: int
    n_retries: int
    blocks: tuple[BlockFacts, ...]
    first_turn: int | None
    first_position: float | None
    policy_chars: int
    response_chars: int
    fabricated: bool
    grade_s: float
    grade_timed_out: bool
    elapsed_s: float
    generate_s: float = 0.0
    n_resumes: int = 0
    tokens: TokenCounts | None = None
    no_room: bool = False

    @property
    def counted(self) -> bool:
        """Whether figures are taken over it: it is over, and no fault has ended it."""
        return self.verdict in ("correct", "wrong")

    @property
    def n_passed(self) -> int:
        """Blocks that passed."""
        return sum(block.passed for block in self.blocks)

    @property
    def n_ran(self) -> int:
        """Blocks that ran, whatever came of them."""
        return sum(block.status.ran for block in self.blocks)

    @property
    def failed(self) -> bool:
        """Whether a block failed."""
        return self.n_passed < self.n_ran

    @property
    def repaired(self) -> bool:
        """Whether a later block passed after one that failed."""
        ran = [block.passed for block in self.blocks if block.status.ran]
        return False in ran and True in ran[ran.index(False) :]


def facts_of(trajectory: Trajectory, tokens: TokenCounts | None = None) -> AttemptFacts:
    """Returns what a report counts of an attempt. Linear in its length; never raises on a record.

    Args:
        trajectory: The attempt.
        tokens: How many tokens it has; None takes what the record says (``sample``), where it is of a run.
    """
    sample = trajectory.sample
    if sample is not None and tokens is None:
        tokens = TokenCounts(sample.n_prompt, sample.n_sampled, sample.n_appended)
    outcome, turns, problem = trajectory.outcome, trajectory.turns, trajectory.problem
    first_turn, before_first = _first_block(turns)
    policy_chars = sum(len(turn.kept) for turn in turns)
    response_chars = policy_chars + sum(len(turn.observation) for turn in turns)
    blocks = tuple(_blocks(turns, forgets=trajectory.rules.interpreter == "fresh"))
    return AttemptFacts(
        problem_key=_key(problem.id, problem.question, problem.answer),
        problem_id=problem.id[:_KEPT_CHARS],
        source=problem.source[:_KEPT_CHARS],
        verdict=verdict(outcome),
        ended="" if outcome is None else str(outcome.ended),
        reward=0.0 if outcome is None else outcome.reward,
        bonus=0.0 if outcome is None else sum(part for name, part in outcome.breakdown.items() if name != "base"),
        reward_name=trajectory.rules.reward,
        interpreter=trajectory.rules.interpreter,
        answer=None if outcome is None else outcome.answer,
        n_turns=len(turns),
        n_feedback=sum(turn.action == "feedback" for turn in turns),
        n_tool_calls=sum(block.status.ran for block in blocks) if outcome is None else outcome.tool_calls,
        n_retries=sum(turn.retries for turn in turns),
        blocks=blocks,
        first_turn=first_turn,
        first_position=None if first_turn is None else before_first / max(1, response_chars),
        policy_chars=policy_chars,
        response_chars=response_chars,
        fabricated=any(turn.fabricated for turn in turns),
        grade_s=sum(turn.grade.elapsed_s for turn in turns if turn.grade is not None),
        grade_timed_out=any(turn.grade is not None and turn.grade.timed_out for turn in turns),
        elapsed_s=sum(turn.elapsed_s for turn in turns),
        generate_s=0.0 if sample is None else sample.generate_s,
        n_resumes=0 if sample is None else sample.resumes,
        tokens=tokens,
        no_room=sample is not None and sample.n_sampled == 0 and _ended_at_once(trajectory),
    )


def _ended_at_once(trajectory: Trajectory) -> bool:
    return trajectory.ended is EndReason.MAX_LENGTH and len(trajectory.turns) == 1 and not trajectory.turns[0].text


def _key(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _executions(turns: tuple[TurnRecord, ...]) -> Iterator[tuple[int, str, ExecutionRecord]]:
    """Yields turn (from 0), code and result of every block."""
    for number, turn in enumerate(turns):
        for position, result in enumerate(turn.results):
            if isinstance(result, ExecutionRecord):
                call = turn.calls[position] if position < len(turn.calls) else None
                yield number, "" if call is None else _source(call.name, call.arguments), result


def _source(name: str, arguments: Any) -> str:
    code = arguments.get("code") if name == CODE_INTERPRETER and isinstance(arguments, dict) else None
    return code if isinstance(code, str) else ""


def _blocks(turns: tuple[TurnRecord, ...], forgets: bool) -> Iterator[BlockFacts]:
    seen: set[str] = set()
    for _, code, result in _executions(turns):
        silent = result.status is ExecutionStatus.OK and not (result.stdout.strip() or result.stderr.strip())
        repeated = forgets and code in seen
        constant = _is_constant(code)
        seen.add(code)
        yield BlockFacts(
            status=result.status,
            error_class=result.error_class[:_KEPT_CHARS],
            lines=sum(not line.isspace() and bool(line) for line in code.split("\n")),
            wall_s=result.wall_s,
            cpu_s=result.cpu_s,
            queue_s=result.queue_s,
            silent=silent,
            repeated=repeated,
            constant=constant,
            idle=repeated or constant or (silent and forgets),
        )


def _is_constant(code: str) -> bool:
    """Whether nothing in the code computes, as far as its lines tell one by one: hostile code is not parsed."""
    lines = code.split("\n", _SOURCE_LINES)
    return len(lines) <= _SOURCE_LINES and all(
        len(line) <= _KEPT_CHARS and _IDLE_LINE.fullmatch(line) is not None for line in lines
    )


def _first_block(turns: tuple[TurnRecord, ...]) -> tuple[int | None, int]:
    """The turn of the first block, from 1, and how many characters of the response come before its code."""
    for number, code, _ in _executions(turns):
        before = sum(len(turn.kept) + len(turn.observation) for turn in turns[:number])
        kept = turns[number].kept
        place = kept.find(code) if code else -1
        return number + 1, before + (place if place >= 0 else len(kept))
    return None, 0
