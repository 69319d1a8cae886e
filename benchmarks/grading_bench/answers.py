"""Made-up answers of the kinds that are timed, with their verdicts: eight for each gold, as in a group of rollouts."""

from __future__ import annotations

import random

from .children import Answer

_GROUP = 8
_TURN = (
    "The code agrees with what we found by hand: the two cases do not overlap, so that we may add them up, and the "
    "second one counts every arrangement exactly once because the order within a pair does not matter. Checking the "
    "small values by hand gives the same numbers. So the answer is "
)


def integers(count: int, seed: int) -> list[Answer]:
    """Returns answers to problems whose gold is an integer: half of them right, some with zeros or commas."""
    rng = random.Random(seed)
    found: list[Answer] = []
    while len(found) < count:
        gold = rng.randrange(10**6)
        for _ in range(_GROUP):
            right = rng.random() < 0.5
            form = rng.choice(("{}", "{}", "{:07}", "{:,}"))
            found.append((form.format(gold if right else gold + rng.randrange(1, 100)), str(gold), right))
    return found[:count]


def latex(count: int, seed: int) -> list[Answer]:
    """Returns answers in LaTeX: half of them right, no two of them alike, and none written like its gold."""
    rng = random.Random(seed)
    found: list[Answer] = []
    while len(found) < count:
        kind = rng.choice((_surd, _square, _root, _angle, _tuple, _fraction))
        n, k = rng.randrange(10, 1000), rng.randrange(10, 1000)
        for factor in range(1, _GROUP + 1):
            right = rng.random() < 0.5
            answer, gold = kind(n, k, 0 if right else rng.randrange(1, 9), factor)
            found.append((answer, gold, right))
    return found[:count]


def boxed(answers: list[Answer], *, turn: bool = False) -> list[Answer]:
    """Returns them as texts: the box alone, or at the end of a turn of about 300 characters."""
    before, after = (_TURN, ".") if turn else ("", "")
    return [(f"{before}\\boxed{{{answer}}}{after}", gold, right) for answer, gold, right in answers]


def _surd(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    return rf"\frac{{{factor * (n + error)}}}{{{factor}\sqrt{{2}}}}", rf"\frac{{{n}\sqrt{{2}}}}{{2}}"


def _square(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    return rf"x^2+{2 * n}x+{n * n + error + factor}-{factor}", rf"(x+{n})^2"


def _root(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    return rf"\frac{{{factor * (n + error)}\sqrt{{3}}}}{{{factor}}}", rf"\sqrt{{{3 * n * n}}}"


def _angle(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    return rf"\frac{{{factor}\pi}}{{{factor * (n + error)}}}", rf"\frac{{\pi}}{{{n}}}"


def _tuple(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    answer = rf"({n}, \frac{{{factor * (k + error)}}}{{{2 * factor}}}, \sqrt{{{k}}})"
    return answer, rf"({n}, {k / 2:g}, \sqrt{{{k}}})"


def _fraction(n: int, k: int, error: int, factor: int) -> tuple[str, str]:
    return rf"\dfrac{{{factor * (n + error)}}}{{{factor * k}}}", rf"\frac{{{n}}}{{{k}}}"
