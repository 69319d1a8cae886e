"""Whether two answers are the same: structure against structure, numbers exactly, expressions through the worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from retool_env.grading.latex import clean, to_parser
from retool_env.grading.names import has_variable, is_name, may_be_name
from retool_env.grading.numeric import (
    Number,
    decimal_text,
    keeps_sign,
    may_stand_for_irrational,
    parse_number,
    same_number,
)
from retool_env.grading.shape import Kind, Shape, read_shape
from retool_env.grading.units import read_unit, with_currency

Ask = Callable[[str, str, str], bool | None]
"""Asks the symbolic worker: (operation, gold, answer) to a result, None where a side cannot be parsed."""


class Method(StrEnum):
    """Which layer decided. Strings on the wire."""

    NONE = "none"
    """There was no answer to compare."""
    TEXT = "text"
    """The cleaned texts are the same, or could only be compared as texts."""
    NUMERIC = "numeric"
    """Exact comparison of numbers, or a number against something that is not one."""
    STRUCTURE = "structure"
    """The two differ in kind or number of parts."""
    SYMBOLIC = "symbolic"
    """The worker's."""


class Verdict(NamedTuple):
    """What a comparison found: the answer is correct or not, which layer says so, and why (in a few words)."""

    correct: bool
    method: Method
    reason: str


_ORDERED: Final = (Kind.TUPLE, Kind.INTERVAL)
_UNORDERED: Final = (Kind.LIST, Kind.SET, Kind.UNION)
_SEVERAL: Final = (Kind.LIST, Kind.SET)


def compare(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    """Compares two shapes. Raises only what ``ask`` raises."""
    if _squeeze(gold.text) == _squeeze(answer.text) and (gold.name == answer.name or not (gold.name and answer.name)):
        return Verdict(gold.brackets == answer.brackets, Method.TEXT, "same text")
    if Kind.OPAQUE in (gold.kind, answer.kind) or Kind.WORDS in (gold.kind, answer.kind):
        return Verdict(False, Method.TEXT, "different text")
    if answer.kind is Kind.CHAIN and gold.kind is not Kind.CHAIN:
        solution = gold.name and gold.kind is Kind.SCALAR and not has_variable(gold.text)
        return (_solution if solution else _chain)(gold, answer, ask)
    if Kind.EQUATION in (gold.kind, answer.kind) or _renamed(gold, answer):
        return _equations(gold, answer, ask)
    if gold.kind is Kind.SCALAR and answer.kind is Kind.SCALAR:
        if _CHOICE.search(answer.text) and not _CHOICE.search(gold.text):
            return Verdict(False, Method.STRUCTURE, "leaves the choice to the reader")
        return _scalars(gold.text, answer.text, ask)
    return _parts(gold, answer, ask)


_CHOICE: Final = re.compile(r"(?<![A-Za-z])(?:max|min)(?![A-Za-z])")
_LOOSE_SPACE: Final = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def _squeeze(text: str) -> str:
    """Removes spaces that mean nothing; ``1 1/4`` keeps its own."""
    return _LOOSE_SPACE.sub("", text)


def _renamed(gold: Shape, answer: Shape) -> bool:
    return bool(gold.name and answer.name) and _squeeze(gold.name) != _squeeze(answer.name)


def _scalars(gold: str, answer: str, ask: Ask) -> Verdict:
    gold_number, answer_number = parse_number(gold), parse_number(answer)
    if gold_number is not None and answer_number is not None:
        same = same_number(gold_number, answer_number)
        return Verdict(same, Method.NUMERIC, "equal" if same else "different numbers")
    if (infinite := _infinite(gold, answer)) is not None:
        return Verdict(infinite, Method.STRUCTURE, "equal" if infinite else "infinity in an expression")
    if gold_number is None and answer_number is None:
        if not _same_case(gold, answer):
            return Verdict(False, Method.STRUCTURE, "variables differ in case")
        return _asked(ask("equal", for_parser(gold), for_parser(answer)))
    if gold_number is not None and (bomb := _too_large(answer)):
        return Verdict(False, Method.NUMERIC, bomb)
    number, written, expression = (
        (gold_number, gold, answer) if gold_number is not None else (answer_number, answer, gold)
    )
    assert number is not None
    return _number_against(number, for_parser(expression), ask, degrees="°" in written)


_SCRIPT: Final = re.compile(r"[_^]\s*(?:\{[^{}]*\}|\\infty)")


def _infinite(gold: str, answer: str) -> bool | None:
    r"""Whether both are the same infinity, or None where neither is infinite. The limits of sums and the like are not.

    Infinity swallows what stands beside it (``5 + \infty``, ``3 + 5/\infty``), and with it a second answer.
    """
    if not any(r"\infty" in _SCRIPT.sub("", text) for text in (gold, answer)):
        return None
    left, right = (_squeeze(text).removeprefix("+") for text in (gold, answer))
    return left == right


_TRAILING_UNIT: Final = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{[^{}]*\}(?:\s*\^\s*\{?\s*[23]\s*\}?)?$")
_CURRENCY: Final = re.compile(r"\\?[$]|[€£¥]")
_TOKEN: Final = re.compile(r"\\?[A-Za-z]+")


def for_parser(text: str) -> str:
    r"""Writes a cleaned expression for the parser, without a ``\text`` unit at its end."""
    unit = _TRAILING_UNIT.search(text)
    currency = _CURRENCY.search(text)
    if unit is not None and unit.start() > 0 and with_currency(currency and currency[0], read_unit(unit.group())):
        text = text[: unit.start()].rstrip()
    return to_parser(text)


def _same_case(gold: str, answer: str) -> bool:
    """Whether no variable is written large on one side and small on the other: the parser takes both for one."""
    left, right = _variables(gold), _variables(answer)
    small_left, small_right = ({name.lower() for name in names} for names in (left - right, right - left))
    return not small_left & small_right


def _variables(text: str) -> set[str]:
    """Commands as they are, and every other letter for itself."""
    names: set[str] = set()
    for token in _TOKEN.findall(text):
        names.update([token] if token.startswith("\\") else token)
    return names


def _number_against(number: Number, expression: str, ask: Ask, *, degrees: bool) -> Verdict:
    value = rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}"
    verdict = _asked(ask("equal", expression, value))
    if verdict.reason == _UNPARSED or (verdict.correct and not keeps_sign(number)):
        return verdict
    if number.unit == "%":
        return _asked(ask("equal", expression, rf"\frac{{{value}}}{{100}}"))
    if degrees:
        return _asked(ask("equal", expression, rf"\frac{{{value}\pi}}{{180}}"))
    if may_stand_for_irrational(number):
        return _asked(ask("approximates", expression, decimal_text(number)))
    return verdict


