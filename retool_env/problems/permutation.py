"""Orders that depend on a key alone: the same in every process, on every platform and Python, from no stored state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isqrt
from typing import Final, TypeVar

T = TypeVar("T")
_ROUNDS: Final = 8


def digest(*parts: object) -> int:
    """A 64-bit number from the parts: the same in every process and on every Python, unlike ``hash``."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def permuted(index: int, n: int, *key: object) -> int:
    """Returns where ``index`` goes in the permutation of ``range(n)`` that the key chooses.

    Costs the same for any ``n`` and keeps nothing: no list of ``n`` numbers is made. A generalised Feistel network over
    a grid of about ``n`` cells, applied until the cell is one of the first ``n`` (Black and Rogaway, "Ciphers with
    arbitrary finite domains", 2002).

    Args:
        index: At least 0 and less than ``n``.
        n: The number of places; at least 1.
        *key: Chooses the permutation: numbers and text.
    """
    secret = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    height = isqrt(n - 1) + 1
    width = -(-n // height)
    while True:
        row, column = divmod(index, width)
        for step in range(0, _ROUNDS, 2):
            row = (row + _keyed(secret, step, column)) % height
            column = (column + _keyed(secret, step + 1, row)) % width
        index = row * width + column
        if index < n:
            return index


def shuffle(items: Sequence[T], *key: object) -> list[T]:
    """Returns the items in the order that the key chooses, each order as likely as any other."""
    shuffled = list(items)
    bits = hashlib.shake_128("\x1f".join(map(str, key)).encode()).digest(8 * len(shuffled))
    for last in range(len(shuffled) - 1, 0, -1):
        other = int.from_bytes(bits[8 * last : 8 * last + 8], "big") % (last + 1)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled


def _keyed(secret: bytes, step: int, value: int) -> int:
    message = step.to_bytes(1, "big") + value.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(message, key=secret, digest_size=8).digest(), "big")
