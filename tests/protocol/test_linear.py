"""Parsing and cleaning are linear."""

import functools

import pytest

from retool_env.protocol import get_protocol
from retool_env.protocol.observation import clean, clip, neutralize
from retool_env.tools import ToolRegistry

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path

pytestmark = pytest.mark.once  # an algorithm grows the same on every Python

NAMES = ("code_tags", "tool_calls", "markdown")
TOOLS = ToolRegistry()
N_CHARS = 500_000
FIRST_MIXED = "<code>\n"
UNITS = (
    *("<code>", "</code>", "<interpreter>", "</interpreter>", "<answer>", "</answer>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "<function=", "<function=f>", "<parameter=", "<parameter=p>"),
    *("\\boxed{", "\\boxed", "{", "}", "`", "```", "```\n", "```python\n", "```output\n", "<", "\n", " ", '"', "\\"),
    # Mixed, with newlines: each is one that a careless search would look through again and again.
    *("<code>\n", "x<code>\n</think>", "<code>```</code>", "<code>x ```</code>\n<code>", "``` \n </code"),
    *(
        "<think>\n<code>",
        "</think><think>",
        "<think></think>",
        "<think></think> x",
        "<think></think>\n<think>",
        "<interpreter>\nx",
        "x<interpreter></think>",
    ),
    *("</answer><answer>", "\\boxed{}", '<tool_call>{"a":"</tool_call>', '<tool_call>{"a": [', "<tool_call>x"),
    *("x<tool_call>\n</think>", "\n<tool_response>", "\n<function=f>\n<parameter=p>", "<tool_call><function=f>"),
    *("\n<function=f></function></think>", "```python\n```` ", "````python\n```\n", "```python\n</think>"),
    *("```output\n</think>", "<tool_call>{}</tool_call></think>"),
    '<tool_call>{"name": "code_interpreter", "arguments": {"code": "1"}}</tool_call>\n',
)
# Blocks that are looked at only to find out where the thinking ends, which the prompt began.
BEFORE_THINKING_ENDS = (
    *("<code>```python\nx</code>\n", "<code>```python\nx</code>", "x <code>```</code> ", "</code><code>```x</code>"),
    *("\n<code>\n```\n</code>", "\n<code>x</code>", "<code>```</code></answer>", "\n<interpreter>x</interpreter>"),
    *("<tool_call>{}</tool_call>", '<tool_call>{"name": "f"}</tool_call>', "<tool_call>x</tool_call>", "x<tool_call>"),
    *("\n<function=f></function>", "\n<function=f><parameter=p></function>", "\n<function=f>\n<parameter=p>"),
    *("\n<tool_response>x</tool_response>", "```python\n```\n", "````python\n```\n", "```output\nx\n```\n"),
)
OPENERS = (
    *("<code>", "x<code>\n", "<think>", "<answer>", "\n<interpreter>", "x<interpreter>", "```python\n"),
    *("<tool_call>", "<tool_call>\n{", "\n<function=f>", "\n<tool_response>"),
)
CLOSERS = ("</code>", "</tool_call>", "</think>", "</interpreter>", "</function>", "</answer>", "\n```\n")
C1 = tuple(map(chr, range(0x80, 0xA0)))
ESCAPES = ("\x1b", *(f"\x1b{chr(code - 0x40)}" for code in range(0x80, 0xA0)), "\x1b[0;", "\x1b(", "\x1b ")
CONTROLS = ("\r", "a\r", "\r\n", "\ud800", "\x00", "\x07", "\x1b[K\r", "\x9bK\r", "\x9b1")
MIXED = (
    *("".join(C1), "".join(ESCAPES), "".join(C1 + ESCAPES), "".join(ESCAPES + C1)),
    *(
        "\x9d\x90",
        "\x90x\x9d",
        "\x1b]\x9d",
        "\x9d\x1b]",
        "\x1bP\x90",
        "\x90\x1bP",
        "\x98\x9e\x9f",
        "\x1b]x",
        "\x90\x07",
    ),
    *("\x9d\r", "a\x90\r", "\x1b]\r", "\x9d\n"),
)


def grows_linearly(function, unit, end=""):
    """Whether a call with the unit over and over, up to the end, takes time in proportion to the length."""
    # Half a megabyte for what is repeated alone; combinations, of which there are many, show as much at less.
    mixed = end or unit in (*UNITS[UNITS.index(FIRST_MIXED) :], *MIXED)

    def prepare(n_chars):
        return functools.partial(function, (unit * (n_chars // len(unit) + 1))[:n_chars] + end)

    return growth(prepare, N_CHARS // 2 if mixed else N_CHARS) < LINEAR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", UNITS)
def test_parse(name, unit):
    protocol = get_protocol(name)
    assert grows_linearly(lambda text: protocol.parse(text, TOOLS), unit)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", CLOSERS)
def test_parse_with_something_that_closes_at_the_end(name, end):
    protocol = get_protocol(name)
    slow = [unit for unit in OPENERS if not grows_linearly(lambda text: protocol.parse(text, TOOLS), unit, end)]
    assert not slow


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", ["</think>", "\n<code>\nx</code>```</code></think>", "\n```\n</think>"])
def test_parse_of_blocks_before_thinking_ends(name, end):
    protocol = get_protocol(name)
    slow = [
        unit for unit in BEFORE_THINKING_ENDS if not grows_linearly(lambda text: protocol.parse(text, TOOLS), unit, end)
    ]
    assert not slow


@pytest.mark.parametrize("unit", [*CONTROLS, *C1, *ESCAPES, *MIXED], ids=ascii)
def test_clean(unit):
    assert grows_linearly(clean, unit)


@pytest.mark.parametrize(
    "opener", ["\x1b]", "\x9d", "\x1bP", "\x90", "\x98", "\x9e", "\x9f", "\x9b", "\x1b["], ids=ascii
)
def test_clean_with_openers_before_other_ones(opener):
    """Many openers, then many of another kind, none of which closes."""
    for other in ("x", " ", "0", "\x07", "\x90", "\x9d", "\x9b", "\x1b[", "\x1b]", "\x1bP"):
        assert grows_linearly(lambda text: clean(text + other * len(text)), opener, end=" "), ascii(other)  # noqa: B023


@pytest.mark.parametrize("unit", ["<code>", "<", "`", "<|im_", "ab", "a"])
def test_neutralize(unit):
    markers = (*get_protocol("code_tags").tags, "```", "<|im_end|>", "<|im_start|>", "a" * 30 + "b", "abababab")
    assert grows_linearly(lambda text: neutralize(text, markers), unit)


def test_clip():
    assert grows_linearly(lambda text: clip(text, 1000), "x")


def test_the_check_can_fail():
    assert not grows_linearly(lambda text: sum(range((len(text) // 1000) ** 3 // 500)), "x")
