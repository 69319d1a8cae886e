"""Whether two LaTeX expressions are equal. Runs in the worker process only: parts of it hang or eat memory by nature.

math-verify's grammar parses; the comparison is our own. math-verify compares numbers with an absolute tolerance (it
takes 1/2004! for 1/2006!) and expressions by ``simplify`` (which is slow, and does not find that sqrt(1/n) equals
1/sqrt(n)). Here they are compared by value, relative to their size, at points that leave no room for chance.

This module imports nothing of its package: the worker loads it by its path.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse  # type: ignore[import-untyped]
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]

_DIGITS: Final = 40
_AGREEMENT: Final = 30
_CANCELLED_DIGITS: Final = 1000

# Values of the variables, by trial; no variable gets the value of another, and no value is special to any function.
_POINTS: Final = (
    ("17/29", "11/37", "23/41", "5/13", "31/47"),
    ("37/11", "59/23", "83/19", "71/31", "97/17"),
    ("-13/31", "-7/23", "-19/37", "-29/43", "-3/17"),
    ("-61/17", "41/29", "-43/13", "73/11", "-79/7"),
    ("1237/3", "-911/7", "1511/9", "-2003/11", "1789/13"),
    ("5/7", "101/13", "3/41", "67/9", "2/19"),
)
_NOT_FINITE: Final = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
_TO_EVALUATE: Final = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)

# units=True would take the t of 3t for tonnes and drop it.
_RULES: Final = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last")
_CONFIG: Final = LatexExtractionConfig(
    boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=_RULES
)


_COMMAND: Final = re.compile(r"\\\\|\\[A-Za-z]+")
_COMMANDS: Final = frozenset(
    "\\" + name
    for name in (
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau"
        " upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega infty ell angle triangle"
        " frac sqrt binom cdot times div pm mp sum prod int iint oint lim to rightarrow min max gcd lcm det arg exp ln"
        " log lg sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch"
        " arsinh arcosh artanh arcsinh arccosh arctanh lfloor rfloor lceil rceil langle rangle left right begin end"
        " mathbb mathcal prime circ cap cup setminus emptyset in le ge ne overline bar hat vec overrightarrow widehat"
        " partial nabla Re Im deg det vdots ddots dots pmatrix bmatrix vmatrix matrix neg"
    ).split()
)


class UnparsedError(Exception):
    """A text is not an expression that the grammar knows."""


def parse_expression(text: str) -> Any:
    r"""Returns the sympy object of a LaTeX text (as ``latex.to_parser`` writes it).

    Raises:
        UnparsedError: The grammar does not know it, it is undefined (1/0), or it holds a command that is not known to
            mean something: the parser would read ``\phantom{5}6`` as a sum and ``\hfill`` as letters.
    """
    if unknown := set(_COMMAND.findall(text)) - _COMMANDS - {r"\\"}:
        raise UnparsedError(f"unknown commands {sorted(unknown)}")
    found = parse(rf"\boxed{{{text}}}", [_CONFIG], fallback_mode="no_fallback", parsing_timeout=None)
    if len(found) != 1 or isinstance(found[0], str):
        raise UnparsedError(text)
    expression = found[0]
    if expression.has(sympy.nan, sympy.zoo):
        raise UnparsedError(text)
    # The parser gives symbols assumptions that depend on the text around them, and then x is not x.
    names = {symbol: _symbol(symbol.name) for symbol in expression.free_symbols}
    held = {one: one.args[0] for one in expression.atoms(sympy.UnevaluatedExpr)}  # the parser's gcd
    expression = expression.xreplace({**names, **held})
    return expression.doit() if expression.has(*_TO_EVALUATE) else expression


def _symbol(name: str) -> Any:
    return sympy.I if name == "i" else sympy.E if name == "e" else sympy.Symbol(name)


def _value(expression: Any) -> Any:
    """Returns the finite complex value of a constant with ``_DIGITS`` digits, or None."""
    try:
        parts = expression.evalf(_DIGITS, maxn=400).as_real_imag()
    except (ArithmeticError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not all((part.is_Float or part.is_Rational) and part.is_finite for part in parts):
        return None
    # A part without a correct digit is what is left of terms that cancel, as in e^{i pi} + 1.
    real, imaginary = (sympy.Integer(0) if getattr(part, "_prec", 0) == 1 else part for part in parts)
    return real + imaginary * sympy.I


def _close(left: Any, right: Any) -> bool:
    """Relative agreement, real and imaginary part together; two zeros agree."""
    scale = max(abs(left), abs(right))
    return bool(scale == 0 or abs(left - right) <= scale * sympy.Float(10, _DIGITS) ** -_AGREEMENT)


def _is_real(value: Any) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(imaginary == 0 or abs(imaginary) <= abs(real) * sympy.Float(10, _DIGITS) ** -_AGREEMENT)


def _at_points(left: Any, right: Any) -> Iterator[tuple[Any, Any]]:
    """Yields two expressions with numbers in place of their variables, for every point (once for constants)."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)
    if len(symbols) > len(_POINTS[0]):
        raise UnparsedError("too many variables")
    for point in _POINTS if symbols else ((),):
        values = {symbol: sympy.Rational(value) for symbol, value in zip(symbols, point, strict=False)}
        yield (left.subs(values), right.subs(values)) if values else (left, right)


