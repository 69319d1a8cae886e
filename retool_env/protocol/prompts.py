"""The prompts that open an episode: built-in templates, user templates, and the tool's description with its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import resources

from retool_env.errors import ConfigurationError
from retool_env.protocol.base import InterpreterMode, Limits, Message
from retool_env.tools import CODE_INTERPRETER, ToolRegistry

_FIELD = re.compile(r"\\[A-Za-z]+\{[^{}]*\}|\{\{([a-z_][a-z0-9_]*)\}\}|\{([a-z_][a-z0-9_]*)\}")


def fill(template: str, question: str, limits: Limits, unit: str = "block") -> str:
    r"""Fills a template.

    A field is a lower-case name in braces: ``{question}``; one of the limits, ``{timeout_s}``, ``{memory_mb}``,
    ``{max_turns}``, ``{max_tool_calls}``, ``{max_observation_chars}``; or ``{interpreter}``, the sentence that
    ``interpreter_note`` gives. Every other brace stands for itself: the argument of a LaTeX command
    (``\boxed{answer}``, ``\boxed{...}``), JSON, set notation. ``{{name}}`` gives ``{name}``. What is inserted is never
    looked at again, so a question may hold anything.

    Args:
        template: The template's text.
        question: The problem, inserted verbatim.
        limits: The limits that are enforced.
        unit: What the protocol calls a piece of code.

    Raises:
        ConfigurationError: The template lacks ``{question}`` or names an unknown field.
    """
    values = {"question": question, **_shown(limits), "interpreter": interpreter_note(limits.interpreter, unit)}
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


def opening_messages(
    name: str, question: str, limits: Limits, template: str | None, unit: str = "block"
) -> list[Message]:
    """Returns the one user message that opens an episode.

    Args:
        name: The protocol whose built-in template is the default.
        question: The problem, inserted verbatim.
        limits: The limits that are enforced.
        template: A user's template, or None.
        unit: What the protocol calls a piece of code.

    Raises:
        ConfigurationError: As ``fill``.
    """
    text = builtin_template(name) if template is None else template
    return [{"role": "user", "content": fill(text, question, limits, unit)}]


def interpreter_note(mode: InterpreterMode, unit: str) -> str:
    """Returns what the policy should know about the interpreter: what lasts from one piece of code to the next.

    Args:
        mode: Whether pieces of code share an interpreter.
        unit: What the protocol calls a piece of code, in the singular.
    """
    if mode == "fresh":
        return f"Each {unit} runs in a fresh interpreter: import and define again whatever you need."
    return (
        f"All {unit}s share one interpreter and its memory: what one defines, the next can use. "
        f"If a {unit} crashes or is stopped at a limit, everything defined before is lost."
    )


def code_description(limits: Limits) -> str:
    """Returns the description of ``code_interpreter`` for its tool schema, with the limits that are enforced."""
    shown = _shown(limits)
    memory = f"{shown['memory_mb']} MB of memory"
    if limits.interpreter == "fresh":
        resources_text = f"{shown['timeout_s']} seconds and {memory} for each call"
    else:
        resources_text = f"{shown['timeout_s']} seconds for each call, {memory} for all of them together"
    return (
        "Runs Python code and returns what it prints and the value of a last expression. "
        f"{interpreter_note(limits.interpreter, 'call')} Limits: {resources_text}, "
        f"{shown['max_observation_chars']} characters of output, {shown['max_tool_calls']} calls in all. "
        "No network, no input."
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
    numbers = (field.name for field in fields(limits) if field.name != "interpreter")
    return {name: f"{getattr(limits, name):.15g}" for name in numbers}
