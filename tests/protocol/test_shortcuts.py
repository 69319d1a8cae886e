"""The quick ways around slow searches give what the searches give."""

import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.grading import last_boxed
from retool_env.problems import Problem
from retool_env.protocol import get_protocol
from retool_env.protocol.answers import read_answer, unquote
from retool_env.protocol.blocks import Malformed, Rules
from retool_env.protocol.calls import WrittenCall, check_call
from retool_env.protocol.markdown import _first_fence
from retool_env.protocol.observation import clean, replace_surrogates
from retool_env.protocol.source import dedent, read_source
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry

from ..growth import LINEAR, compare, growth  # noqa: TID252 - `tests` is on no path


def pieces(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=14).map("".join)


BOXES = pieces("\\boxed{", "\\boxed", "boxed", "\\", "\\\\", "{", "}", "\\{", "\\}", "x", " ", "\n")
LINES = pieces("\n", "\r\n", " ", "\t", "\x0b", "\x85", "　", "\u2028", "x = 1", "#")
FENCES = pieces("```", "``", "`", "python", "py", "output", "\n", " ", "\t", "　", "x", "\r")


@given(LINES)
@example("\n\n x = 1")
@example(" \nx = 1\n\x0b")
def test_a_source_at_the_margin_is_read_like_any_other(text: str) -> None:
    source = replace_surrogates(dedent(text)).rstrip(" \t\r\n")
    assert read_source(text) == (source or Malformed("empty code"))


@given(BOXES)
@example("\\\\\\boxed{1}")
@example("{{ \\boxed{1} }}")
@example("} \\boxed{ \\boxed{1} ")
def test_what_stands_before_the_first_box_changes_no_answer(text: str) -> None:
    box = last_boxed(text)
    found = read_answer(text, text, False)
    assert (found.text, found.boxed) == (unquote(text if box is None else box), box is not None)


@given(LINES)
def test_the_indentation_is_taken_off_as_line_by_line(text: str) -> None:
    lines = text.split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    indents = [re.match(r"[ \t]*", line) for line in lines if line.strip()]
    margin = min((match.group() for match in indents if match is not None), key=len, default="")
    shared = next(
        margin[:n] for n in range(len(margin), -1, -1) if all(m and m.group().startswith(margin[:n]) for m in indents)
    )
    assert dedent(text) == "\n".join(line.removeprefix(shared) for line in lines)


@given(st.text(alphabet=st.characters(), max_size=60))
@example("tab\tand newline\n")
def test_plain_output_is_left_as_the_whole_cleaning_leaves_it(text: str) -> None:
    # A control character takes the long way round, and leaves nothing behind after text that has none of its kind.
    if text.replace("\n", "").replace("\t", "").isprintable():
        assert clean(text) == text == clean(text + "\x00")


@pytest.mark.parametrize("at", [0, 1 << 15, 99_999])
def test_a_long_output_is_looked_at_to_its_end(at: int) -> None:
    text = "x" * 100_000
    assert clean(text) is text
    assert clean(text[:at] + "\x07" + text[at:]) == text


@given(FENCES)
@example("　```python\n")
@example("x ```python\n```python")
def test_the_quick_look_for_fences_sees_lines_as_a_search_by_line_does(text: str) -> None:
    slow = re.search(r"^[ \t]*`{3,}[ \t]*(?=[pPiIo])(?:(?i:python3|ipython|python|py3|py)|output)", text, re.MULTILINE)
    assert _first_fence(text) == (-1 if slow is None else text.index("`", slow.start()))


TAGS = pieces(
    *("<code>", "</code>", "<interpreter>", "</interpreter>", "<answer>", "</answer>", "<think>", "</think>"),
    *(
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<function=code_interpreter>",
        "</function>",
    ),
    *("<parameter=code>", "</parameter>", '{"name": "code_interpreter", "arguments": {"code": "1"}}', "\\boxed{1}"),
    *("```python", "```output", "```", "\n", " ", "x", "<"),
)


@pytest.mark.parametrize("name", ["code_tags", "tool_calls", "markdown"])
@given(text=TAGS)
@example(text="x </think> <code>1</code>")
@example(text="x </interpreter> \\boxed{1}")
@example(text="</tool_response>")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_read_does_not_depend_on_where_the_reading_begins(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol, tools = get_protocol(name), ToolRegistry()
    action = protocol.parse(text, tools)
    with monkeypatch.context() as patch:
        patch.setattr(Rules, "first", lambda rules, text: 0)  # all of it, as if there could be a tag anywhere
        assert protocol.parse(text, tools) == action


@given(st.dictionaries(st.sampled_from(["code", "x"]), st.one_of(st.text(max_size=5), st.integers()), max_size=2))
def test_a_call_of_code_alone_is_checked_as_the_schema_has_it(arguments: dict[str, object]) -> None:
    tools = ToolRegistry()
    wanted = tools.check(CODE_INTERPRETER, arguments)
    found = check_call(WrittenCall(CODE_INTERPRETER, arguments), tools)
    if isinstance(wanted, str):
        assert found == Malformed(wanted)
    else:
        assert isinstance(found, ToolCall | Malformed)
        assert not isinstance(found, Malformed) or found.message == "empty code"


@pytest.mark.parametrize("protocol", ["code_tags", "markdown"])
def test_a_turn_costs_no_copy_of_the_conversation(protocol: str) -> None:
    block = {"code_tags": "<code>1</code>", "markdown": "```python\n1\n```"}[protocol]
    text = "x" * 400_000 + "\n" + block
    config = EpisodeConfig(protocol=protocol, max_turns=1000, max_tool_calls=1000, max_action_chars=1 << 20)

    def play(n_turns: int) -> Callable[[], object]:
        def run() -> object:
            episode = Episode(Problem(id="p", question="?", answer="1"), config)
            for _ in range(n_turns):
                episode.read(text)
                episode.observe([ExecutionResult(ExecutionStatus.OK, stdout="1\n")])
            return episode

        return run

    assert growth(play, 160) < LINEAR
    episode = play(2)()
    assert isinstance(episode, Episode)
    shown = episode.messages()[-1]["content"]
    assert shown.count(text) == 2
    assert shown == episode.messages()[-1]["content"]


@pytest.mark.parametrize("tail", ["\\boxed{42}", "```python\n1\n```"])
def test_a_long_turn_is_read_in_a_small_part_of_a_character_by_character_scan(tail: str) -> None:
    line = "Let $x_{k} = \\frac{a_{k}}{b_{k}}$ with $a_{k} < b_{k}$.\n"
    text = line * 20_000 + tail
    scan = re.compile(r"[\\{}]")
    parse = get_protocol("markdown").parse
    assert compare(lambda: parse(text, ToolRegistry()), lambda: [each.group() for each in scan.finditer(text)]) < 1
