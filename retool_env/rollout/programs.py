"""Python programs for the built-in problems, written from the question's own numbers, for the scripted policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Program:
    """A program in parts, so that a scripted policy can leave one out.

    Attributes:
        plan: What a solver would say before writing it.
        imports: Import lines; may be empty.
        data: Lines that bind the question's numbers.
        body: Lines that bind ``result``.
    """

    plan: str
    imports: str
    data: str
    body: str

    @property
    def source(self) -> str:
        """The whole program; it prints ``answer = ...``."""
        return "\n".join(part for part in (self.imports, self.data, self.body, 'print("answer =", result)') if part)


def write_program(family: str, question: str) -> Program | None:
    """Returns a program that answers a question of a built-in family, or None where the question is not understood."""
    writer = _WRITERS.get(family)
    return None if writer is None else writer(question)


def _products(question: str) -> Program | None:
    match = re.search(r"multiplication: ([-\d* ]+)\.", question)
    if match is None:
        return None
    factors = ", ".join(re.findall(r"-?\d+", match[1]))
    return Program("This is a product of large integers.", "import math", f"factors = [{factors}]",
                   "result = math.prod(factors)")  # fmt: skip


def _decimal_chain_sum(question: str) -> Program | None:
    match = re.search(r"problem: (.+) =", question)
    if match is None:
        return None
    terms = [sign + number for sign, number in re.findall(r"([+-]?) ?(\d+(?:\.\d+)?)", match[1])]
    return Program(
        "The decimals must be added without rounding.",
        "from decimal import Decimal",
        f"terms = {' '.join(terms).split()!r}",
        "result = sum(Decimal(term) for term in terms)",
    )


def _count_primes(question: str) -> Program | None:
    match = re.search(r"between (\d+) and (\d+)", question)
    if match is None:
        return None
    body = (
        "sieve = bytearray([1]) * (high + 1)\n"
        "sieve[:2] = bytes(2)\n"
        "for p in range(2, math.isqrt(high) + 1):\n"
        "    if sieve[p]:\n"
        "        sieve[p * p :: p] = bytes(len(range(p * p, high + 1, p)))\n"
        "result = sum(sieve[low:])"
    )
    return Program("A sieve up to the upper bound counts them.", "import math", f"low, high = {match[1]}, {match[2]}",
                   body)  # fmt: skip


def _lcm(question: str) -> Program | None:
    match = re.search(r"numbers: ([\d, ]+)", question)
    if match is None:
        return None
    numbers = ", ".join(re.findall(r"\d+", match[1]))
    return Program("Build the least common multiple number by number.", "from math import gcd",
                   f"numbers = [{numbers}]",
                   "result = 1\nfor n in numbers:\n    result = result * n // gcd(result, n)")  # fmt: skip


def _base_conversion(question: str) -> Program | None:
    match = re.search(r"convert the (\S+) number (\w+) to (\S+)", question)
    if match is None:
        return None
    source, target = (2 if name == "binary" else int(name.removeprefix("base-")) for name in (match[1], match[3]))
    body = (
        f"value = int(digits, {source})\n"
        'result = ""\n'
        "while value:\n"
        "    value, digit = divmod(value, target)\n"
        "    result = str(digit) + result"
    )
    return Program("Read the digits, then divide by the target base again and again.", "",
                   f'digits, target = "{match[2]}", {target}', body)  # fmt: skip


def _simple_equations(question: str) -> Program | None:
    match = re.search(r"([^\s:][^:=]*) = (-?\d+)", question)
    if match is None:
        return None
    variable = re.search(r"[a-z]", match[1])
    if variable is None:
        return None
    return Program(
        "The left side is linear: two values of it give slope and constant.",
        "from fractions import Fraction",
        f"def left({variable[0]}):\n    return {match[1].strip()}\n\nright = {match[2]}",
        "constant = left(0)\nslope = left(1) - constant\nresult = Fraction(right - constant, slope)",
    )


def _dice(question: str) -> Program | None:
    dice = re.search(r"dice: ([\dd, ]+)\.", question)
    target = re.search(r"rolling (\d+) or higher", question)
    if dice is None or target is None:
        return None
    sides = ", ".join(re.findall(r"1d(\d+)", dice[1]))
    body = (
        "ways = {0: 1}\n"
        "for n in sides:\n"
        "    rolled = {}\n"
        "    for total, count in ways.items():\n"
        "        for face in range(1, n + 1):\n"
        "            rolled[total + face] = rolled.get(total + face, 0) + count\n"
        "    ways = rolled\n"
        "good = sum(count for total, count in ways.items() if total >= target)\n"
        "result = Fraction(good, sum(ways.values()))"
    )
    return Program("Count the ways to reach every total, die by die.", "from fractions import Fraction",
                   f"sides, target = [{sides}], {target[1]}", body)  # fmt: skip


def _count_bits(question: str) -> Program | None:
    match = re.search(r"the number (\d+)", question)
    if match is None:
        return None
    return Program("Python can write the number in binary.", "", f"number = {match[1]}",
                   'result = bin(number).count("1")')  # fmt: skip


def _largest_island(question: str) -> Program | None:
    rows = re.findall(r"^[01](?: [01])+$", question, re.MULTILINE)
    if not rows:
        return None
    grid = "grid = [\n" + "".join(f'    "{row.replace(" ", "")}",\n' for row in rows) + "]"
    body = (
        'land = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == "1"}\n'
        "result = 0\n"
        "while land:\n"
        "    edge, area = [land.pop()], 0\n"
        "    while edge:\n"
        "        r, c = edge.pop()\n"
        "        area += 1\n"
        "        near = {(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)} & land\n"
        "        land -= near\n"
        "        edge += near\n"
        "    result = max(result, area)"
    )
    return Program("Flood-fill every island and keep the largest area.", "", grid, body)


_WRITERS: Final[dict[str, Callable[[str], Program | None]]] = {
    "products": _products,
    "decimal_chain_sum": _decimal_chain_sum,
    "count_primes": _count_primes,
    "lcm": _lcm,
    "base_conversion": _base_conversion,
    "simple_equations": _simple_equations,
    "dice": _dice,
    "count_bits": _count_bits,
    "largest_island": _largest_island,
}
