"""Cleaning of LaTeX before it is compared: one spelling for things that look the same on paper. Pure text to text.

Nothing here changes what an expression means; where a rule could (``12:00``, ``2516_8``), the text is left alone and
``shape`` treats it as opaque. Callers cap the length first (``MAX_CHARS``).
"""

from __future__ import annotations

import re
from typing import Final

from retool_env.grading.extract import balanced, unwrap_boxes

MAX_CHARS: Final = 400
"""Longest answer that is looked at, in characters, unless the gold itself is longer. Real answers are far shorter."""

_UNICODE: Final = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # fullwidth forms of ASCII
    **dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2009\u200a\u202f\u3000"), " "),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"), None),
    **dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013"), "-"),
    **dict.fromkeys(map(ord, "\u2018\u2019"), "'"),
    ord("∞"): r"\infty ",
    ord("π"): r"\pi ",
    ord("×"): r"\times ",
    ord("÷"): "/",
    ord("·"): r"\cdot ",
    ord("±"): r"\pm ",
    ord("≤"): r"\le ",
    ord("≥"): r"\ge ",
    ord("≠"): r"\ne ",
    ord("∪"): r"\cup ",
    ord("∈"): r"\in ",
    ord("∅"): r"\emptyset ",
}

_WRAPPERS: Final = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
)
_TEXT: Final = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{"

_RULES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|boldsymbol)(?![A-Za-z])\s?", ""),
        # Colour, weight and underlines say nothing about the value; the braces stay, so that 3{5} does not become 35.
        (r"\\(?:textcolor\s*\{[a-zA-Z][a-zA-Z0-9!-]{2,}\}|color\s*\{[a-zA-Z][a-zA-Z0-9!-]{2,}\}\s*)", ""),
        (r"\\(?:bm|pmb|emph|underline|mathsf|mathtt|mathnormal|textsf|texttt|textup)\s*(?=\{)", ""),
        (r"\{\s*\\(?:bf|rm|it|sf|tt|em|bfseries|itshape|rmfamily|boldmath)(?![A-Za-z])\s*", "{"),
        (r"\\[lr]?vert(?![A-Za-z])\s?", "|"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"^([^{}\\=,]+)\\choose(?![A-Za-z])([^{}\\=,]+)$", r"\\binom{\1}{\2}"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\binom\s*([0-9A-Za-z])\s*(?=[0-9A-Za-z{])", r"\\binom{\1}"),
        (r"(\\binom\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\{\s*,\s*\}", ","),
        (r"(?<!\\)\\!\s*", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\(?:quad|qquad|enspace|thinspace)(?![A-Za-z])", " "),
        (r"\\%", "%"),
        (r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|\\textdegree(?![A-Za-z]))", "°"),
        (r"\\text\s*\{\s*(?:degrees?)\s*\}", "°"),
        (r"\\(?:text|mathrm)\s*\{\s*(?:percent|%)\s*\}", "%"),
        (r"\\(?:mathrm|mathbf|text|mathit)\s*\{([0-9.,+\- ]*|e|i|d)\}", r"\1"),
        (r"\\l?dots[a-z]?(?![A-Za-z])|\\cdots(?![A-Za-z])|…|\.\.\.+", r"\\dots "),
        (r"\\leqslant(?![A-Za-z])|\\leq(?![A-Za-z])|<=", r"\\le "),
        (r"\\geqslant(?![A-Za-z])|\\geq(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\(?:varnothing|empty)(?![A-Za-z])", r"\\emptyset "),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\(sum|prod|int)\s*\^\s*(\{[^{}]*\}|[0-9A-Za-z])\s*_\s*(\{[^{}]*\}|[0-9A-Za-z])", r"\\\1_\3^\2"),
        (r"([_^])\s*([0-9](?![0-9])|[A-Za-z](?![0-9A-Za-z]))", r"\1{\2}"),
        (r"\\log_([0-9])(?=[0-9])", r"\\log_{\1}"),
    )
)
# A wide gap or a new line between two expressions sets them apart, as a semicolon does; the parser would multiply them.
_QUADS: Final = r"\s*(?:\\q?quad(?![A-Za-z])\s*)+"
_GAP: Final = re.compile(
    rf"(?<=[0-9A-Za-z}})\]%])(?:{_QUADS}(?=-)|(?:{_QUADS}|[ \t]*\n\s*)(?=[0-9(\[A-Za-z\\]))"
    r"(?!\\(?:text|mathrm|mbox|cdot|times|div|leq?|geq?|neq?|lt|gt|in|cup|cap|pm|mp|to|lor|land|vee|wedge|approx|equiv"
    r"|implies|iff|setminus|mid|q?quad|right|end|\]|\)|,|;)|(?:and|or|if|for|where)(?![A-Za-z]))"
)
_SPAN_AND_WORDS: Final = re.compile(r"\$([^$]+)\$\s*(\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|[A-Za-z][A-Za-z. ]*)")
_DOUBLED: Final = re.compile(r"\\{2,}(?=[A-Za-z])")
_SPACES: Final = re.compile(r"\s+")
_WHOLE_TEXT: Final = re.compile(rf"{_TEXT}(.*)\}}", re.S)


def clean(text: str) -> str:
    r"""Returns the text in one spelling.

    Removed: wrapping boxes, dollars, ``\( \)``, quotes and markdown, sizes, colours, fonts, a full stop at the end.
    Unified: spaces, minus signs, fullwidth forms, ``\dfrac``, ``\choose``, thousands braces, percent, degree, dots,
    relation signs, sub- and superscripts of one character (``x_2`` becomes ``x_{2}``).
    """
    text = text.translate(_UNICODE)
    if r"\begin" not in text:  # there, \\ ends a row; elsewhere it is a backslash that was escaped once too often
        text = _GAP.sub("; ", _DOUBLED.sub(r"\\", text).strip())
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip()
    while True:
        before = text
        text = _strip_wrappers(unwrap_boxes(text))
        if (span := _SPAN_AND_WORDS.fullmatch(text)) is not None:
            text = f"{span.group(1).strip()} {span.group(2)}"
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        if (whole := _WHOLE_TEXT.fullmatch(text)) is not None and balanced(whole.group(1)):
            text = whole.group(1).strip()
        if text.startswith("{") and text.endswith("}") and "," not in text and balanced(text[1:-1]):
            text = text[1:-1].strip()
        if text == before:
            return text


def _strip_wrappers(text: str) -> str:
    for left, right in _WRAPPERS:
        inner = text[len(left) : -len(right)]
        if inner and text.startswith(left) and text.endswith(right) and left not in inner and right not in inner:
            return inner.strip()
    return text


# Commands that a Python user writes without their backslash. ``e`` and ``i`` need no change.
_PYTHON_CALL: Final = re.compile(
    r"(?<![A-Za-z\\])(?:math\.|sympy\.|np\.|numpy\.)?(sqrt|exp|log|ln|sin|cos|tan|sec|csc|cot|gcd|lcm|max|min)\s*\("
)
_WORDED_CALL: Final = re.compile(r"\\(?:text|mathrm|operatorname)\s*\{\s*(gcd|lcm|max|min|sin|cos|tan|log|ln|exp)\s*\}")
_LETTER: Final = re.compile(r"\\(?:text|mathrm|mathbf|mathit)\s*\{\s*([A-Za-z])\s*\}")
_PYTHON_PI: Final = re.compile(r"(?<![A-Za-z\\])(?:math\.|sympy\.|np\.|numpy\.)?pi(?![A-Za-z])")
_BARE_INDEX: Final = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*([0-9A-Za-z])")
_BARE_FRAC: Final = re.compile(r"\\frac\s*([0-9A-Za-z]|\{[^{}]*\})\s*([0-9A-Za-z](?![0-9A-Za-z]*\})|\{)")
_POWER_BRACKET: Final = re.compile(r"\^\s*\(([^()]*)\)")
# The parser reads 2/3\pi as 2/(3\pi); from left to right it is two thirds of pi.
_SLASH: Final = re.compile(r"(?<![0-9A-Za-z}).^_])([0-9]{1,40})\s*/\s*([0-9]{1,40})(?=\s*[A-Za-z\\(])")
_MIXED: Final = re.compile(
    r"(?<![0-9A-Za-z}).^_])([0-9]{1,40})\s*\\frac\s*\{\s*([0-9]{1,40})\s*\}\s*\{\s*([0-9]{1,40})\s*\}"
)
_ARGUMENT: Final = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*\{[^{}]*\})?)\s*(?:([0-9.]+\s*°|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*°)|([({]))"
)
_DEGREES: Final = re.compile(r"([0-9.]+|[A-Za-z]|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\([^()]*\))\s*°")
# The parser adds numbers that stand side by side, as in a mixed number: (2)(3) would be 5.
_PRODUCT: Final = re.compile(r"(?<![0-9A-Za-z^_.])([0-9]+)\s*(?=\(|\\frac)|(\))\s*(?=[0-9(])")
_DECIMAL: Final = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])")
_RECURRING: Final = re.compile(
    r"(?<![0-9.])([0-9]{0,40})\.([0-9]{0,40})\\(?:overline|bar)\s*(?:\{\s*([0-9]{1,40})\s*\}|([0-9]))(?![0-9.])"
)
_THOUSANDS: Final = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")


