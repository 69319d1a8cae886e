"""The ``code_tags`` protocol, rule by rule; the recorded cases are in ``test_cases``."""

import pytest

from retool_env.errors import ConfigurationError
from retool_env.protocol import Answer, Ended, EndReason, Feedback, Limits, RunCode, get_protocol
from retool_env.tools import Tool, ToolRegistry

PROTOCOL = get_protocol("code_tags")
LIMITS = Limits(timeout_s=2.5, memory_mb=256, max_turns=7, max_tool_calls=6, max_observation_chars=1234)
BLOCK = "<code>\n```python\nprint(1)\n```\n</code>"
INVENTED = "<interpreter>\n1\n</interpreter>"
BOXED = "<answer>\\boxed{8}</answer>"


def parse(text):
    action = PROTOCOL.parse(text, ToolRegistry())
    assert text.startswith(action.kept)
    return action


def codes(text):
    action = parse(text)
    assert isinstance(action, RunCode), action
    return action.codes


def test_stop_strings_end_a_block_and_an_answer():
    assert PROTOCOL.stop == ("</code>", "</answer>")


@pytest.mark.parametrize("text", [BLOCK + "\n" + BOXED, BOXED + "\n" + BLOCK, "\\boxed{3} or so\n" + BLOCK])
def test_code_beats_an_answer_in_any_order(text):
    action = parse(text)
    assert isinstance(action, RunCode)
    assert action.kept.endswith("</code>")
    assert not action.fabricated


def test_an_invented_output_after_the_block_is_cut_and_flagged():
    action = parse(BLOCK + INVENTED + "so " + BOXED)
    assert isinstance(action, RunCode)
    assert action.kept == BLOCK
    assert action.fabricated


def test_an_invented_output_before_the_block_is_flagged():
    action = parse(INVENTED + "\n" + BLOCK)
    assert isinstance(action, RunCode)
    assert action.fabricated


@pytest.mark.parametrize("text", [INVENTED + "\n" + BOXED, f"It gives {INVENTED}, so {BOXED}"])
def test_an_invented_output_without_code_is_flagged_and_the_answer_stands(text):
    action = parse(text)
    assert isinstance(action, Answer)
    assert (action.text, action.fabricated) == ("8", True)


def test_a_box_in_an_invented_output_is_no_answer():
    text = "<interpreter>\n\\boxed{8}\n</interpreter>\n"
    assert parse(text) == Ended(EndReason.NO_ACTION, text, fabricated=True)


def test_code_in_an_invented_output_does_not_run():
    text = f"<interpreter>\n{BLOCK}\n</interpreter>\n"
    assert parse(text) == Ended(EndReason.NO_ACTION, text, fabricated=True)


def test_what_follows_the_answer_is_dropped():
    action = parse(BOXED + " and \\boxed{9}")
    assert action == Answer("8", BOXED)


@pytest.mark.parametrize(
    ("text", "answer", "boxed"),
    [
        ("<answer>\\boxed{}</answer>", "", True),
        ("<answer></answer>", "", False),
        ('<answer> "1/2" </answer>', "1/2", False),
        ("<answer>\\boxed {7}</answer>", "7", True),
        ("<answer>\\boxed{4</answer>", "\\boxed{4", False),
        ("I put it in <answer> tags: <answer>\\boxed{4}</answer>", "4", True),
        ("\\boxed{3}, then <answer>4</answer>", "4", False),
        ("</answer> <answer>5</answer>", "5", False),
        ("\\boxed{a \\boxed{b} c}", "a \\boxed{b} c", True),
        ("\\boxed{‘x’}", "x", True),
        ("\\boxed{f'}", "f'", True),
    ],
)
def test_answer_text(text, answer, boxed):
    action = parse(text)
    assert isinstance(action, Answer)
    assert (action.text, action.boxed) == (answer, boxed)


@pytest.mark.parametrize(
    "text",
    [
        "<code>print(1)",
        "<code>",
        "<code>\nprint('<answer>1</answer>')",
        "<answer>\\boxed{42}",
        "<answer>",
        "\\boxed{1} no, \\boxed{2",
        "it is \\boxed",
        "<think>hm</think>\\boxed{4",
        "so <code> it is \\boxed{8}",
    ],
)
def test_a_turn_that_ends_inside_something_is_incomplete(text):
    assert parse(text) == Ended(EndReason.INCOMPLETE, text)


