"""The ``markdown`` protocol, rule by rule."""

import pytest

from retool_env.protocol import Answer, Ended, EndReason, Feedback, Limits, RunCode, get_protocol
from retool_env.tools import ToolRegistry

PROTOCOL = get_protocol("markdown")
BLOCK = "```python\nprint(1)\n```"


def parse(text):
    action = PROTOCOL.parse(text, ToolRegistry())
    assert text.startswith(action.kept)
    return action


@pytest.mark.parametrize(
    ("text", "source", "kept"),
    [
        (BLOCK, "print(1)", BLOCK),
        (f"First:\n{BLOCK}\nthen\n{BLOCK}", "print(1)", f"First:\n{BLOCK}"),
        (f"{BLOCK}\n```output", "print(1)", BLOCK),
        ("```python\nprint(1)\n```output", "print(1)", "```python\nprint(1)\n```"),
        ("- so\n  ```Python3\n  x = 1\n  x\n  ```\n", "x = 1\nx", "- so\n  ```Python3\n  x = 1\n  x\n  ```"),
        ("````python\ns = '''\n```\n'''\n````\n", "s = '''\n```\n'''", "````python\ns = '''\n```\n'''\n````"),
        ("```py\r\nprint(1)\r\n```\r\n", "print(1)", "```py\r\nprint(1)\r\n```"),
        ("```python\nprint(1)```", "print(1)", "```python\nprint(1)```"),
        (f"\\boxed{{2}}?\n{BLOCK}\n\\boxed{{3}}", "print(1)", f"\\boxed{{2}}?\n{BLOCK}"),
        (f"```json\n{{}}\n```\n{BLOCK}", "print(1)", f"```json\n{{}}\n```\n{BLOCK}"),
        (f"```\n{BLOCK}", "print(1)", f"```\n{BLOCK}"),
    ],
)
def test_the_first_python_fence_runs(text, source, kept):
    action = parse(text)
    assert isinstance(action, RunCode), action
    assert action.codes == (source,)
    assert (action.kept, action.fabricated) == (kept, False)


@pytest.mark.parametrize("output", ["\n```output\n1\n```\n", "\n\n```output\n1", "\n```output\r\n1"])
def test_an_invented_output_is_cut_and_flagged(output):
    action = parse(BLOCK + output)
    assert isinstance(action, RunCode)
    assert (action.kept, action.fabricated) == (BLOCK, True)


def test_an_invented_output_without_code_is_flagged_and_its_boxes_do_not_count():
    text = "```output\n\\boxed{3}\n```\n"
    assert parse(text) == Ended(EndReason.NO_ACTION, text, fabricated=True)
    assert parse(text + "\\boxed{4}") == Answer("4", text + "\\boxed{4}", fabricated=True)


@pytest.mark.parametrize("text", ["```python\nprint(1)", "```python", "```python\nprint(1)\n``", "\\boxed{1"])
def test_a_turn_that_ends_inside_something_is_incomplete(text):
    assert parse(text) == Ended(EndReason.INCOMPLETE, text)


def test_an_empty_fence_is_feedback():
    assert parse("```python\n\n```\nx") == Feedback("empty code", "```python\n\n```")


@pytest.mark.parametrize(
    "text", ["```bash\nls\n```\n", "Use a ```python fence", "```pythonic\n1\n```", "``python\n1\n``", "```\n1\n```"]
)
def test_other_fences_are_text(text):
    assert parse(text) == Ended(EndReason.NO_ACTION, text)
    assert parse(text + "\n\\boxed{4}").text == "4"


def test_thinking():
    for text in (f"<think>\n{BLOCK}\n</think>", f"{BLOCK}\n</think>", "<think>\n```python\nno end</think>", "<think>"):
        assert parse(text + "\\boxed{4}").text == "4"
    for text in (f"<think>\n{BLOCK}", f"```python\n1\n</think>\n{BLOCK}", f"<think>\n```py\n2\n```</think>\n{BLOCK}"):
        action = parse(text)
        assert isinstance(action, RunCode)
    assert parse("```python\nprint('<think>')\n```\n</think>\\boxed{4}").codes == ("print('<think>')",)
    assert parse("```python\nprint('</think>')\n```").codes == ("print('</think>')",)


def test_observation_continues_the_turn():
    observation = PROTOCOL.observe(["42"], [])
    assert observation.text == "\n```output\n42\n```\n"
    assert observation.messages == ()


def test_the_prompt_states_the_rules_and_the_limits():
    limits = Limits(timeout_s=5, memory_mb=256, max_turns=7, max_tool_calls=6, max_observation_chars=100)
    (message,) = PROTOCOL.messages("What is 1+1?", ToolRegistry(), limits)
    for part in ("What is 1+1?", "```python", "```output", "\\boxed{...}", "5 seconds", "256 MB", "100 characters"):
        assert part in message["content"]


def test_only_blanks_and_tabs_stand_before_a_fence_whatever_comes_before_it():
    wide = "\u3000```python\nprint(1)\n```\n"
    for text in (wide, "```output\n" + wide):
        assert not isinstance(parse(text), RunCode)
