"""What is shown of an attempt, whoever shows it: blocks with a title, notes and parts. All of its text is untrusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from retool_env.outcome import FAULTS
from retool_env.trajectory import ExecutionRecord, GradeRecord, OutcomeRecord, ToolRecord, Trajectory, TurnRecord

Look = Literal["neutral", "good", "bad", "warn"]
"""How a block's title looks: what went well, what went wrong, what is nobody's fault."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a block's text.

    Attributes:
        text: The text, as it was recorded.
        kind: Code is coloured.
        label: What it is, where that does not go without saying.
    """

    text: str
    kind: Literal["text", "code"] = "text"
    label: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A titled piece of an attempt.

    Attributes:
        kind: What it tells of.
        title: Its heading.
        notes: Short facts that stand beside the heading.
        parts: Its text, in order.
        facts: Names and values, shown below each other.
        look: How the title looks.
    """

    kind: Literal["problem", "turn", "result", "observation", "grade", "end"]
    title: str
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    look: Look = "neutral"


def opening_blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields what is shown of the opening."""
    rules = trajectory.rules
    notes = [f"protocol {rules.protocol}", f"{rules.interpreter} interpreter", f"reward {rules.reward}"]
    if rules.tools:
        notes.append(f"tools {', '.join(rules.tools)}")
    yield Block("problem", f"problem {trajectory.problem.id}", tuple(notes), (Part(trajectory.prompt),))


def turn_blocks(number: int, turn: TurnRecord) -> Iterator[Block]:
    """Yields what is shown of a turn; numbers start at 1."""
    notes = [] if turn.finish == "stop" else [f"finish {turn.finish}"]
    if turn.fabricated:
        notes.append("invents tool output")
    if turn.retries:
        notes.append(f"{turn.retries} retried after a fault of the sandbox")
    notes.append(seconds(turn.elapsed_s))
    parts = [*_kept_parts(turn)]
    if turn.text.startswith(turn.kept) and (dropped := turn.text[len(turn.kept) :]).strip():
        parts.append(Part(dropped, label="written past the turn, dropped"))
    if turn.message:
        parts.append(Part(turn.message, label="what was wrong with it"))
    look: Look = "warn" if turn.fabricated or turn.action in ("feedback", "ended") else "neutral"
    yield Block("turn", f"turn {number}: {turn.action}", tuple(notes), tuple(parts), look=look)
    yield from came_of_it_blocks(turn)


def came_of_it_blocks(turn: TurnRecord) -> Iterator[Block]:
    """Yields what came of a turn: how its calls ended, what the policy was shown, how the answer was graded."""
    for position, result in enumerate(turn.results):
        if isinstance(result, ExecutionRecord):
            yield _execution_block(result, turn.observation)
        else:
            name = turn.calls[position].name if position < len(turn.calls) else "tool"
            yield _tool_block(name, result, turn.observation)
    if turn.observation:
        yield Block("observation", "observation", parts=(Part(turn.observation),))
    if turn.grade is not None:
        yield _grade_block(turn.grade)


def outcome_blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields what is shown of the end; nothing while the attempt goes on."""
    outcome = trajectory.outcome
    if outcome is None:
        return
    parts = ", ".join(f"{name} {part:+.3g}" for name, part in outcome.breakdown.items())
    taken_s = sum(turn.elapsed_s for turn in trajectory.turns)
    notes = [counted(outcome.turns, "turn"), counted(outcome.tool_calls, "tool call"), seconds(taken_s)]
    if trajectory.sandbox_tier is not None:
        notes.append(f"sandbox {trajectory.sandbox_tier}")
    facts = (
        ("answer", "none" if outcome.answer is None else outcome.answer),
        ("gold", trajectory.problem.answer),
        ("verdict", verdict(outcome)),
        ("reward", f"{outcome.reward:.3g}" + (f" = {parts}" if parts else "")),
    )
    yield Block("end", f"end: {outcome.ended}", tuple(notes), facts=facts, look=_LOOKS[verdict(outcome)])


