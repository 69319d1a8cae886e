"""Units after a number: which are the same, which contradict each other, which are ignored."""

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
    "unit": "unit",
    "°": "° deg degree",
    "%": "% percent percentage pct",
    "rad": "rad radian",
}
_NAMES: Final = {name: canonical for canonical, names in _GROUPS.items() for name in names.split()}
_WORDLESS: Final = frozenset({"%", "°"})
_CURRENCIES: Final = frozenset({"$", r"\$", "€", "£", "¥"})

_TEXT_UNIT: Final = re.compile(
    r"\\(?:text|mathrm|mbox|textrm|textbf|textit|textnormal|mathbf|mathit|operatorname)\s*\{([^{}]*)\}"
)
_POWER: Final = re.compile(r"\s*(?:\^\s*\{?\s*([23])\s*\}?|([²³]))$")
_AREA: Final = re.compile(r"^(?:(sq|square)|(cu|cubic))\.?\s+|\s+(?:(squared)|(cubed))$")
_NOT_A_UNIT: Final = re.compile(
    r"\b(?:or|and|to|not|than|but|if|no|plus|minus|times|over|mod|base|hundred|thousand|million|billion|trillion|dozen|k)\b|[0-9<>=+*,;:|\\{}^_]"
)


def read_unit(text: str) -> str | None:
    r"""Reads what follows a number (cleaned, stripped).

    Args:
        text: ``%``, ``°``, ``\text{ cm}^2``, a plain name from the table (``cm``, ``hours``) or empty.

    Returns:
        The unit's canonical name, ``?`` for other words in a ``\text``, "" for nothing, None where it is not a unit.
    """
    if text == "":
        return ""
    if text in _WORDLESS:
        return text
    if text in _CURRENCIES:
        return "?"
    plain = _TEXT_UNIT.sub(r" \1 ", text)
    marked = plain != text
    plain = plain.strip().lower().rstrip(".")
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
    return "?" if marked and not _NOT_A_UNIT.search(plain) else None
