"""Parsing and cleaning are linear: twice the text takes less than three times as long."""

import gc
import time

import pytest

from retool_env.protocol import get_protocol
from retool_env.protocol.observation import clean, clip, neutralize
from retool_env.tools import ToolRegistry

NAMES = ("code_tags", "tool_calls", "markdown")
TOOLS = ToolRegistry()
N_CHARS = 500_000
NOISE_S = 0.005
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
OPENERS = (
    *("<code>", "x<code>\n", "<think>", "<answer>", "\n<interpreter>", "x<interpreter>", "```python\n"),
    *("<tool_call>", "<tool_call>\n{", "\n<function=f>", "\n<tool_response>"),
)
CLOSERS = ("</code>", "</tool_call>", "</think>", "</interpreter>", "</function>", "</answer>", "\n```\n")
CONTROLS = ("\r", "a\r", "\r\n", "\x1b", "\x1b[", "\x1b[0;", "\x1b]x", "\x1bP", "\x9b1", "\ud800", "\x00", "\x1b[K\r")


def grows_linearly(function, unit, end=""):
    """Measures one length and its double in turn; the best of a few counts.

    The CPU time of this thread is taken, so that a busy machine matters little. What is done within a few
    milliseconds is below what a ratio can judge; anything worse than linear takes far longer at these lengths.
    """
    texts = [(unit * (n_chars // len(unit) + 1))[:n_chars] + end for n_chars in (N_CHARS, 2 * N_CHARS)]
    best = [float("inf"), float("inf")]
    for _ in range(8):
        for index, text in enumerate(texts):
            gc.collect()  # or the garbage of other tests is cleared away in the middle of a measurement
            start = time.thread_time()
            function(text)
            best[index] = min(best[index], time.thread_time() - start)
        if best[1] < 3 * best[0] or best[1] < NOISE_S:
            return True
    return False


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


@pytest.mark.parametrize("unit", CONTROLS, ids=ascii)
def test_clean(unit):
    assert grows_linearly(clean, unit)


@pytest.mark.parametrize("unit", ["<code>", "<", "`", "<|im_", "ab", "a"])
def test_neutralize(unit):
    markers = (*get_protocol("code_tags").tags, "```", "<|im_end|>", "<|im_start|>", "a" * 30 + "b", "abababab")
    assert grows_linearly(lambda text: neutralize(text, markers), unit)


def test_clip():
    assert grows_linearly(lambda text: clip(text, 1000), "x")


def test_the_check_can_fail():
    assert not grows_linearly(lambda text: sum(range((len(text) // 1000) ** 3 // 500)), "x")
