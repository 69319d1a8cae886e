"""Which of the wrong answers to a problem are the same answer: what a majority vote needs to know.

Right answers are: they all equal the gold. Wrong ones are compared with the grader, as answers are with a gold. That is
bounded, in number and in seconds. What is left out of it counts as different.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from retool_env.errors import ReToolError
from retool_env.grading import grade_answer
from retool_env.grading.latex import MAX_CHARS, clean
from retool_env.grading.numeric import parse_number

_MAX_KEY_CHARS: Final = 120
_PER_PROBLEM: Final = 200
_LIMIT_S: Final = 1.0


@dataclass(slots=True)
class Comparisons:
    """How much comparing there may be in a run, and what there was.

    Attributes:
        left: Comparisons that may still be made.
        left_s: Seconds that they may still take together; after that none is made.
        made: Comparisons that were made.
        skipped: Answers that were not compared with all others because there are too many; they count as different.
        undecided: Comparisons that came to no verdict; they count as different.
    """

    left: int = 20_000
    left_s: float = 60.0
    made: int = 0
    skipped: int = 0
    undecided: int = 0

    def same(self, one: str, other: str) -> bool:
        """Whether two answers are the same, as far as that can be afforded."""
        if self.left <= 0 or self.left_s <= 0:
            self.skipped += 1
            return False
        self.left -= 1
        self.made += 1
        started = time.perf_counter()
        try:
            grade = grade_answer(other, one, limit_s=_LIMIT_S)
        except ValueError:  # no gold could be like this (infinity, nothing at all): then they differ
            return False
        except ReToolError:  # no comparison could be started
            self.undecided += 1
            return False
        finally:
            self.left_s -= time.perf_counter() - started
        self.undecided += grade.timed_out
        return grade.correct


def answer_key(answer: str) -> str:
    """Returns a short text that only equal answers share.

    Integers and fractions are written by their value, other answers as cleaned, long ones hashed. Some equal answers
    have different keys: those are for ``class_sizes`` to find.
    """
    text = answer.strip()
    if len(text) > MAX_CHARS:
        return _digest(text)
    text = clean(text)
    number = parse_number(text)
    # A decimal of many digits may stand for a fraction, and a unit may be left out: those are for the grader to say.
    if number is not None and not number.unit and (number.decimals is None or number.value.denominator == 1):
        text = str(number.value)
    return text if len(text) <= _MAX_KEY_CHARS else _digest(text)


def class_sizes(answers: Mapping[str, int], comparisons: Comparisons) -> list[int]:
    """Returns how often each different answer was given, the commonest first.

    Args:
        answers: How often each ``answer_key`` occurs.
        comparisons: What may be spent on it.
    """
    sizes: dict[str, int] = {}
    integers: list[str] = []
    others: list[str] = []
    budget = _PER_PROBLEM
    for key, count in sorted(answers.items(), key=lambda item: (-item[1], item[0])):
        leader = key
        # Two plain integers that are written differently differ; hashed answers are longer than any that is looked at.
        rivals = () if key.startswith("#") else chain(others, () if _is_integer(key) else integers)
        for rival in rivals:
            if budget <= 0:
                comparisons.skipped += 1
                break
            budget -= 1
            if comparisons.same(rival, key):
                leader = rival
                break
        sizes[leader] = sizes.get(leader, 0) + count
        if leader is key and not key.startswith("#"):
            (integers if _is_integer(key) else others).append(key)
    return sorted(sizes.values(), reverse=True)


def _is_integer(key: str) -> bool:
    return key.isascii() and key.removeprefix("-").isdigit()


def _digest(text: str) -> str:
    return "#" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