def to_parser(text: str) -> str:
    r"""Rewrites a cleaned scalar for the LaTeX parser: Python's spelling into LaTeX's, decimals into exact fractions.

    ``exp(16)`` becomes ``\exp(16)``, ``sqrt(2)`` ``\sqrt{2}``, ``pi`` ``\pi``, ``**`` ``^`` and ``0.25``
    ``\frac{25}{100}``: the parser would read a decimal as a binary float, and compare it with a tolerance.
    """
    text = text.replace("**", "^")
    text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    text = _WORDED_CALL.sub(r"\\\1", text)
    text = _LETTER.sub(r"{\1}", text)
    text = _python_calls(text)
    text = _PYTHON_PI.sub(r"\\pi ", text)
    text = _degree_arguments(text) if "°" in text else text
    text = _BARE_INDEX.sub(r"\\sqrt\1{\2}", text)
    text = _BARE_FRAC.sub(_brace_frac, text)
    text = _POWER_BRACKET.sub(r"^{\1}", text)
    text = _SLASH.sub(r"\\frac{\1}{\2}", text)
    text = _MIXED.sub(_improper, text)
    text = _PRODUCT.sub(r"\1\2\\cdot ", text)
    text = _RECURRING.sub(_exact_recurring, text)
    return _DECIMAL.sub(_exact_decimal, text)