def _same_function(left: Any, right: Any) -> bool:
    """Equality by exact structure, else by value at several points.

    A point where only one side is real, or where both are and differ, decides against. Where both leave the reals (the
    root of a negative) the point says nothing: so sqrt(1/n) equals 1/sqrt(n), but sqrt(x^2) does not equal x. Only
    finite functions that have no value at any point are left to ``simplify``: of infinity it makes anything.
    """
    if left == right:
        return True
    if left.is_Rational and right.is_Rational:
        return False
    agreed = 0
    constant = not (left.free_symbols | right.free_symbols)
    for left_there, right_there in _at_points(left, right):
        one, other = _value(left_there), _value(right_there)
        if one is None or other is None:
            continue
        if _close(one, other):
            if not agreed and not _cancels(left_there, right_there):
                return False
            agreed += 1
        elif constant or _is_real(one) or _is_real(other):
            return False
    if agreed or constant or left.has(*_NOT_FINITE) or right.has(*_NOT_FINITE):
        return agreed >= (1 if constant else 3)
    return bool(sympy.simplify(left - right) == 0)


def _cancels(left: Any, right: Any) -> bool:
    """Whether the difference of two constants that agree in many digits is zero as far as can be seen."""
    if left**2 == right**2:  # the quick way for roots; as they agree, they do not differ in sign
        return True
    try:
        difference = (left - right).evalf(2, maxn=_CANCELLED_DIGITS)
    except (ArithmeticError, ValueError, TypeError):
        return False
    # Where the difference cancels to nothing, evalf gives exactly 0 or a value of precision 1.
    return bool(difference == 0 or getattr(difference, "_prec", 1) == 1 or abs(difference) < sympy.Float(10) ** -300)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        return left.shape == right.shape and all(map(_same, left.flat(), right.flat()))
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_function(left, right)
    return bool(left == right)


def _constant_ratio(left: Any, right: Any) -> Any:
    """Returns the ratio of two expressions in the same variables, or None where it is not the same everywhere."""
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)) or left.free_symbols != right.free_symbols:
        return None
    ratios = []
    for left_there, right_there in _at_points(left, right):
        one, other = _value(left_there), _value(right_there)
        if one and other:
            ratios.append(one / other)
    constant = len(ratios) >= 4 and all(_close(ratios[0], ratio) for ratio in ratios[1:])
    return ratios[0] if constant else None


def equal(gold: str, answer: str) -> bool:
    """Whether two expressions or matrices are equal wherever both are real."""
    return _same(parse_expression(gold), parse_expression(answer))


def equation(gold: str, answer: str) -> bool:
    """Whether ``gold = 0`` and ``answer = 0`` are one equation up to a constant factor."""
    return _constant_ratio(parse_expression(gold), parse_expression(answer)) is not None


def inequality(gold: str, answer: str) -> bool:
    """Whether ``gold`` and ``answer``, each ``>difference`` or ``>=difference``, are one up to a positive factor."""
    if gold.startswith(">=") != answer.startswith(">="):
        return False
    ratio = _constant_ratio(parse_expression(gold.lstrip(">=")), parse_expression(answer.lstrip(">=")))
    return ratio is not None and _is_real(ratio) and bool(ratio.as_real_imag()[0] > 0)


def approximates(expression: str, decimal: str) -> bool:
    """Whether a decimal is the expression's value, rounded or cut off at the decimal's last digit."""
    return _within(expression, decimal, sympy.Rational(1))


def rounds_to(expression: str, decimal: str) -> bool:
    """Whether a decimal is the value, correctly rounded, of an expression that may have no finite decimal."""
    return not parse_expression(expression).is_rational and _within(expression, decimal, sympy.Rational(1, 2))


def _within(expression: str, decimal: str, units: Any) -> bool:
    """Whether a decimal is the expression's value but for so many units of its last digit."""
    value = _value(parse_expression(expression))
    if value is None or not _is_real(value):
        return False
    last_digit = sympy.Rational(1, 10 ** len(decimal.partition(".")[2]))
    return bool(abs(value.as_real_imag()[0] - sympy.Rational(decimal)) <= units * last_digit)


def varies(expression: str, other: str) -> bool:
    """Whether an expression depends on its variables. ``other`` is not used."""
    del other
    parsed = parse_expression(expression)
    if not isinstance(parsed, sympy.Expr):
        return False
    # An unknown function's value, as in f(2) + f(3), is a variable too.
    unknown = {call: sympy.Symbol(f"v{index}") for index, call in enumerate(parsed.atoms(AppliedUndef))}
    parsed = parsed.xreplace(unknown)
    if not parsed.free_symbols:
        return False
    values = [_value(there) for there, _ in _at_points(parsed, parsed)]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return not sympy.simplify(parsed).is_number
    return not all(_close(known[0], value) for value in known[1:])


def parses(gold: str, answer: str) -> bool:
    """True, where the gold can be parsed; hangs where it cannot be evaluated. ``answer`` is not used."""
    del answer
    expression = parse_expression(gold)
    if isinstance(expression, sympy.Expr):
        _value(next(_at_points(expression, expression))[0])
    return True


def _repeatable(operation: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    """Seeds the random numbers that sympy draws: a grade must not depend on what was graded before it."""

    @functools.wraps(operation)
    def seeded(gold: str, answer: str) -> bool:
        random.seed(0)
        sympy.core.random.seed(0)
        return operation(gold, answer)

    return seeded


OPERATIONS: Final[dict[str, Callable[[str, str], bool]]] = {
    operation.__name__: _repeatable(operation)
    for operation in (equal, equation, inequality, approximates, rounds_to, varies, parses)
}