@pytest.mark.parametrize(
    "text", ["hello", "<interpreter>", "</answer>", "<answer", "< code>print(1)</ code>", "\\boxed 5"]
)
def test_a_turn_without_an_action(text):
    assert parse(text).reason is EndReason.NO_ACTION


def test_thinking_neither_acts_nor_answers_once_closed():
    for inside in (
        "I use <code> tags.",
        BLOCK,
        BOXED,
        "\\boxed{3}",
        "<answer>",
        "\\boxed{",
        "<interpreter>",
        "<code>\n",
    ):
        for text in (
            f"<think>{inside}</think>{BOXED}",
            f"{inside}</think>{BOXED}",
            f"so: <think>{inside}</think>{BOXED}",
        ):
            action = parse(text)
            assert isinstance(action, Answer), text
            assert (action.text, action.kept, action.fabricated) == ("8", text, False)


def test_code_after_thinking_that_mentions_a_tag_runs():
    for text in (
        f"I use <code> tags.</think>\n{BLOCK}",
        "I use <code> tags.</think> Now <code>print(1)</code>",
        f"<think>I use <code> tags.</think>\n{BLOCK}",
    ):
        assert codes(text) == ("print(1)",)


def test_thinking_only_is_no_action():
    text = f"<think>{BOXED}</think>"
    assert parse(text) == Ended(EndReason.NO_ACTION, text)


def test_open_thinking_hides_nothing():
    assert codes("<think>let me see " + BLOCK) == ("print(1)",)
    assert parse("<think>so " + BOXED).text == "8"
    assert parse("<think>so \\boxed{8}").text == "8"


def test_thinking_tags_inside_code_are_code():
    assert codes("<code>\nprint('<think>')\n</code> </think> " + BOXED) == ("print('<think>')",)
    assert codes("<code>\nprint('</think>')\n</code>") == ("print('</think>')",)
    assert codes("<code>print('</think>')</code>") == ("print('</think>')",)
    assert codes("<code>\nx = '<think>'\n</code>\n<code>\ny = '</think>'\n</code>") == ("x = '<think>'",)


def test_a_mention_of_the_tag_does_not_swallow_the_block():
    assert codes("Between <code> tags:\n" + BLOCK) == ("print(1)",)
    action = parse("No <code> is needed. " + BOXED)
    assert isinstance(action, Answer)
    assert action.text == "8"


@pytest.mark.parametrize(
    ("block", "source"),
    [
        ("<code>```python\nprint('</code>')\n```</code>", "print('</code>')"),
        ("<code>\n```python\ns = '<code>x</code>'\n```\n</code>", "s = '<code>x</code>'"),
        ("<code>\n```python\nprint(1)\n</code>\n<code>\n```python\nprint(2)\n```\n</code>", "print(1)"),
        ("<code>\n```python\ns='</code>", "s='"),
    ],
)
def test_where_a_block_ends(block, source):
    assert codes(block) == (source,)


@pytest.mark.parametrize(("block", "message"), [("```js\n1\n```", "unsupported language: js"), ("  \n", "empty code")])
def test_a_bad_block_is_feedback_and_ends_the_turn(block, message):
    text = f"<code>{block}</code>"
    assert parse(text + "more" + BOXED) == Feedback(message, text)


def test_observation_continues_the_turn():
    observation = PROTOCOL.observe(["42"], [])
    assert observation.text == "\n<interpreter>\n42\n</interpreter>\n"
    assert observation.messages == ()


def test_the_prompt_states_the_rules_and_the_limits():
    (message,) = PROTOCOL.messages("What is 1+1?", ToolRegistry(), LIMITS)
    assert message["role"] == "user"
    for part in ("What is 1+1?", "<code>\n```python", "<interpreter>", "<answer>\n\\boxed{...}", "fresh"):
        assert part in message["content"]
    for limit in ("2.5 seconds", "256 MB", "1234 characters", "Turns: at most 7", "Blocks: at most 6"):
        assert limit in message["content"]


@pytest.mark.parametrize("name", ["code_tags", "markdown"])
def test_other_tools_are_refused_by_name(name):
    tools = ToolRegistry([Tool("search", "Finds.", {"type": "object"}, lambda: "")])
    with pytest.raises(ConfigurationError, match=r"search.*tool_calls"):
        get_protocol(name).messages("q", tools, LIMITS)