def has_malformed_mixed(text: str) -> bool:
    """Whether a cleaned text holds something like ``4 10/3``, which could be a sum or a product."""
    return any(int(top) >= int(bottom) for _, top, bottom in _MIXED.findall(text))


def _improper(match: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in match.groups())
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}"


def _exact_decimal(match: re.Match[str]) -> str:
    whole, part = match.groups()
    return rf"{{\frac{{{int(whole + part)}}}{{1{'0' * len(part)}}}}}"


def _exact_recurring(match: re.Match[str]) -> str:
    whole, head, repeated, digit = match.groups()
    repeated = repeated or digit
    all_digits, before = int(whole + head + repeated), int(whole + head or "0")
    return rf"{{\frac{{{all_digits - before}}}{{{'9' * len(repeated)}{'0' * len(head)}}}}}"


def _brace_frac(match: re.Match[str]) -> str:
    top, bottom = (part if part.startswith("{") else f"{{{part}}}" for part in match.groups())
    return rf"\frac{top}{bottom if bottom != '{{}' else '{'}"


def _python_calls(text: str) -> str:
    r"""``exp(x)`` to ``\exp(x)``; ``sqrt(x)`` to ``\sqrt{x}`` with the matching bracket."""
    position = 0
    while (match := _PYTHON_CALL.search(text, position)) is not None:
        name, start = match.group(1), match.end()
        end = _closing(text, start)
        if end is None:
            return text
        inside = text[start:end]
        replacement = rf"\sqrt{{{inside}}}" if name == "sqrt" else rf"\{name}({inside})"
        text = text[: match.start()] + replacement + text[end + 1 :]
        position = match.start() + len(name) + 2
    return text


def _degree_arguments(text: str) -> str:
    r"""``\sin 60°`` to ``\sin(60\cdot\frac{\pi}{180})``; a degree sign outside a function's argument stays."""
    position = 0
    while (match := _ARGUMENT.search(text, position)) is not None:
        function, bare, opening = match.groups()
        end = match.end() if bare else _closing(text, match.end(), opening)
        if end is None:
            return text
        inside = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", bare or text[match.end() : end])
        replacement = f"{function}({inside})"
        text = text[: match.start()] + replacement + text[end if bare else end + 1 :]
        position = match.start() + len(function) + 1
    return text


def _closing(text: str, start: int, opening: str = "(") -> int | None:
    depth = 1
    closing = {"(": ")", "{": "}"}[opening]
    for index in range(start, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index
    return None
