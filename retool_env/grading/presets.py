"""The presets: which texts count as an answer, and how strictly it is compared."""

from __future__ import annotations

from typing import Final, Literal, get_args

from retool_env.grading.extract import extract_answer, last_boxed, model_text
from retool_env.grading.lenient import stated_answer
from retool_env.grading.strict import strict_answer

Preset = Literal["strict", "default", "lenient"]
PRESETS: Final[tuple[str, ...]] = get_args(Preset)


def check_preset(preset: str, answer_line: bool | None = None) -> None:
    """Checks that there is such a preset, and that it does with answer lines what is asked for.

    Raises:
        ValueError: There is none, or it does not.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if answer_line is not None and preset != "default" and answer_line != (preset == "lenient"):
        ways = {"strict": "never takes answer lines, as verl does not", "lenient": "always takes answer lines"}
        raise ValueError(f"answer_line: the {preset} preset {ways[preset]}; leave the option out")


def find_answer(text: str, preset: str, answer_line: bool | None) -> str | None:
    """Returns the answer that a text states, as a preset reads it, or None.

    Args:
        text: What the policy wrote in its last turn.
        preset: One of ``PRESETS``.
        answer_line: With the default preset, take a line ``Answer: 42`` where there is no box.
    """
    if preset == "strict":
        return strict_answer(text)
    if preset == "default":
        return extract_answer(text, answer_line=bool(answer_line))
    own = model_text(text)
    if (boxed := last_boxed(own)) is not None:
        return boxed
    tagged = extract_answer(own)
    return stated_answer(own if tagged is None else tagged) or tagged