def blocks(trajectory: Trajectory) -> Iterator[Block]:
    """Yields all that is shown of an attempt, in order."""
    yield from opening_blocks(trajectory)
    for number, turn in enumerate(trajectory.turns, start=1):
        yield from turn_blocks(number, turn)
    yield from outcome_blocks(trajectory)


Verdict = Literal["correct", "wrong", "fault", "unfinished"]

_LOOKS: dict[Verdict, Look] = {"correct": "good", "wrong": "bad", "fault": "warn", "unfinished": "neutral"}


def verdict(outcome: OutcomeRecord | None) -> Verdict:
    """Returns how an attempt came out, in a word; a fault is nobody's wrong answer."""
    if outcome is None:
        return "unfinished"
    if outcome.ended in FAULTS:
        return "fault"
    return "correct" if outcome.correct else "wrong"


def seconds(value: float) -> str:
    """Returns a time for people: ``"0.4 ms"``, ``"12 ms"``, ``"3.21 s"``."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"


def counted(count: int, thing: str) -> str:
    """Returns ``"1 turn"``, ``"2 turns"``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _kept_parts(turn: TurnRecord) -> Sequence[Part]:
    """The text that counts, with the code in it set apart; code that is quoted in it (as in JSON) follows it.

    Code stands at the end of what is kept, so its last occurrence is taken: ``x`` may be in the prose, too.
    """
    head = turn.kept
    found: list[Part] = []
    quoted: list[Part] = []
    for source in reversed([*_sources(turn)]):
        code = source.strip("\r\n")
        before, same, after = head.rpartition(code) if code else ("", "", "")
        if same:
            found += [Part(after), Part(code, "code")]
            head = before
        else:
            quoted.append(Part(source, "code", "the code it calls"))
    found.append(Part(head))
    return [part for part in (*reversed(found), *reversed(quoted)) if part.text]


def _sources(turn: TurnRecord) -> Iterator[str]:
    for call in turn.calls:
        if isinstance(call.arguments, dict) and isinstance(code := call.arguments.get("code"), str):
            yield code


def _execution_block(result: ExecutionRecord, observation: str) -> Block:
    notes = [seconds(result.wall_s), f"cpu {seconds(result.cpu_s)}"]
    if result.queue_s >= 0.001:
        notes.append(f"waited {seconds(result.queue_s)}")
    if result.error_class:
        notes.append(result.error_class)
    if result.exit_code:
        notes.append(f"exit code {result.exit_code}")
    if result.truncated:
        notes.append("output beyond the limit dropped")
    if result.restarted:
        notes.append("interpreter restarted")
    outputs = (("standard output", result.stdout), ("standard error", result.stderr))
    parts = tuple(Part(text, label=label) for label, text in outputs if not _shown(text, observation))
    look: Look = "good" if result.status == "ok" else "bad" if result.status.ran else "warn"
    return Block("result", f"interpreter: {result.status}", tuple(notes), parts, look=look)


def _tool_block(name: str, result: ToolRecord, observation: str) -> Block:
    parts = () if _shown(result.text, observation) else (Part(result.text),)
    look: Look = "bad" if result.is_error else "good"
    return Block("result", f"{name}: {'error' if result.is_error else 'ok'}", parts=parts, look=look)


def _shown(text: str, observation: str) -> bool:
    """Whether the observation shows all of an output, so that it need not be shown again."""
    return text.strip() in observation


def _grade_block(grade: GradeRecord) -> Block:
    notes: Sequence[str] = [f"by {grade.method}", *([grade.reason] if grade.reason else []), seconds(grade.elapsed_s)]
    if grade.timed_out:
        notes = [*notes, "timed out"]
    title = "grade: correct" if grade.correct else "grade: wrong"
    return Block("grade", title, tuple(notes), look="good" if grade.correct else "bad")
