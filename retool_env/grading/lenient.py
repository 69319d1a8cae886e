r"""The ``lenient`` preset: for old runs, and for models that were not told to use a box.

``stated_answer`` finds an answer that is in no box; ``readings`` and ``rounded`` are what counts as
equal beyond the default. Nothing here picks one value out of several: a sentence that holds two numbers is compared as
a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from retool_env.grading.compare import Ask, Method, Verdict, for_parser
from retool_env.grading.latex import clean
from retool_env.grading.numeric import decimal_text, is_rounded, parse_number, rounds_to
from retool_env.grading.shape import Kind, Shape, read_shape
from retool_env.grading.units import changes_value, read_unit

_TAIL: Final = 2000
"""Characters at the end of a text in which an answer is looked for."""

_BOX: Final = "\\boxed"
_DISPLAY: Final = re.compile(r"\\\[\s*(.*?)\s*\\\]|\$\$\s*(.*?)\s*\$\$|\\\(\s*(.*?)\s*\\\)", re.S)
_EMPHASIS: Final = re.compile(r"\*\*|__|`|<[|/]?[a-z_]+[|]?>", re.I)
_SENTENCE_END: Final = re.compile(r"(?:(?<![A-Z])\.|(?<=[a-z]{2})!)(?:\s+|$)|\n+")
_PHRASE: Final = re.compile(
    r"\b(?:answer|result|solution|value)\b[^.!?\n$\\=:0-9]{0,60}?(?:\b(?:is|equals?|be|are)\b|=|:)\s*:?\s*", re.I
)
_RETRACTED: Final = re.compile(
    r"\b(?:wait|actually|correction|mistake|mistaken|instead|sorry|oops|incorrect|wrong|hmm)\b"
    r"|[.!?]\s+(?:or|also|alternatively)\b",
    re.I,
)
_DOUBTED: Final = re.compile(
    r"\b(?:not|never|cannot|doubt\w*|unlikely|if|whether|suppose|assum\w+|your)\b|n['\u2019]t\b", re.I
)
"""In the clause of a phrase: it denies or supposes an answer, or tells how one is to be given ("your")."""
_CLAUSE_END: Final = re.compile(r"[,;:.!?\n]")
_REASON: Final = re.compile(r",?\s+(?:because|since|as|which|where|when)\b.*", re.I | re.S)
_CONCLUDES: Final = re.compile(
    r"\b(?:(?<!or )so|thus|therefore|hence|is|are|was|be|equals?|gives?|giving|yields?|gets?|obtain|find|have|has)\b"
    r"|:(?=\s)",
    re.I,
)
# A dollar sign opens a formula only where no space follows, and closes one only behind a character and before no digit.
_FORMULA: Final = re.compile(r"(?<!\\)\$(?=\S)([^$\n]*[^$\s\\])\$(?!\d)")
_NUMBER: Final = re.compile(
    r"(?<![\w.\\])[-+\u2212]?\\?[$]?\d+(?:,\d{3})*(?:\.\d+)?(?:\s*/\s*\d+)?(?:\s*\\?%)?(?![\w^]|\.\d|,\d)"
)
_PROSE: Final = re.compile(r"[A-Za-z ,.;:'\"=]*")


def stated_answer(text: str) -> str | None:
    r"""Returns the answer of a text without any closed box or answer tag, or None.

    What follows the last "Answer:", or a phrase like "the answer is", where nothing is taken back behind it; else the
    formula or number of the last sentence that has one. Of several formulas or numbers in it none is picked. Time does
    not depend on the length.

    Args:
        text: The model's own text (``extract.model_text``).
    """
    if _BOX in text:
        return None  # a box that does not close: cut, and what is in front of it is not the answer
    tail = _EMPHASIS.sub("", _DISPLAY.sub(_as_inline, text[-_TAIL:]))
    phrase = None
    for match in _PHRASE.finditer(tail):
        phrase = match
    if phrase is not None and not _RETRACTED.search(tail, phrase.end()):
        if _DOUBTED.search(_CLAUSE_END.split(tail[: phrase.start()])[-1] + phrase.group()):
            return None
        return _narrowed(_REASON.sub("", _first_sentence(tail[phrase.end() :])))
    for sentence in reversed(_SENTENCE_END.split(tail)):
        if _FORMULA.search(sentence) or _NUMBER.search(sentence):
            return None if "?" in sentence else _narrowed(sentence)
        if _RETRACTED.search(sentence):
            return None
    return None


def _as_inline(match: re.Match[str]) -> str:
    inside = next(group for group in match.groups() if group is not None)
    return f"${' '.join(inside.split())}$"


def _first_sentence(text: str) -> str:
    return next((part for part in _SENTENCE_END.split(text) if part.strip()), "")


def _narrowed(sentence: str) -> str | None:
    """Returns the one formula or number of a sentence's last clause, with its unit, or the whole clause."""
    sentence = sentence.strip().rstrip(".").rstrip()
    found = list(_FORMULA.finditer(sentence)) or list(_NUMBER.finditer(sentence))
    if not found:
        return sentence or None
    last = found[-1]
    start = 0
    for word in _CONCLUDES.finditer(sentence, 0, last.start()):
        if not any(one.start() <= word.start() < one.end() for one in found):
            start = word.end()
    before, after = sentence[start : last.start()], sentence[last.end() :]
    several = sum(one.start() >= start for one in found) > 1
    if several or not (_is_prose(before) and _is_prose(after)):
        return sentence[start:].replace("$", "").strip(" ,;:")
    return (last.group(1) if last.re is _FORMULA else last.group()) + _unit(after)


