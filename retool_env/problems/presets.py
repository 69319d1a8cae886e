"""Data sets of the field by name: where they are on the hub, and what their rows need beside finding the columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

_FIRST_PARAGRAPH: Final = re.compile(r"\s*Solve the following math problem step by step\.[^\n]*\n+")
_LAST_PARAGRAPH: Final = re.compile(r"\nRemember to put your answer on its own line after[^\n]*\s*\Z")
_AIME: Final = re.compile(
    r"\$?\s*(?:\\boxed\s*\{)?\s*([0-9]{1,3})(?:\.0*)?\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)?\s*\}?\s*\$?\.?"
)


class Preset(NamedTuple):
    """What is known of a data set.

    Attributes:
        repository: Its id on the hub.
        split: The split that is read of this repository.
        on_bad: What happens to bad rows where the caller does not say.
        canonical: Applied to the text of a gold answer; raises ``ValueError`` for one that cannot be right.
    """

    repository: str
    split: str
    on_bad: Literal["raise", "skip"]
    canonical: Callable[[str], str] | None = None


def bare_question(prompt: str) -> str:
    r"""Returns the question of a prompt in the form of DAPO-Math-17k, which asks for a line ``Answer: ...`` around it.

    The first paragraph goes if it is the instruction that ends in the form of the answer, the last if it is the
    reminder; a question without them stays as it is. An environment's protocol states the form of an answer itself, and
    it is another one.
    """
    match = _FIRST_PARAGRAPH.match(prompt)
    body = prompt[match.end() :] if match else prompt
    return _LAST_PARAGRAPH.sub("", body).strip()


def aime_answer(text: str) -> str:
    r"""Returns the answer to an AIME problem, an integer from 0 to 999, in one form: ``025``, ``\boxed{25}`` -> ``25``.

    Raises:
        ValueError: It is not one.
    """
    match = _AIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"an answer of the AIME is an integer from 0 to 999, got {text!r:.80}")
    return str(int(match.group(1)))


PRESETS: Final[dict[str, Preset]] = {
    "dapo-math-17k": Preset("BytedTsinghua-SIA/DAPO-Math-17k", "train", "skip"),
    "aime-2024": Preset("HuggingFaceH4/aime_2024", "train", "raise", aime_answer),
    "aime-2025": Preset("math-ai/aime25", "test", "raise", aime_answer),
}
"""By name. All are freed of the instructions around a question, and of repeats."""
