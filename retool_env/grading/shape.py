r"""What kind of answer a text is: a number or expression, a list, a set, a tuple, an interval, a relation, words, ...

Splitting a structure here, and comparing its parts one by one, keeps the LaTeX parser away from what it misreads: it
takes ``12:00`` for a division by zero, ``2 3`` for 5, and drops the base of ``2516_8``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from retool_env.grading.extract import balanced
from retool_env.grading.latex import clean, has_malformed_mixed
from retool_env.grading.numeric import parse_number

_MAX_ITEMS: Final = 64
_MAX_NESTING: Final = 20


class Kind(Enum):
    """The kinds of answer."""

    SCALAR = "number or expression"
    LIST = "list"
    """Alternatives or solutions in no order: ``1, -2``, ``3 or 5``."""
    SET = "set"
    TUPLE = "tuple"
    """Ordered; an open interval of two ends is written the same way."""
    INTERVAL = "interval"
    UNION = "union"
    RELATION = "relation"
    """An inequality that is not the interval of one variable."""
    EQUATION = "equation"
    CHAIN = "chain of equalities"
    WORDS = "words"
    OPAQUE = "text that is only compared as text"


@dataclass(frozen=True, slots=True)
class Shape:
    r"""An answer's structure.

    Attributes:
        kind: What it is.
        text: The cleaned text it came from (without ``name``).
        items: Its parts, for the kinds that have parts.
        brackets: The two outer brackets of a tuple or interval.
        name: The variable in front of ``=`` or ``\in``, or the variable of an inequality; "" for none.
    """

    kind: Kind
    text: str
    items: tuple[Shape, ...] = ()
    brackets: str = ""
    name: str = ""


_NAME: Final = r"(?:\\[a-zA-Z]+|[A-Za-z]{1,4}'?)(?:_(?:\{[A-Za-z0-9,+-]*\}|[A-Za-z0-9]))?(?:\([A-Za-z0-9, ]{1,12}\))?"
_TUPLE_NAME: Final = r"\([A-Za-z]\w?(?:, ?[A-Za-z]\w?)+\)"
_SIZE_NAME: Final = (
    r"\|[A-Z]{1,3}\||m?\\angle ?[A-Z]{1,3}|\\(?:overline|triangle) ?\{?[A-Z]{1,3}\}?|\\frac\{[A-Z]{1,3}\}\{[A-Z]{1,3}\}"
)
_NAMED: Final = re.compile(rf"({_TUPLE_NAME}|{_SIZE_NAME}|{_NAME})\s*(?:=|\\in(?![A-Za-z]))\s*(.+)", re.S)
_OR: Final = re.compile(
    r",?\s*(?:\\text\s*\{\s*,?\s*(?:or|and)\s*\}|\\(?:lor|land|vee|wedge)(?![A-Za-z])|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z]))\s*"
)
_DISJUNCTION: Final = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])|\\lor(?![A-Za-z])|\\vee(?![A-Za-z])")
_COMPARISON: Final = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<|>")
_OPAQUE: Final = re.compile(
    r"\\dots|:|\||(?<![A-Za-z}\])])[0-9]+\s*_|\\(?:forall|exists|mid|equiv|pmod|bmod|mod|implies|iff|to|rightarrow|Rightarrow|approx|sim|mp)(?![A-Za-z])"
    r"|[0-9]\s+[0-9]|[?@#&'\"]|.(?<!\\)\$|%\s*[0-9A-Za-z(\\]|\.[0-9]*\.|(?:[0-9]\}|\))\s*_"
    r"|(?<![A-Za-z}\]^_\\])\{[^{}]*\}\s*[0-9{]|\\\}\s*(?:[0-9A-Za-z($]|\\(?!cup|cap|setminus|le|ge|in|text|\}))|(?<![0-9A-Za-z^_])[0-9]+\s*\{|\blambda\s*:|\\(?:neg|not)"
)
_BOX: Final = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
"""A box inside an answer: nobody can say whether the answer is the box or what stands around it."""
_ENVIRONMENT: Final = re.compile(r"\\begin\{")
_ABSOLUTE: Final = re.compile(r"^[^|]*(?:\|[^|]*\|[^|]*)+$")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'.\- ]*")
_VOWEL: Final = re.compile(r"[aeiouyAEIOUY]")
CONSTANTS: Final = frozenset({"e", "i", "pi", "infty", "inf", "nan", "emptyset"})
"""What looks like a name and has a value."""
_FUNCTION_NAMES: Final = "sin cos tan sec csc cot arcsin arccos arctan exp log ln lg sqrt min max gcd lcm det abs"
FUNCTIONS: Final = frozenset(_FUNCTION_NAMES.split(" "))
"""Functions with or without their backslash."""
_OPERATORS: Final = frozenset({"frac", "binom", "sum", "prod", "int", "lim", "text", "cdot", "times"})
_NOT_FINITE: Final = re.compile(r"[+-]?\s*(?:nan|inf|infinity|float\(.*\))", re.I)


def is_not_finite(text: str) -> bool:
    """Whether a cleaned text is a programmer's not-a-number or infinity, which equals nothing."""
    return _NOT_FINITE.fullmatch(text) is not None


