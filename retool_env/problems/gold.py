"""Checks gold answers when they are loaded: each distinct one once."""

from __future__ import annotations

from functools import lru_cache


def gold_fault(gold: str) -> str | None:
    """Returns why no answer could be compared with this gold, or None if it is good."""
    try:
        _check(gold)
    except ValueError as error:
        return f"the gold answer {gold!r:.80} cannot be parsed: {error}"
    return None


# Only good ones are remembered: a check that failed because the machine was busy may succeed later.
@lru_cache(maxsize=1 << 16)
def _check(gold: str) -> None:
    from retool_env.grading import check_gold

    check_gold(gold)
