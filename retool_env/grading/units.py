"""Units after a number: which are the same, which contradict each other, which are ignored.

Nouns that can be counted (``42 apples``) cannot be listed; words that change a number's value can: number words,
fractions, multipliers, powers, negations and hedges, all in ``_CHANGES``. Every other word of two letters or more is
taken for a noun, unless it is an answer of its own (``42 even``); a single letter is a unit only if the table has it
(``42 x`` is a product).
"""

from __future__ import annotations

import re
from typing import Final

_GROUPS: Final = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram",
    "lb": "lb pound",
    "oz": "oz ounce",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "mL": "ml milliliter millilitre",
    "L": "l liter litre",
    "gal": "gal gallon",
    "mph": "mph",
    "km/h": "kph kmh km/h",
    "m/s": "m/s",
    "°C": "°c celsius",
    "°F": "°f fahrenheit",
    "cent": "cent",
    "dollar": "dollar usd",
    "euro": "euro eur",
    "pound sterling": "gbp quid",
    "yen": "yen jpy yuan cny rmb",
    "unit": "unit",
    "°": "° deg degree",
    "%": "% percent percentage pct",
    "rad": "rad radian",
}
_NAMES: Final = {name: canonical for canonical, names in _GROUPS.items() for name in names.split()}
_SYMBOLS: Final = {"C": "°C", "F": "°F", **{symbol: symbol for symbol in ("N", "J", "W", "V", "A", "T", "K", "Ω")}}
"""Units of one capital letter: ``5 M`` is five millions for some, never five metres."""
_UPPER: Final = frozenset("LGS")
_WORDLESS: Final = frozenset({"%", "°"})
_CURRENCIES: Final = {"$": "dollar", r"\$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}
_SAME_WORD: Final = frozenset({frozenset({"lb", "pound sterling"})})

_TEXT_UNIT: Final = re.compile(
    r"\\(?:text|mathrm|mbox|textrm|textbf|textit|textnormal|mathbf|mathit|operatorname)\s*\{([^{}]*)\}"
)
_POWER: Final = re.compile(r"\s*(?:\^\s*\{?\s*([23])\s*\}?|([²³]))$")
_AREA: Final = re.compile(r"^(?:(sq|square)|(cu|cubic))\.?\s+|\s+(?:(squared)|(cubed))$")
_WORDS: Final = re.compile(r"/?\s*\(?[^\W\d_]+(?:[ .'\-/()·]+[^\W\d_]*)*")
_ANSWERS: Final = frozenset(
    "even odd yes true prime composite rational irrational undefined none dne impossible always sometimes unknown"
    " infinitely".split()
)
_NUMBERS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fourty fifty sixty seventy"
    " eighty ninety hundred thousand lakh lac crore dozen score gross googol grand k mil mn bn tn pi tau infinity"
    " infinite hundredweight"
)
_FRACTIONS: Final = (
    "half halve quarter third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth hundredth thousandth"
    " percentile permille bps ppm ppb"
)
_OPERATIONS: Final = (
    "plus minus times over mod modulo base squared cubed square cube root power exponent factorial inverse reciprocal"
    " double doubled triple tripled quadruple quadrupled twice thrice divided multiplied added subtracted sqrt log ln"
    " sin cos tan exp radical choose raised complement negated halved mantissa recurring repeating"
)
_NEGATIONS: Final = (
    "or and to than but if no not non never nor without neither isn't wrong incorrect false negative below under"
    " beneath least most above except excluding bc bce instead actually wait maybe perhaps possibly then otherwise"
    " versus vs alternatively either equals is are was becomes rather until unless through thru"
)
_WITH_PLURAL: Final = "|".join((_NUMBERS + " " + _FRACTIONS).split())
_WITHOUT_PLURAL: Final = "|".join((_OPERATIONS + " " + _NEGATIONS).split())
_SUFFIXED: Final = (
    "[a-z]*(?:illions?|illiards?|illionths?|teen|teenths?|tieths?|fold|uple|upled)|halves|basis points?|per mille?"
)
_CHANGES: Final = re.compile(rf"(?<![a-z'])(?:(?:{_WITH_PLURAL})s?|{_WITHOUT_PLURAL}|{_SUFFIXED})(?![a-z'])")
_LETTER: Final = re.compile(r"(?<![A-Za-z'/])[A-Za-z](?![A-Za-z'/])")


def changes_value(words: str) -> bool:
    """Whether words hold one that makes another number of the one they follow: ``million``, ``thirds``, ``below``."""
    return _CHANGES.search(words.lower()) is not None


def compatible(unit: str, other: str) -> bool:
    """Whether two units (as ``read_unit`` gives them) do not contradict each other."""
    return unit == other or not {unit, other}.isdisjoint({"", "?"}) or frozenset({unit, other}) in _SAME_WORD


def with_currency(sign: str | None, unit: str | None) -> str | None:
    r"""Joins a currency sign with the unit behind its number; None where they contradict (``\$5 cents``)."""
    if sign is None or unit is None:
        return unit
    currency = _CURRENCIES[sign]
    return currency if compatible(currency, unit) else None


def read_unit(text: str) -> str | None:
    r"""Reads what follows a number (cleaned, stripped).

    Args:
        text: ``%``, ``°``, ``\text{ cm}^2``, a plain name from the table (``cm``, ``hours``) or empty.

    Returns:
        The unit's canonical name, ``?`` for nouns of a ``\text`` that are not known, "" for nothing, None where it is
        not a unit.
    """
    if text == "":
        return ""
    if text in _WORDLESS:
        return text
    if text in _CURRENCIES:
        return _CURRENCIES[text]
    plain = _TEXT_UNIT.sub(r" \1 ", text)
    marked = plain != text
    written = plain.strip().rstrip(".")
    if written in _SYMBOLS and marked:
        return written
    if len(written) == 1 and written.isupper() and written not in _UPPER:
        return None
    plain = written.lower()
    power = ""
    if (raised := _POWER.search(plain)) is not None:
        power = "^" + (raised.group(1) or {"²": "2", "³": "3"}[raised.group(2)])
        plain = plain[: raised.start()].rstrip()
    if (area := _AREA.search(plain)) is not None and not power:
        power = "^2" if area.group(1) or area.group(3) else "^3"
        plain = (plain[: area.start()] + plain[area.end() :]).strip()
    name = _NAMES.get(plain) or _NAMES.get(plain.removesuffix("s")) or _NAMES.get(plain.removesuffix("es"))
    if name is not None:
        return name + power
    if plain.startswith("%") and marked and _is_noun(plain[1:].strip()):
        return "%"
    return "?" if marked and _is_noun(plain) else None


def _is_noun(words: str) -> bool:
    letters = [letter for letter in _LETTER.findall(words) if letter not in _NAMES and letter != "a"]
    if letters or _WORDS.fullmatch(words) is None or words.strip("/(). ").split()[-1] in _ANSWERS:
        return False
    return not changes_value(words)
