r"""What stands in front of an equals sign: a name for the answer (``m+n``, ``\text{Area}``), or a value (``3``).

``m+n = 116`` says 116; ``3 = 5`` says two things. Pure but for the worker's word on whether an expression varies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from retool_env.grading.latex import to_parser
from retool_env.grading.numeric import parse_number
from retool_env.grading.shape import CONSTANTS, FUNCTIONS, Kind, read_shape
from retool_env.grading.units import changes_value

_TEXT: Final = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_SCRIPT: Final = re.compile(r"[_^]\s*(?:\{[^{}]*\}|[0-9A-Za-z])")
_TOKEN: Final = re.compile(r"\\?[A-Za-z]+")
_GREEK: Final = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell angle triangle".split()
)
_SUM: Final = re.compile(r"[A-Za-z]+(?:\s*[+\-]\s*[A-Za-z]+)*")
_SET_APART: Final = re.compile(r"[0-9]\s+[A-Za-z(|]|[$%°=,]|\\infty")
_LEADING_POWER: Final = re.compile(r"[0-9.]+\s*\^\s*\{[^{}]*\}\s+[A-Za-z(|]|\([^()A-Za-z]*\)")
_CALL: Final = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)")


def has_variable(text: str) -> bool:
    r"""Whether a cleaned text holds a letter that is neither a constant nor part of a function's name or of a word."""
    for token in _TOKEN.findall(_TEXT.sub("", text)):
        if token.startswith("\\"):
            if token[1:] in _GREEK:
                return True
        elif token not in FUNCTIONS and token not in CONSTANTS and set(token) - {"e", "i"}:
            return True
    return False


def may_be_name(text: str) -> bool:
    """Whether a cleaned side of an equation has a variable or words in it, and is not a value by its look."""
    if (
        parse_number(text) is not None
        or _LEADING_POWER.match(text)
        or _SET_APART.search(to_parser(_CALL.sub("", text)))
    ):
        return False
    if _worded(text):
        return not _has_digit(_SCRIPT.sub("", text)) and not changes_value(_words(text))
    return has_variable(text) and read_shape(text).kind is Kind.SCALAR


def is_name(text: str, ask: Callable[[str, str, str], bool | None], *, equals_zero: bool) -> bool:
    """Whether a side that ``may_be_name`` is one: words, or an expression that depends on its variables.

    Args:
        text: The side.
        ask: The symbolic worker.
        equals_zero: The other side is 0. Any equation can be written so, and repeating it must not pay: then only words
            and plain sums of letters are names.
    """
    if _worded(text):
        return True
    letters = re.findall(r"[A-Za-z]", text)
    if _SUM.fullmatch(text) and len(set(letters)) == len(letters):
        return True
    if equals_zero:
        return False
    depends = ask("varies", to_parser(text), "")
    if depends is None:
        return not _has_digit(_CALL.sub("", _SCRIPT.sub("", text)))
    return depends


def _has_digit(text: str) -> bool:
    return re.search(r"[0-9]", text) is not None


def _worded(text: str) -> bool:
    if not FUNCTIONS.isdisjoint(_words(text).split()):
        return False
    return _TEXT.search(text) is not None or read_shape(text).kind is Kind.WORDS


def _words(text: str) -> str:
    return _TEXT.sub(r" \1 ", text)
