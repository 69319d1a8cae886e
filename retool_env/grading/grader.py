r"""Grading an answer: ``grade``, ``grade_answer``, their asynchronous twins, ``check_gold`` and ``shutdown``.

The layers, first to decide wins: the same text after cleaning; exact comparison of numbers, in process; structure
(lists, sets, tuples, intervals) part by part; expressions, parsed by math-verify in a killable child process. Text is
never evaluated as code. A bad answer never raises: it is wrong, or ``timed_out``.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from retool_env.grading.compare import Ask, Method, Verdict, compare, for_parser
from retool_env.grading.extract import balanced, last_boxed, unwrap_boxes
from retool_env.grading.latex import MAX_CHARS, clean
from retool_env.grading.lenient import readings, rounded
from retool_env.grading.numeric import parse_number
from retool_env.grading.presets import check_preset, find_answer
from retool_env.grading.shape import Kind, Shape, has_box, is_not_finite, read_shape
from retool_env.grading.symbolic import LIMIT_S, WORKERS, UndecidedError

_MAX_GOLD_CHARS: Final = 4000
_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Grade:
    """What an answer is worth, and why.

    Attributes:
        correct: The answer equals the gold.
        answer: The answer that was compared, as extracted; None if there was none.
        method: The layer that decided: ``none``, ``text``, ``numeric``, ``structure`` or ``symbolic``.
        reason: Why, in a few words, for logs.
        elapsed_s: Wall-clock seconds of the whole grading.
        timed_out: The comparison hung, ran out of memory or killed its process. ``correct`` is False then, but this is
            not the same as wrong: count it apart.
    """

    correct: bool
    answer: str | None
    method: str
    reason: str
    elapsed_s: float
    timed_out: bool = False


class _WorkerNeededError(Exception):
    """The in-process layers cannot decide."""


def grade_answer(answer: str, gold: str, *, preset: str = "default", limit_s: float = LIMIT_S) -> Grade:
    r"""Grades an answer that was already extracted, such as the content of a box.

    Args:
        answer: The answer; LaTeX or plain text.
        gold: The reference answer; LaTeX or plain text, with or without dollars or a box.
        preset: How strictly they are compared: ``strict`` (the same string), ``default`` or ``lenient``.
        limit_s: Seconds that a worker may spend on this answer. Its start, its queue, and time in which it was ready to
            run but had no core, are not counted.

    Raises:
        TypeError: An argument is not a string.
        ValueError: There is no such preset, ``limit_s`` is not positive, or the gold is empty, too long or not finite
            (``check_gold`` at load time finds these and more). The strict preset takes any gold.
    """
    started = time.perf_counter()
    _check(answer, gold, preset, limit_s)
    if preset == "strict":
        return _same_string(answer, gold, started)
    if (verdict := _integers(answer, gold)) is not None:
        return _grade(verdict, answer, started, timed_out=False)
    verdict, timed_out = _guarded(answer, gold, preset, limit_s)
    return _grade(verdict, answer, started, timed_out)


def grade(
    text: str, gold: str, *, preset: str = "default", answer_line: bool | None = None, limit_s: float = LIMIT_S
) -> Grade:
    r"""Grades what a policy wrote in its last turn.

    Args:
        text: The model's own text of its last turn. Spans of thought, code and tool output are stripped, then the last
            balanced ``\boxed{}`` is taken (without a box, an ``<answer></answer>``).
        gold: The reference answer.
        preset: ``default``; ``strict`` for what verl's ``math_dapo`` pays with ``strict_box_verify``, spans not
            stripped; ``lenient`` for texts of models that were not told the format.
        answer_line: Without a box, also accept a last line ``Answer: 42``. ``strict`` never does, ``lenient`` always.
        limit_s: As for ``grade_answer``.

    Raises:
        TypeError: An argument is not a string.
        ValueError: As for ``grade_answer``; or the preset does not do with answer lines what is asked for.
    """
    started = time.perf_counter()
    _check(text, gold, preset, limit_s, answer_line)
    answer = find_answer(text, preset, answer_line)
    if answer is None:
        return _no_answer_found(started)
    if preset == "strict":
        return _same_string(answer, gold, started)
    verdict, timed_out = _guarded(answer, gold, preset, limit_s)
    return _grade(verdict, answer, started, timed_out)


async def agrade_answer(answer: str, gold: str, *, preset: str = "default", limit_s: float = LIMIT_S) -> Grade:
    """Does what ``grade_answer`` does without blocking the caller's event loop."""
    started = time.perf_counter()
    _check(answer, gold, preset, limit_s)
    if preset == "strict":
        return _same_string(answer, gold, started)
    verdict, timed_out = await _aguarded(answer, gold, preset, limit_s)
    return _grade(verdict, answer, started, timed_out)


