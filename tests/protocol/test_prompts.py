"""Templates: what is a field, what is text, and that a question is inserted as it is."""

from dataclasses import replace

import pytest

from retool_env.errors import ConfigurationError
from retool_env.protocol import Limits, get_protocol, protocol_names
from retool_env.protocol.prompts import code_description, fill, interpreter_note
from retool_env.tools import ToolRegistry

LIMITS = Limits(timeout_s=0.5, memory_mb=123, max_turns=4, max_tool_calls=3, max_observation_chars=20_000)
SESSION = replace(LIMITS, interpreter="session")
NASTY = "Let S = {x : {question}} and {timeout_s}; {{a}} \\boxed{} %s {0} \\g<1> {"


@pytest.mark.parametrize("name", ["code_tags", "tool_calls", "markdown"])
def test_the_question_is_inserted_verbatim(name):
    (message,) = get_protocol(name).messages(NASTY, ToolRegistry(), LIMITS)
    assert NASTY in message["content"]
    (message,) = get_protocol(name).messages(NASTY, ToolRegistry(), LIMITS, template="<{question}>")
    assert message == {"role": "user", "content": f"<{NASTY}>"}


def test_every_limit_is_a_field():
    template = "{question} {timeout_s} {memory_mb} {max_turns} {max_tool_calls} {max_observation_chars}"
    assert fill(template, "Q", LIMITS) == "Q 0.5 123 4 3 20000"


def test_what_is_to_be_known_of_the_interpreter_is_a_field():
    fresh = fill("{question} {interpreter}", "Q", LIMITS, unit="cell")
    assert fresh == "Q Each cell runs in a fresh interpreter: import and define again whatever you need."
    session = fill("{question} {interpreter}", "Q", SESSION, unit="cell")
    assert session.startswith("Q All cells share one interpreter and its memory: what one defines, the next can use.")
    assert session.endswith("everything defined before is lost.")


@pytest.mark.parametrize(("name", "unit"), [("code_tags", "block"), ("markdown", "fence"), ("tool_calls", "call")])
def test_every_protocol_has_its_own_word_for_a_piece_of_code(name, unit):
    for limits in (LIMITS, SESSION):
        (message,) = get_protocol(name).messages("Q", ToolRegistry(), limits, template="{question} {interpreter}")
        assert message["content"] == "Q " + interpreter_note(limits.interpreter, unit)


def opening(name, limits):
    """All that a policy reads before its first turn: the prompt and the description of the tool."""
    (message,) = get_protocol(name).messages("Q", ToolRegistry(), limits)
    return message["content"] + code_description(limits)


@pytest.mark.parametrize("name", ["code_tags", "markdown", "tool_calls"])
def test_what_a_policy_reads_is_true_of_its_interpreter(name):
    fresh, session = opening(name, LIMITS), opening(name, SESSION)
    assert "fresh interpreter" in fresh
    assert "share" not in fresh
    assert "share one interpreter" in session
    for untrue in ("fresh", "again whatever you need", "complete program", "do not last", "memory for each"):
        assert untrue not in session


@pytest.mark.parametrize(
    "literal",
    ["\\boxed{...}", "\\boxed{answer}", "\\boxed{}", "{'a': 1}", "{x | x > 1}", "{A}", "{ question }", "{", "}", "{1}"],
)
def test_other_braces_are_text(literal):
    assert fill(literal + " {question}", "Q", LIMITS) == literal + " Q"


def test_a_doubled_field_is_text():
    assert fill("{{question}} {{nope}} {question}", "Q", LIMITS) == "{question} {nope} Q"


def test_a_template_without_the_question_is_refused():
    for template in ("Solve it.", "{{question}}", "\\boxed{question}", ""):
        with pytest.raises(ConfigurationError, match=r"no \{question\}"):
            fill(template, "Q", LIMITS)


def test_an_unknown_field_is_refused_and_the_known_ones_are_named():
    with pytest.raises(ConfigurationError, match=r"unknown field \{qestion\}.*\{question\}, \{timeout_s\}"):
        fill("{qestion} {question}", "Q", LIMITS)


@pytest.mark.parametrize("limits", [LIMITS, SESSION], ids=["fresh", "session"])
def test_the_tool_description_states_the_limits(limits):
    text = code_description(limits)
    for part in ("0.5 seconds", "123 MB", "20000 characters", "3 calls"):
        assert part in text


def test_no_built_in_prompt_has_a_field_left():
    for name in protocol_names()[:3]:
        for limits in (LIMITS, SESSION):
            (message,) = get_protocol(name).messages("Q", ToolRegistry(), limits)
            assert "{" not in message["content"].replace("\\boxed{...}", "")
