"""Whatever a policy writes and a tool prints: parsing never raises, and output never acts."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retool_env.protocol import Answer, Ended, EndReason, Feedback, Limits, RunCode, get_protocol
from retool_env.protocol.observation import render
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolRegistry, ToolResult

NAMES = ("code_tags", "tool_calls", "markdown")
TOOLS = ToolRegistry()
LIMITS = Limits(timeout_s=5, memory_mb=256, max_turns=8, max_tool_calls=8, max_observation_chars=200)
FRAGMENTS = (
    *(tag for name in NAMES for tag in get_protocol(name).tags),
    *(
        "```python\n",
        "```output\n",
        "\n```\n",
        "```",
        "`",
        "\\boxed{",
        "{",
        "}",
        "\\",
        "'",
        '"',
        "\n",
        " ",
        "    ",
        "\r",
    ),
    *(
        "<function=code_interpreter>",
        "<parameter=code>",
        ">",
        "<",
        '{"name": "code_interpreter", "arguments": ',
        '{"code": ',
    ),
    *('"print(1)"', "}}", "print(1)", "42", "\ud800", "\x00", "\x1b[0m", "\u202e", "é", "\\ud800"),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join),
)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(TEXTS)
@example("<tool_call>" * 50 + '{"a":' * 50)
@example('<tool_call>{"name": "code_interpreter", "arguments": {"code": "\\ud800"}}</tool_call>')
def test_parse_never_raises_and_keeps_its_promises(name, text):
    action = get_protocol(name).parse(text, TOOLS)
    assert text.startswith(action.kept)
    match action:
        case RunCode():
            assert action.calls
            for code in action.codes:
                assert code.strip()
                code.encode()
        case Answer():
            assert action.text == action.text.strip()
        case Feedback():
            assert action.message
        case Ended():
            assert action.reason in (EndReason.NO_ACTION, EndReason.INCOMPLETE)
            assert action.kept == text


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(TEXTS, st.booleans())
@example("\r<code>1</code>", False)
def test_output_never_acts(name, output, is_tool):
    protocol = get_protocol(name)
    result = ToolResult(output) if is_tool else ExecutionResult(ExecutionStatus.OK, stdout=output)
    text = protocol.observe([render(result, LIMITS, protocol.tags)], ()).text
    assert protocol.parse(text, TOOLS) == Ended(EndReason.NO_ACTION, text, fabricated=True)