async def agrade(
    text: str, gold: str, *, preset: str = "default", answer_line: bool | None = None, limit_s: float = LIMIT_S
) -> Grade:
    """Does what ``grade`` does without blocking the caller's event loop."""
    started = time.perf_counter()
    _check(text, gold, preset, limit_s, answer_line)
    answer = find_answer(text, preset, answer_line)
    if answer is None:
        return _no_answer_found(started)
    if preset == "strict":
        return _same_string(answer, gold, started)
    verdict, timed_out = await _aguarded(answer, gold, preset, limit_s)
    return _grade(verdict, answer, started, timed_out)


def check_gold(gold: str) -> None:
    """Checks, at load time, that a gold answer can be compared with.

    Raises:
        TypeError: The gold is not a string.
        ValueError: The gold is empty, too long, has unbalanced braces, is not a finite number, is mathematics that
            cannot be parsed, or is something that no answer would match (a missing value, a whole solution); the
            message says which and what to do.
    """
    _check_types("", gold)
    shape = _gold_shape(gold)
    if (fault := _no_answer(gold)) is not None:
        raise ValueError(f"gold answer {gold[:80]!r} {fault}")
    if not balanced(gold):
        raise ValueError(f"gold answer {gold[:80]!r} has unbalanced braces")
    try:
        unparsed = _first_unparsed(shape, _asker(LIMIT_S))
    except UndecidedError as error:
        raise ValueError(f"gold answer {gold[:80]!r} cannot be evaluated: {error}") from None
    if unparsed is not None:
        raise ValueError(f"gold answer {gold[:80]!r} cannot be parsed: {unparsed[:80]!r}")


_MISSING: Final = re.compile(
    r"[<#]?\s*(?:none|null|nil|na|n\s*/\s*a|nan|missing|tbd|todo|unknown|not available|not given|no answer|blank"
    r"|(?:see|refer to)\s.*|(?:an? )?(?:image|picture|figure|diagram)|as shown.*)\s*>?",
    re.I,
)
_ENVIRONMENT: Final = "\\begin{"


def _no_answer(gold: str) -> str | None:
    """What is wrong with a gold that can be read and yet is nobody's answer, or None."""
    boxed = last_boxed(gold)
    answer = gold.strip() if boxed is None else boxed.strip()
    text = clean(answer)
    if "####" in answer:
        return "holds a whole solution: take what follows the last '####'"
    if len(answer.splitlines()) > 1 and _ENVIRONMENT not in answer:
        return "has several lines: give the final answer alone, or put it in a \\boxed{}"
    if has_box(text):
        return "has a box beside or inside its answer: give the final answer alone"
    if not any(char.isalnum() for char in text.replace(r"\dots", "")):
        return "has no letter and no digit: it looks like a missing value"
    if _MISSING.fullmatch(text):
        return "looks like a missing value: drop the problem, or write the answer in other words"
    return None


def shutdown() -> None:
    """Ends the worker processes; waits for comparisons in progress. The next grading that needs one starts it again."""
    WORKERS.shutdown()


def _check(text: object, gold: object, preset: str, limit_s: float, answer_line: bool | None = None) -> None:
    _check_types(text, gold)
    if preset != "default":
        check_preset(preset, answer_line)
    if not limit_s > 0:
        raise ValueError(f"limit_s must be more than 0, got {limit_s!r}")


