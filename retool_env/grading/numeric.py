r"""Numbers, read exactly: integers, decimals, fractions, mixed numbers, percentages, powers of ten, recurring decimals.

In process, no evaluation, no floating point. Every run of digits has a length cap before it becomes an ``int``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from retool_env.grading.units import compatible, read_unit, with_currency

_MAX_DIGITS: Final = 1000
_MAX_EXPONENT: Final = 400
_MIN_SIGNIFICANT: Final = 6
"""Digits a decimal must show before it may stand for a number that has no finite decimal (math-verify's 6)."""

_MIN_ROUNDED: Final = 3
"""The same for the lenient preset, where the digits must be the right ones."""

_DEC: Final = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_SDEC: Final = rf"[+-]?\s*(?:{_DEC})"
_FRAC: Final = (
    rf"\\frac\s*(?:\{{\s*(?P<top>{_SDEC})\s*\}}|(?P<top1>[0-9]))\s*(?:\{{\s*(?P<bot>{_SDEC})\s*\}}|(?P<bot1>[0-9]))"
)
_TIMES_TEN: Final = r"\s*(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*"
_POWER: Final = rf"(?:[eE](?P<exp>[+-]?[0-9]+)|{_TIMES_TEN}(?:\{{\s*(?P<exp2>[+-]?[0-9]+)\s*\}}|(?P<exp3>-?[0-9]+)))"

_NUMBER: Final = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>\\?[$]|[€£¥])?\s*(?P<sign2>[+-]?)\s*"
    rf"(?:(?P<whole>[0-9]+)?\s*{_FRAC}"
    rf"|(?P<mixed>[0-9]+) (?P<mtop>[0-9]+)\s*/\s*(?P<mbot>[0-9]+)"
    rf"|(?P<num>{_DEC})\s*/\s*(?P<den>{_DEC})"
    rf"|(?P<rwhole>[0-9]*)\.(?P<rhead>[0-9]*)\\(?:overline|bar)\s*\{{?(?P<rep>[0-9]+)\}}?"
    rf"|(?P<dec>{_DEC}){_POWER}?)"
    rf"(?P<rest>(?![0-9.]).*)"
)
_BRACKETED: Final = re.compile(r"([+-]?)\s*\(([^()]*)\)(.*)")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written.

    Attributes:
        value: Exact; a percentage's is the number before the sign (50 for ``50%``).
        decimals: Digits after the point where it was written as a plain decimal with a point, else None.
        significant: Digits from the first that is not zero; 0 where ``decimals`` is None.
        unit: ``%``, ``°``, a unit's canonical name (``cm``, ``cm^2``, ``dollar``), ``?`` for one that is not
            known, or "".
    """

    value: Fraction
    decimals: int | None = None
    significant: int = 0
    unit: str = ""


@lru_cache(maxsize=4096)
def parse_number(text: str) -> Number | None:
    r"""Reads a cleaned text (``latex.clean``) that is one number and nothing else, or returns None.

    None also for malformed numbers (``4 10/3``, ``1/0``, ``1,23``) and for numbers beyond the caps.
    """
    if len(text) > _MAX_DIGITS or not any("0" <= char <= "9" for char in text):
        return None
    outer_sign = 1
    if (bracketed := _BRACKETED.fullmatch(text)) is not None:
        if "," in bracketed.group(2):
            return None  # (1,234) is a pair
        outer_sign = -1 if bracketed.group(1) == "-" else 1
        text = bracketed.group(2).strip() + bracketed.group(3)
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["sign2"]):
        return None
    unit = with_currency(match["currency"], read_unit(match["rest"].strip()))
    if unit is None:
        return None
    number = _magnitude(match)
    if number is None:
        return None
    sign = outer_sign * (-1 if "-" in (match["sign"], match["sign2"]) else 1)
    return Number(sign * number.value, number.decimals, number.significant, unit)


def _magnitude(match: re.Match[str]) -> Number | None:
    if match["dec"] is not None:
        return _decimal(match)
    if match["rep"] is not None:
        head, rep = match["rhead"], match["rep"]
        start = Fraction(int((match["rwhole"] or "0") + head), 10 ** len(head))
        return Number(start + Fraction(int(rep), (10 ** len(rep) - 1) * 10 ** len(head)))
    if match["mixed"] is not None:
        return _mixed(match["mixed"], _ratio(match["mtop"], match["mbot"]))
    if match["num"] is not None:
        return _number(_ratio(match["num"], match["den"]))
    ratio = _ratio(match["top"] or match["top1"], match["bot"] or match["bot1"])
    return _number(ratio) if match["whole"] is None else _mixed(match["whole"], ratio)


def _decimal(match: re.Match[str]) -> Number | None:
    text = match["dec"]
    exponent = match["exp"] or match["exp2"] or match["exp3"]
    value = _exact(text)
    if exponent is not None:
        if len(exponent) > 5 or abs(int(exponent)) > _MAX_EXPONENT:
            return None
        return Number(value * Fraction(10) ** int(exponent))
    if "." not in text:
        return Number(value)
    digits = text.replace(",", "").replace(" ", "").replace(".", "").lstrip("0")
    return Number(value, len(text) - text.index(".") - 1, len(digits))


def _number(value: Fraction | None) -> Number | None:
    return None if value is None else Number(value)


def _mixed(whole: str, part: Fraction | None) -> Number | None:
    # 4 10/3 is not a mixed number; nobody can say what it means.
    return Number(int(whole) + part) if part is not None and 0 < part < 1 else None


def _ratio(top: str, bottom: str) -> Fraction | None:
    denominator = _exact(bottom)
    return _exact(top) / denominator if denominator else None


def _exact(text: str) -> Fraction:
    whole, _, part = re.sub(r"[ ,]", "", text).partition(".")
    value = int((whole if whole not in ("", "+", "-") else whole + "0") + part)
    return Fraction(value, 10 ** len(part))


def same_number(gold: Number, answer: Number) -> bool:
    """Whether two numbers are the same answer. Symmetric.

    Exact, with three rules of reading: a unit that only one side writes is ignored (``60°`` and ``60``); a percentage
    may be written as its fraction (``50%`` and ``0.5``), and from 1% on without its sign (``50%`` and ``50``; ``0.5%``
    is not ``0.5``, which is 50%); and a decimal of at least six significant digits may stand for a number without a
    finite decimal, rounded or cut off (``0.333333`` for ``1/3``).
    """
    if gold.unit == answer.unit:
        return _same_value(gold, answer)
    if "%" in (gold.unit, answer.unit):
        percentage, other = (gold, answer) if gold.unit == "%" else (answer, gold)
        if other.unit not in ("", "?"):
            return False
        as_fraction = other.unit == "" and _same_value(_fraction_of(percentage), other)
        return as_fraction or (not keeps_sign(percentage) and _same_value(percentage, other))
    return compatible(gold.unit, answer.unit) and _same_value(gold, answer)


def keeps_sign(number: Number) -> bool:
    """Whether a number is a percentage too small to be written without its sign: a bare 0.5 reads as a half."""
    return number.unit == "%" and abs(number.value) < 1


def _fraction_of(percentage: Number) -> Number:
    decimals = None if percentage.decimals is None else percentage.decimals + 2
    return Number(percentage.value / 100, decimals, percentage.significant)


def _same_value(left: Number, right: Number) -> bool:
    return left.value == right.value or _stands_for(left, right.value) or _stands_for(right, left.value)


def _stands_for(decimal: Number, value: Fraction) -> bool:
    if decimal.decimals is None or decimal.significant < _MIN_SIGNIFICANT or _terminates(value):
        return False
    # One unit in the last place covers rounding, cutting off and the last digit of a printed float.
    return abs(decimal.value - value) <= Fraction(1, 10**decimal.decimals)


def decimal_text(number: Number) -> str:
    """Writes a number that has ``decimals`` as a plain decimal with as many digits behind its point."""
    assert number.decimals is not None
    scaled = number.value * 10**number.decimals
    digits = str(abs(scaled.numerator)).rjust(number.decimals + 1, "0")
    whole = len(digits) - number.decimals
    return f"{'-' if scaled < 0 else ''}{digits[:whole]}.{digits[whole:]}"


def is_rounded(decimal: Number) -> bool:
    """Whether a decimal without a unit shows enough digits for the lenient preset to take it for a rounded value."""
    return decimal.decimals is not None and decimal.significant >= _MIN_ROUNDED and not decimal.unit


def rounds_to(exact: Number, decimal: Number) -> bool:
    """Whether a number without a finite decimal, and without a unit, is ``decimal`` when rounded to its digits."""
    if decimal.decimals is None or exact.unit or _terminates(exact.value):
        return False
    return abs(decimal.value - exact.value) <= Fraction(1, 2 * 10**decimal.decimals)


def may_stand_for_irrational(decimal: Number) -> bool:
    """Whether a decimal shows enough digits to be compared with an expression's numeric value."""
    return decimal.decimals is not None and decimal.significant >= _MIN_SIGNIFICANT


def _terminates(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1
