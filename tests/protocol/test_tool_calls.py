"""The ``tool_calls`` protocol, rule by rule; the recorded cases are in ``test_cases``."""

import json

import pytest

from retool_env.protocol import Answer, Ended, EndReason, Feedback, Limits, RunCode, get_protocol
from retool_env.tools import Tool, ToolCall, ToolRegistry

PROTOCOL = get_protocol("tool_calls")
SEARCH = Tool(
    "search",
    "Finds.",
    {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]},
    lambda q, n=1: q * n,
)


def call(code="print(1)", name="code_interpreter", **arguments):
    arguments = arguments or {"code": code}
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def xml(code="print(1)"):
    return f"<function=code_interpreter>\n<parameter=code>\n{code}\n</parameter>\n</function>"


def parse(text):
    action = PROTOCOL.parse(text, ToolRegistry([SEARCH]))
    assert text.startswith(action.kept)
    return action


def codes(text):
    action = parse(text)
    assert isinstance(action, RunCode), action
    return action.codes


def test_calls_of_several_tools_run_in_order():
    action = parse(call() + "\nand\n" + call(name="search", q="x", n=2) + "\nthen I wait")
    assert isinstance(action, RunCode)
    assert action.calls == (
        ToolCall("code_interpreter", {"code": "print(1)"}),
        ToolCall("search", {"q": "x", "n": 2}),
    )
    assert action.codes == ("print(1)",)
    assert action.kept.endswith("</tool_call>")


def test_one_bad_call_stops_the_batch():
    action = parse(call() + call(name="nope") + call())
    assert isinstance(action, Feedback)
    assert "unknown tool: nope" in action.message
    assert "call 2 of the turn" in action.message
    assert action.kept.count("</tool_call>") == 2


def test_a_call_beats_an_answer():
    assert codes("\\boxed{3}\n" + call() + "\n\\boxed{4}") == ("print(1)",)


@pytest.mark.parametrize("between", ["", "\n", "\nSo:\n"])
def test_calls_after_an_invented_response_are_dropped(between):
    text = call() + between + "<tool_response>\n1\n</tool_response>\n" + call("print(2)")
    action = parse(text)
    assert isinstance(action, RunCode)
    assert action.codes == ("print(1)",)
    assert action.kept == call()
    assert action.fabricated


def test_a_box_in_an_invented_response_is_no_answer():
    text = "<tool_response>\n\\boxed{3}\n</tool_response>"
    assert parse(text) == Ended(EndReason.NO_ACTION, text, fabricated=True)


@pytest.mark.parametrize(
    "code", ["print('</tool_call>')", "print('</think>')", "s = '<tool_call>'", "s='<think>'", "'{'"]
)
def test_tags_inside_json_strings_are_code(code):
    assert codes(call(code)) == (code,)
    assert codes(call(code) + "\n" + call("print(2)")) == (code, "print(2)")


@pytest.mark.parametrize(
    "code", ["print('</tool_call>')", "print('</parameter>')", "print('</function>')", "  x\n", "s = '<parameter=a>'"]
)
def test_tags_inside_xml_parameters_are_code(code):
    expected = code.strip()
    assert codes(f"<tool_call>\n{xml(code)}\n</tool_call>") == (expected,)
    assert codes(xml(code)) == (expected,)


def test_xml_arguments_take_the_type_of_the_schema():
    text = "<tool_call><function=search><parameter=q>12</parameter><parameter=n>12</parameter></function></tool_call>"
    action = parse(text)
    assert isinstance(action, RunCode)
    assert action.calls == (ToolCall("search", {"q": "12", "n": 12}),)