def _check_types(text: object, gold: object) -> None:
    if isinstance(text, str) and isinstance(gold, str):
        return
    for name, value in (("answer", text), ("gold", gold)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {type(value).__name__}")


def _grade(verdict: Verdict, answer: str | None, started: float, timed_out: bool) -> Grade:
    elapsed_s = time.perf_counter() - started
    return Grade(verdict.correct, answer, verdict.method.value, verdict.reason, elapsed_s, timed_out)


def _no_answer_found(started: float) -> Grade:
    return _grade(Verdict(False, Method.NONE, "no answer found"), None, started, False)


def _same_string(answer: str, gold: str, started: float) -> Grade:
    same = answer == gold
    return _grade(Verdict(same, Method.TEXT, "same text" if same else "different text"), answer, started, False)


def _guarded(answer: str, gold: str, preset: str, limit_s: float) -> tuple[Verdict, bool]:
    try:
        return _judge_by(preset, answer, gold, _asker(limit_s)), False
    except UndecidedError as error:
        return Verdict(False, Method.SYMBOLIC, str(error)), True


async def _aguarded(answer: str, gold: str, preset: str, limit_s: float) -> tuple[Verdict, bool]:
    try:
        return _judge_by(preset, answer, gold, _refuse), False
    except _WorkerNeededError:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(WORKERS.executor, _guarded, answer, gold, preset, limit_s)


def _refuse(op: str, gold: str, answer: str) -> bool | None:
    raise _WorkerNeededError


def _asker(limit_s: float) -> Ask:
    """The workers behind one answer's budget of time, which all its questions share."""
    spent_s = 0.0

    def ask(op: str, gold: str, answer: str) -> bool | None:
        nonlocal spent_s
        if spent_s >= limit_s:
            raise UndecidedError(f"no verdict within {limit_s:g} s")
        result, used_s = WORKERS.ask(op, gold, answer, limit_s - spent_s)
        spent_s += used_s
        return result

    return ask


def _judge_by(preset: str, answer: str, gold: str, ask: Ask) -> Verdict:
    verdict = _judge(answer, gold, ask)
    if preset != "lenient" or verdict.correct or verdict.method is Method.NONE or len(answer) > MAX_CHARS:
        return verdict
    for other_gold, other_answer in readings(gold, answer):
        if (other := _judge(other_answer, other_gold, ask)).correct:
            return other
    return rounded(_gold_shape(gold), read_shape(clean(answer)), ask) or verdict


def _judge(answer: str, gold: str, ask: Ask) -> Verdict:
    if (verdict := _integers(answer, gold)) is not None:
        return verdict
    shape = _gold_shape(gold)
    text = answer.strip()
    limit = max(MAX_CHARS, 2 * len(shape.text))
    if len(text) > limit and text.startswith("\\boxed"):
        text = unwrap_boxes(text)
    if len(text) > limit:
        return Verdict(False, Method.TEXT, f"longer than {limit} characters")
    text = clean(text)
    if not text:
        return Verdict(False, Method.NONE, "empty answer")
    if is_not_finite(text):
        return Verdict(False, Method.NUMERIC, "not a finite number")
    return compare(shape, read_shape(text), ask)


def _integers(answer: str, gold: str) -> Verdict | None:
    """Compares two integers, as nearly all are; None if one is something else."""
    value = _gold_integer(gold)
    if value is None or _INTEGER.fullmatch(answer) is None:
        return None
    return _EQUAL if int(answer) == value else _DIFFERENT


_EQUAL: Final = Verdict(True, Method.NUMERIC, "equal")
_DIFFERENT: Final = Verdict(False, Method.NUMERIC, "different numbers")


@lru_cache(maxsize=4096)
def _gold_integer(gold: str) -> int | None:
    shape = _gold_shape(gold)
    return int(shape.text) if shape.kind is Kind.SCALAR and _INTEGER.fullmatch(shape.text) else None


@lru_cache(maxsize=4096)
def _gold_shape(gold: str) -> Shape:
    if len(gold) > _MAX_GOLD_CHARS:
        raise ValueError(f"gold answer of {len(gold)} characters; at most {_MAX_GOLD_CHARS}")
    boxed = last_boxed(gold)
    text = clean(gold if boxed is None else boxed)
    if not text:
        raise ValueError(f"gold answer {gold[:80]!r} is empty")
    if is_not_finite(text):
        raise ValueError(f"gold answer {gold[:80]!r} is not a finite number")
    return read_shape(text)


_WORDED: Final = re.compile(r"\\(?:text|mathrm|mbox)[a-z]*\s*\{\s*[^{}0-9]{2,}\}")


def _first_unparsed(shape: Shape, ask: Ask) -> str | None:
    if shape.kind in (Kind.WORDS, Kind.OPAQUE) or parse_number(shape.text) is not None:
        return None
    if shape.kind is Kind.SCALAR and _WORDED.search(for_parser(shape.text)):
        return None  # a symbol or a label of its own (\text{Area} = 12): compared as text
    if shape.items:
        return next((found for item in shape.items if (found := _first_unparsed(item, ask)) is not None), None)
    return None if shape.kind is not Kind.SCALAR or ask("parses", for_parser(shape.text), "") else shape.text