_UNPARSED: Final = "a side cannot be parsed"


def _asked(result: bool | None) -> Verdict:
    reason = _UNPARSED if result is None else "equal" if result else "different expressions"
    return Verdict(bool(result), Method.SYMBOLIC, reason)


def _too_large(text: str) -> str:
    """Whether an expression is plainly beyond what anybody writes for a number; the worker's limits catch the rest."""
    return "too large to be evaluated" if _BOMB.search(text) else ""


_BOMB: Final = re.compile(r"[0-9]{6,}\s*\}?\s*!|\^\s*\{?\s*\(?\s*[0-9]{6,}|!\s*!")


def _chain(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    """``a = b = c`` is an answer only if every member is the gold: then nothing in it is a second try.

    Members in front that depend on variables, or are words, only name the answer (``m + n = 25 + 91 = 116``).
    """
    members = [item.text for item in answer.items]
    named = 0
    if gold.kind is Kind.SCALAR and not has_variable(gold.text):
        while named < len(members) - 1 and may_be_name(members[named]):
            named += 1
    unnamed = Shape(gold.kind, gold.text, gold.items, gold.brackets)
    verdict = _each(unnamed, members[named:], ask)
    if not verdict.correct:
        return verdict
    number = parse_number(gold.text)
    zero = number is not None and number.value == 0
    values = [member for member in members[:named] if not is_name(member, ask, equals_zero=zero)]
    return _each(unnamed, values, ask) if values else verdict


def _each(gold: Shape, members: list[str], ask: Ask) -> Verdict:
    verdict = Verdict(False, Method.STRUCTURE, "empty")
    for member in members:
        shape = read_shape(clean(member))
        # A maximum is no answer, but a step of working may be one: max(5, 6) = 6.
        working = gold.kind is shape.kind is Kind.SCALAR and _CHOICE.search(shape.text)
        verdict = _scalars(gold.text, shape.text, ask) if working else compare(gold, shape, ask)
        if shape.name or not verdict.correct:
            return Verdict(False, verdict.method, "a member of the chain is not the answer")
    return verdict


def _equations(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    left, right = _as_difference(gold), _as_difference(answer)
    left_text, right_text = f"{gold.name} {gold.text}", f"{answer.name} {answer.text}"
    if "'" in left_text + right_text or not _same_case(left_text, right_text):
        return Verdict(False, Method.TEXT, "different text")  # the parser knows neither derivatives nor case
    if gold.kind is Kind.SCALAR and answer.kind is Kind.EQUATION:
        if not gold.name:
            return _chain(gold, answer, ask)
        if not has_variable(gold.text):
            return _solution(gold, answer, ask)
    if left is None or right is None:
        return _kinds(gold, answer)
    return _asked(ask("equation", left, right))


def _solution(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    """``x = 5`` is a solution: an equation answers it only with x on one side; ``2x = 10`` may repeat the question."""
    members = [*filter(None, [answer.name]), *(item.text for item in answer.items)]
    values = [member for member in members if _squeeze(member) != _squeeze(gold.name)]
    if len(values) == len(members):
        return Verdict(False, Method.STRUCTURE, f"no side of the equation is {gold.name}")
    return _each(Shape(gold.kind, gold.text), values, ask)


def _as_difference(shape: Shape) -> str | None:
    if shape.kind is Kind.EQUATION:
        one, other = (item.text for item in shape.items)
    elif shape.kind is Kind.SCALAR and shape.name:
        one, other = shape.name, shape.text
    else:
        return None
    return f"({to_parser(one)})-({for_parser(other)})"


def _inequality(text: str) -> str | None:
    """A single inequality as ``a - b`` of ``a > b`` (with a mark for ``>=``), or None."""
    sides = re.split(r"(\\le|\\ge|<|>)(?![A-Za-z])", text)
    if len(sides) != 3:
        return None
    low, sign, high = sides
    if sign in (">", r"\ge"):
        low, high = high, low
    strictness = ">" if sign in "<>" else ">="
    return f"{strictness}({to_parser(high)})-({to_parser(low)})"


def _kinds(gold: Shape, answer: Shape) -> Verdict:
    method = Method.NUMERIC if parse_number(gold.text) is not None else Method.STRUCTURE
    return Verdict(False, method, f"{answer.kind.value} where the gold is a {gold.kind.value}")


def _parts(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    kinds = {gold.kind, answer.kind}
    if not _same_case(gold.text, answer.text):
        return Verdict(False, Method.STRUCTURE, "variables differ in case")
    if (left := _inequality(gold.text)) is not None and (right := _inequality(answer.text)) is not None:
        return _asked(ask("inequality", left, right))
    if gold.kind is Kind.RELATION and answer.kind is Kind.RELATION:
        if gold.brackets != answer.brackets or len(gold.items) != len(answer.items):
            return _kinds(gold, answer)
        return _in_order(gold, answer, ask)
    if gold.kind in _ORDERED and answer.kind in _ORDERED:
        if gold.brackets != answer.brackets:
            return Verdict(False, Method.STRUCTURE, "different ends or brackets")
        return _in_order(gold, answer, ask)
    if kinds == {Kind.LIST, Kind.TUPLE}:
        # A list without brackets stands for a tuple only in the tuple's order.
        return _in_order(gold, answer, ask)
    if gold.kind in _UNORDERED and (gold.kind is answer.kind or kinds <= set(_SEVERAL)):
        return _in_any_order(gold, answer, ask)
    return _kinds(gold, answer)


def _distinct(items: tuple[Shape, ...]) -> list[Shape]:
    """Drops repetitions: a solution named twice is one solution."""
    return list({(item.kind, item.name, item.brackets, _squeeze(item.text)): item for item in items}.values())


def _in_order(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    if len(gold.items) != len(answer.items):
        return Verdict(False, Method.STRUCTURE, "different number of parts")
    verdict = Verdict(True, Method.TEXT, "no parts")
    for left, right in zip(gold.items, answer.items, strict=True):
        verdict = compare(left, right, ask)
        if not verdict.correct:
            return verdict
    return verdict


def _in_any_order(gold: Shape, answer: Shape, ask: Ask) -> Verdict:
    gold_items, answer_items = _distinct(gold.items), _distinct(answer.items)
    if len(gold_items) != len(answer_items):
        return Verdict(False, Method.STRUCTURE, "different number of parts")
    names = {item.name for item in gold_items + answer_items}
    if len(names - {""}) > 1 and "" in names:
        # x = 3, y = 5 against 3, 5: without names only the order says which is which.
        return _in_order(gold, answer, ask)
    rest = answer_items
    verdict = Verdict(True, Method.TEXT, "no parts")
    for left in gold_items:
        for index, right in enumerate(rest):
            verdict = compare(left, right, ask)
            if verdict.correct:
                del rest[index]
                break
        else:
            return Verdict(False, verdict.method, "a part of the gold is not in the answer")
    return verdict