def test_a_bare_xml_call_may_have_a_stray_closing_tag():
    text = xml() + "\n</tool_call>"
    action = parse(text)
    assert isinstance(action, RunCode)
    assert action.kept == text


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("", "malformed call"),
        ("print(1)", "invalid JSON"),
        ('["code_interpreter"]', "invalid JSON"),
        ('{"arguments": {}}', "malformed call"),
        ('{"name": "code_interpreter"}', "missing argument: code"),
        ('{"name": "code_interpreter", "arguments": "print(1)"}', "arguments must be a JSON object"),
        ('{"name": "code_interpreter", "arguments": {"code": ""}}', "empty code"),
        ('{"name": "code_interpreter", "arguments": {"code": "```sh\\nls\\n```"}}', "unsupported language: sh"),
        ('{"name": 3, "arguments": {}}', "unknown tool: 3"),
        ('{"name": "search", "arguments": {"q": "x"}} trailing', "malformed call"),
        ('{"a":' * 200_000, "invalid JSON"),
        ('{"a":' + "9" * 10_000 + "}", "invalid JSON"),
        *(
            (f'{{"name": "search", "arguments": {{"q": "x", "n": {number}}}}}', f"invalid JSON: {complaint}")
            for number, complaint in [
                ("NaN", "NaN is not a JSON number"),
                ("Infinity", "Infinity is not a JSON number"),
                ("[-Infinity]", "-Infinity is not a JSON number"),
                ("1e999", "the number 1e999 is too large"),
                ("-1" + "0" * 400 + ".5", "the number -1000"),
            ]
        ),
        (r'{"name": "search", "arguments": "{\"q\": NaN}"}', "arguments must be a JSON object"),
        ('{"name": "\\ud800", "arguments": {}}', "unknown tool: \ufffd"),
        ("<function=search><parameter=q>x</parameter><parameter=n>NaN</parameter></function>", "argument n must be"),
        ("<function=search><parameter=q>x</parameter><parameter=n>1e999</parameter></function>", "argument n must be"),
        ("<function=code_interpreter><parameter=code>1</parameter>", "malformed call"),
        ("<function=code_interpreter><parameter=code>1</function>", "malformed call"),
        ("<function=><parameter=code>1</parameter></function>", "malformed call"),
        ("<function=code_interpreter></function>", "missing argument: code"),
    ],
)
def test_a_bad_call_is_feedback(inside, message):
    text = f"<tool_call>{inside}</tool_call>"
    action = parse(text)
    assert isinstance(action, Feedback), action
    assert message in action.message
    assert len(action.message) < 400
    assert action.kept == text


def test_deep_arguments_are_no_crash():
    inner = '{"a":' * 3000 + "1" + "}" * 3000
    text = '<tool_call>{"name": "search", "arguments": {"q": "x", "more": ' + inner + "}}</tool_call>"
    assert isinstance(parse(text), Feedback | RunCode)


def test_lone_surrogates_written_in_json_do_not_get_through():
    (code,) = codes('<tool_call>{"name": "code_interpreter", "arguments": {"code": "s = \'\\ud800\'"}}</tool_call>')
    assert code.encode() == "s = '\ufffd'".encode()


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>\n" + xml(),
        xml()[:-3],
        call()[:-1],
        "<think>" + call()[:-1],
        "\\boxed{3",
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(\'</tool_call>\')"'[:-20],
    ],
)
def test_a_cut_turn_is_incomplete(text):
    assert parse(text) == Ended(EndReason.INCOMPLETE, text)


@pytest.mark.parametrize(
    "text",
    [
        "<think>models use <tool_call> tags</think>",
        "models use <tool_call> tags</think>",
        f"<think>{call()}</think>",
        f"{call()}</think>",
        f"First <think>{call('x')}</think>",
        "I need no <tool_call> for that: ",
        "I need no <function=...> and no <tool_response> for that: ",
        "<think>",
        "<think>Write \\boxed{</think>",
    ],
)
def test_mentions_and_thinking_do_not_hide_the_answer(text):
    text += "\\boxed{8}"
    assert parse(text) == Answer("8", text)


def test_thinking_that_mentions_a_tag_does_not_hide_the_call():
    assert codes("I use <tool_call> now.</think>\n" + call()) == ("print(1)",)
    assert codes(f"<think>{call('x')}</think>{call()}") == ("print(1)",)
    assert codes("I use <tool_call>, so: " + call()) == ("print(1)",)


def test_observations_are_tool_messages():
    calls = (ToolCall("code_interpreter", {"code": "1"}), ToolCall("search", {"q": "x"}))
    observation = PROTOCOL.observe(["1", "y"], calls)
    assert observation.messages == (
        {"role": "tool", "content": "1", "name": "code_interpreter"},
        {"role": "tool", "content": "y", "name": "search"},
    )
    assert observation.text == "\n<tool_response>\n1\n</tool_response>\n<tool_response>\ny\n</tool_response>\n"


def test_feedback_is_a_tool_message_without_a_name():
    assert PROTOCOL.observe(["Error: x"], ()).messages == ({"role": "tool", "content": "Error: x"},)


def test_the_prompt_is_one_user_message():
    limits = Limits(timeout_s=5, memory_mb=256, max_turns=7, max_tool_calls=6, max_observation_chars=100)
    (message,) = PROTOCOL.messages("What is 1+1?", ToolRegistry([SEARCH]), limits)
    assert message["role"] == "user"
    for part in ("What is 1+1?", "\\boxed{...}", "Turns: at most 7", "Tool calls: at most 6"):
        assert part in message["content"]