def has_box(text: str) -> bool:
    """Whether a cleaned text still holds a box, so one that is not the whole text."""
    return _BOX.search(text) is not None


def read_shape(text: str) -> Shape:
    """Reads a cleaned text. Never raises; what is not understood is ``OPAQUE``."""
    return _read(text.strip(), 0)


def _read(text: str, depth: int) -> Shape:
    if parse_number(text) is not None:
        return Shape(Kind.SCALAR, text)
    if not text or depth > 6 or has_box(text) or not balanced(text) or not _well_nested(text):
        return Shape(Kind.OPAQUE, text)
    if (words := _words(text)) is not None:
        return Shape(Kind.WORDS, words)
    named = _NAMED.fullmatch(text)
    if named is not None and _is_name(named.group(1)) and len(_alternatives(text)) == 1:
        inner = _read(clean(named.group(2)), depth + 1)
        if not inner.name and inner.kind not in (Kind.RELATION, Kind.WORDS, Kind.OPAQUE):
            return Shape(inner.kind, inner.text, inner.items, inner.brackets, named.group(1).replace(" ", ""))
    return _structure(text, depth)


def _is_name(text: str) -> bool:
    r"""Whether a text of a name's form is one: ``\sin(3)``, ``\pi`` and ``\infty`` have values of their own."""
    word = text.removeprefix("\\")
    base = re.split(r"[^A-Za-z]", word, maxsplit=1)[0]
    return word not in CONSTANTS and base not in FUNCTIONS and base not in _OPERATORS


def _structure(text: str, depth: int) -> Shape:
    if _ENVIRONMENT.search(text):
        return Shape(Kind.SCALAR, text)
    parts = _alternatives(text)
    if len(parts) > 1:
        return _compound(Kind.LIST, text, parts, depth)
    if _OPAQUE.search(text) and not (_ABSOLUTE.match(text) and not _OPAQUE.search(text.replace("|", ""))):
        return Shape(Kind.OPAQUE, text)
    if has_malformed_mixed(text):
        return Shape(Kind.OPAQUE, text)
    if len(parts := _split(text, r"\cup")) > 1:
        return _compound(Kind.UNION, text, parts, depth)
    if text.startswith(r"\{") and text.endswith(r"\}") and _wraps(text[1:-2] + "}"):
        inside = text[2:-2].strip()
        return _compound(Kind.SET, text, _alternatives(inside) if inside else [], depth)
    if text[0] == "{" and _wraps(text) and len(parts := _alternatives(text[1:-1])) > 1:
        return _compound(Kind.SET, text, parts, depth)
    if text[0] in "([" and text[-1] in ")]" and _wraps(text):
        return _bracketed(text, depth)
    if _COMPARISON.search(text):
        return _relation(text, depth)
    if len(sides := _split(text, "=")) > 1:
        kind = Kind.EQUATION if len(sides) == 2 else Kind.CHAIN
        return Shape(kind, text, tuple(Shape(Kind.SCALAR, side.strip()) for side in sides))
    if r"\pm" in text:
        return _compound(Kind.LIST, text, [text.replace(r"\pm", sign) for sign in "+-"], depth)
    return Shape(Kind.SCALAR, text)


def _compound(kind: Kind, text: str, parts: list[str], depth: int) -> Shape:
    if len(parts) > _MAX_ITEMS or any(not part.strip() for part in parts):
        return Shape(Kind.OPAQUE, text)
    items: list[Shape] = []
    for part in parts:
        item = _read(clean(part), depth + 1)
        # A plus-minus inside a list contributes both of its values.
        items.extend(
            item.items if kind in (Kind.LIST, Kind.SET) and item.kind is Kind.LIST and not item.name else (item,)
        )
    intervals = all(item.name and item.kind in (Kind.TUPLE, Kind.INTERVAL) for item in items)
    if kind is Kind.LIST and intervals and _DISJUNCTION.search(text):
        kind = Kind.UNION
    return Shape(kind, text, tuple(items))