def _is_prose(text: str) -> bool:
    return _PROSE.fullmatch(text) is not None and not changes_value(text)


def _unit(text: str) -> str:
    """Returns the known unit that a text begins with, to be put behind a number."""
    words = text.rstrip(".,; ").split()
    if words[:1] == ["in"] and len(words) > 1:
        return ""  # 72 in total
    for count in (2, 1):
        unit = " ".join(words[:count]).rstrip(".,;")
        if len(words) >= count and read_unit(unit):
            return f" {unit}"
    return ""


_PLAIN_WORDS: Final = re.compile(r"^(.*[0-9}])\s+([A-Za-z][A-Za-z .'-]*[a-z])$")
_BASE: Final = re.compile(r"([0-9]+)\s*_\s*(?:\{\s*[0-9]+\s*\}|[0-9]+)")


def readings(gold: str, answer: str) -> Iterator[tuple[str, str]]:
    r"""Yields further pairs of gold and answer, any of which may be equal by the default rules.

    Plain words behind a number are a unit, as if they were in a ``\text``; a set of one value is that value; the base
    that a gold states may be left out.
    """
    sides = clean(gold), clean(answer)
    if any(_PLAIN_WORDS.fullmatch(side) for side in sides):
        left, right = (_PLAIN_WORDS.sub(r"\1 \\text{ \2}", side) for side in sides)
        yield left, right
    shapes = [read_shape(side) for side in sides]
    if sorted(shape.kind.name for shape in shapes) == ["SCALAR", "SET"]:
        left, right = (shape.items[0].text if len(shape.items) == 1 else shape.text for shape in shapes)
        yield left, right
    if (based := _BASE.fullmatch(sides[0])) is not None and sides[1].isdecimal():
        yield based.group(1), sides[1]


def rounded(gold: Shape, answer: Shape, ask: Ask) -> Verdict | None:
    """Returns a verdict where one side is the other's value, correctly rounded; else None.

    At least three significant digits, and the exact side must have no finite decimal: 0.333 for 1/3, 1.414 for the
    square root of 2.

    Raises:
        UndecidedError: As ``ask`` does.
    """
    if gold.kind is not Kind.SCALAR or answer.kind is not Kind.SCALAR:
        return None
    for decimal, exact in ((answer, gold), (gold, answer)):
        number, other = parse_number(decimal.text), parse_number(exact.text)
        if number is None or not is_rounded(number):
            continue
        if other is not None:
            if rounds_to(other, number):
                return Verdict(True, Method.NUMERIC, "equal when rounded")
        elif ask("rounds_to", for_parser(exact.text), decimal_text(number)):
            return Verdict(True, Method.SYMBOLIC, "equal when rounded")
    return None
