"""The prompts that open an episode: built-in templates, user templates, and the tool's description with its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import resources

from retool_env.errors import ConfigurationError
from retool_env.protocol.base import Limits, Message
from retool_env.tools import CODE_INTERPRETER, ToolRegistry

_FIELD = re.compile(r"\\[A-Za-z]+\{[^{}]*\}|\{\{([a-z_][a-z0-9_]*)\}\}|\{([a-z_][a-z0-9_]*)\}")


def fill(template: str, question: str, limits: Limits) -> str:
    r"""Fills a template.

    A field is a lower-case name in braces, ``{question}`` or one of the limits, ``{timeout_s}``, ``{memory_mb}``,
    ``{max_turns}``, ``{max_tool_calls}``, ``{max_observation_chars}``. Every other brace stands for itself: the
    argument of a LaTeX command (``\boxed{answer}``, ``\boxed{...}``), JSON, set notation. ``{{name}}`` gives
    ``{name}``. What is inserted is never looked at again, so a question may hold anything.

    Args:
        template: The template's text.
        question: The problem, inserted verbatim.
        limits: The limits that are enforced.

    Raises:
        ConfigurationError: The template lacks ``{question}`` or names an unknown field.
    """
    values = {"question": question, **_shown(limits)}
    used: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        literal, name = match.group(1), match.group(2)
        if literal is not None:
            return "{" + str(literal) + "}"
        if name is None:
            return match.group()
        if name not in values:
            known = ", ".join("{" + field + "}" for field in values)
            raise ConfigurationError(
                f"template: unknown field {{{name}}}; known are {known}; write {{{{{name}}}}} to have it as text"
            )
        used.add(name)
        return values[name]

    filled = _FIELD.sub(replace, template)
    if "question" not in used:
        raise ConfigurationError("template: it has no {question}, so the policy would not see the problem")
    return filled


@lru_cache(maxsize=16)
def builtin_template(name: str) -> str:
    """Returns the text of a built-in template, by the protocol's name."""
    folder = resources.files("retool_env.protocol") / "templates"
    return (folder / f"{name}.txt").read_text(encoding="utf-8").strip()


def opening_messages(name: str, question: str, limits: Limits, template: str | None) -> list[Message]:
    """Returns the one user message that opens an episode.

    Args:
        name: The protocol whose built-in template is the default.
        question: The problem, inserted verbatim.
        limits: The limits that are enforced.
        template: A user's template, or None.

    Raises:
        ConfigurationError: As ``fill``.
    """
    text = builtin_template(name) if template is None else template
    return [{"role": "user", "content": fill(text, question, limits)}]


def code_description(limits: Limits) -> str:
    """Returns the description of ``code_interpreter`` for its tool schema, with the limits that are enforced."""
    shown = _shown(limits)
    return (
        "Runs Python code in a fresh interpreter and returns what it prints and the value of a last expression. "
        f"Variables do not last from one call to the next. Limits: {shown['timeout_s']} seconds and "
        f"{shown['memory_mb']} MB of memory for each call, {shown['max_observation_chars']} characters of output, "
        f"{shown['max_tool_calls']} calls in all. No network, no input."
    )


def require_code_only(name: str, tools: ToolRegistry) -> None:
    """Checks that a protocol which can only run code is not given other tools.

    Raises:
        ConfigurationError: There are other tools.
    """
    others = [tool.name for tool in tools if tool.name != CODE_INTERPRETER]
    if others:
        raise ConfigurationError(
            f"protocol: {name!r} can only call {CODE_INTERPRETER}, not {', '.join(others)}; use protocol 'tool_calls'"
        )


def _shown(limits: Limits) -> Mapping[str, str]:
    return {field.name: f"{getattr(limits, field.name):.15g}" for field in fields(limits)}