def _bracketed(text: str, depth: int) -> Shape:
    parts = _split(text[1:-1], ";" if ";" in text else ",")
    brackets = text[0] + text[-1]
    if len(parts) == 1:
        inner = _read(clean(text[1:-1]), depth + 1)
        # A number may have a unit, which the parser of expressions does not read.
        is_number = inner.kind is Kind.SCALAR and parse_number(inner.text) is not None
        return inner if brackets == "()" or is_number else Shape(Kind.SCALAR, text)
    kind = Kind.INTERVAL if len(parts) == 2 and brackets != "()" else Kind.TUPLE
    if kind is Kind.TUPLE and brackets not in ("()", "[]"):
        return Shape(Kind.OPAQUE, text)
    whole = _compound(kind, text, parts, depth)
    return Shape(whole.kind, text, whole.items, brackets)


def _relation(text: str, depth: int) -> Shape:
    r"""``x \ge a`` and ``a < x \le b`` are intervals of x; any other comparison stays a relation."""
    signs = [sign.strip() for sign in _COMPARISON.findall(text)]
    sides = [side.strip() for side in _COMPARISON.split(text)]
    whole = Shape(Kind.RELATION, text, tuple(Shape(Kind.SCALAR, side) for side in sides), " ".join(signs))
    if r"\ne" in signs or "=" in text:
        return whole
    if len(sides) == 2 and re.fullmatch(_NAME, sides[1]) and not re.fullmatch(_NAME, sides[0]):
        sides, signs = sides[::-1], [_MIRRORED[signs[0]]]
    if len(sides) == 2 and re.fullmatch(_NAME, sides[0]):
        up = signs[0] in (">", r"\ge")
        low, high = (sides[1], r"\infty") if up else (r"-\infty", sides[1])
        closed = signs[0] in (r"\le", r"\ge")
        brackets = ("[" if closed else "(") + ")" if up else "(" + ("]" if closed else ")")
        name = sides[0]
    elif len(sides) == 3 and re.fullmatch(_NAME, sides[1]) and len({sign in (">", r"\ge") for sign in signs}) == 1:
        if signs[0] in (">", r"\ge"):
            sides, signs = sides[::-1], [_MIRRORED[sign] for sign in signs[::-1]]
        low, name, high = sides
        brackets = ("[" if signs[0] == r"\le" else "(") + ("]" if signs[1] == r"\le" else ")")
    else:
        return whole
    ends = tuple(_read(clean(end), depth + 1) for end in (low, high))
    kind = Kind.TUPLE if brackets == "()" else Kind.INTERVAL
    return Shape(kind, text, ends, brackets, name.replace(" ", ""))


_MIRRORED: Final = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def _words(text: str) -> str | None:
    plain = re.sub(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}", r" \1 ", text)
    marked = plain != text
    plain = " ".join(plain.split()).strip("() ")
    if _WORD.fullmatch(plain) is None:
        return None
    words = plain.split()
    if any(word in FUNCTIONS or word in CONSTANTS for word in words) and not marked:
        return None
    long = [word for word in words if len(word) >= 3 and _VOWEL.search(word)]
    return plain.lower().rstrip(".") if marked or (long and len(long) * 2 >= len(words)) else None


def _alternatives(text: str) -> list[str]:
    """Splits at top-level ``or``, ``and``, semicolons and commas; the comma of a thousand is not one."""
    pieces = [piece for part in _split(text, _OR) for piece in _split(part, ";")]
    parts: list[str] = []
    for piece in pieces:
        parts.extend([piece] if parse_number(piece.strip()) is not None else _split(piece, ","))
    return [part for part in parts if part.strip()] if len(parts) > 1 and len(pieces) > 1 else parts


def _split(text: str, separator: str | re.Pattern[str]) -> list[str]:
    """Splits where no bracket is open."""
    pattern = separator if isinstance(separator, re.Pattern) else re.compile(re.escape(separator))
    parts, start, depth, position = [], 0, 0, 0
    for match in re.finditer(rf"(?P<sep>{pattern.pattern})|(?P<open>[(\[{{])|(?P<close>[)\]}}])", text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
        elif depth == 0 and match.start() >= position:
            parts.append(text[start : match.start()])
            start = match.end()
        position = match.end()
    parts.append(text[start:])
    return parts


def _well_nested(text: str) -> bool:
    """Whether round and square brackets close each other (in any mixture) and are not absurdly deep."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if not 0 <= depth <= _MAX_NESTING:
            return False
    return depth == 0


def _wraps(text: str) -> bool:
    """Whether the first bracket is closed by the last character (mixed brackets count as brackets)."""
    depth = 0
    for index, char in enumerate(text):
        depth += char in "([{"
        depth -= char in ")]}"
        if depth == 0:
            return index == len(text) - 1
    return False
