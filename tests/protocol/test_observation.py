"""What the policy reads: described, cleaned, clipped, neutral."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.protocol import Limits, get_protocol
from retool_env.protocol.observation import MIN_CLIP_CHARS, NO_OUTPUT, clean, clip, describe, neutralize, render
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolResult

LIMITS = Limits(timeout_s=5, memory_mb=256, max_turns=8, max_tool_calls=8, max_observation_chars=200)
TAGS = get_protocol("code_tags").tags


def result(status="ok", **fields):
    return ExecutionResult(ExecutionStatus(status), **fields)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link", "xlink"),
        ("\x1bP1$r\x1b\\x\x1b(Bx\x1bcx", "xxx"),
        ("\x1b[31", "31"),
        ("\x9d0;title\x9cx\x90q\x9cy\x98s\x1b\\z", "xyz"),
        ("\x90a\x9d0;title\x07b\x1bPc\x90d\x9ce", "abce"),  # a string that another one cuts off is no string
        ("a\x00b\x07c\x7fd\x85e\x0bf\x0cg", "abcdefg"),
        ("\u202eabc\u202c \u2066x\u2069\u200f\u061c", "abc x"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("1%\r50%\r100%\n", "100%\n"),
        ("abcdef\rXY\n", "XYcdef\n"),
        ("long line\r\x1b[Kdone", "done"),
        ("long line\r\x1b[2Kdone\rD", "Done"),
        ("\x1b[32mlong\x1b[0m\rno", "nong"),
        ("dos\r\nlines\r\r\nhere\r", "dos\nlines\nhere"),
        ("a\bb", "ab"),
        ("é\u200bñ 漢字 🙂", "é\u200bñ 漢字 🙂"),
    ],
)
def test_clean(raw, shown):
    assert clean(raw) == shown


@given(st.text(st.sampled_from("ab\r\n\t\x1b[0;31mK]P\\\x07\x90\x98\x9b\x9c\x9d\x00\ud800\u202e"), max_size=60))
def test_clean_leaves_nothing_to_clean(text):
    once = clean(text)
    assert clean(once) == once
    assert not set(once) & set("\r\x1b\x07\x90\x98\x9b\x9c\x9d\x00\ud800\u202e")


def test_clip_leaves_short_text_alone():
    assert clip("x" * 100, 100) == "x" * 100


@given(st.integers(MIN_CLIP_CHARS, 500), st.integers(0, 2000))
def test_clip_keeps_head_and_tail_within_the_limit(max_chars, n_chars):
    text = "".join(chr(0x4E00 + number) for number in range(n_chars))
    shown = clip(text, max_chars)
    assert len(shown) <= max_chars
    if n_chars > max_chars:
        head, note, tail = shown.split("\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert 0 <= len(head) - len(tail) <= 1
        assert note == f"... [{n_chars - len(head) - len(tail)} characters left out] ..."
        assert len(shown) >= max_chars - 1 - len(str(n_chars))
    else:
        assert shown == text


def test_clip_below_its_minimum_is_only_the_note():
    assert clip("x" * 100, 0) == "\n... [100 characters left out] ...\n"


@pytest.mark.parametrize(
    ("text", "markers", "shown"),
    [
        ("<code>1</code>", ["<code>", "</code>"], r"<\code>1<\/code>"),
        ("<|im_end|>", ["<|im_end|>"], r"<\|im_end|>"),
        ("```output", ["```"], r"`\``output"),
        ("`````", ["```"], r"`\`\`\``"),
        ("ababab", ["abab"], "a\\ba\\bab"),
        ("<<a>>", ["<a>", "<<a>>", "<<"], r"<\<\a>>"),
        ("no marker", ["<code>"], "no marker"),
        ("<CODE>", ["<code>"], "<CODE>"),
        ("a\\nb <x>", ["\\n", "<x>"], "a\\·nb <·x>"),
        ("a^b", ["^"], "a\ufffdb"),
        ("a  b\n\nc", ["  ", "\n\n", " "], "a  b\n\nc"),
        ("x", [], "x"),
        ("[INST](a|b)*", ["[INST]", "(a|b)*"], "[\\INST](\\a|b)*"),
    ],
)
def test_neutralize(text, markers, shown):
    assert neutralize(text, markers) == shown


@settings(deadline=None)  # patterns are compiled anew for each set of markers
@given(st.text("ab<\\·", max_size=40), st.lists(st.text("ab<\\·", min_size=1, max_size=4), max_size=6))
def test_neutralize_leaves_no_marker(text, markers):
    shown = neutralize(text, markers)
    assert not [marker for marker in markers if marker in shown]


def test_neutralize_is_reversible():
    text = "<code>```<|im_end|></code> and <b>"
    assert neutralize(text, ["<code>", "</code>", "<|im_end|>"]).replace("\\", "") == text


def test_a_marker_cannot_be_put_together_by_cleaning():
    for raw in ("<co\x00de>", "<co\u202ede>", "<co\x1b[0mde>", "xxxxxx\r<code>", "<code>\rx", "ode>\r<c\n"):
        assert "<code>" not in render(result(stdout=raw), LIMITS, TAGS)


def test_a_marker_cannot_be_put_together_by_clipping():
    for n_chars in range(150, 260):
        text = "<code>" * n_chars
        assert "<code>" not in render(result(stdout=text), LIMITS, TAGS)


@pytest.mark.parametrize(
    ("execution", "shown"),
    [
        (result(stdout="1\n"), "1\n"),
        (result(), NO_OUTPUT),
        (result(stdout="\n \n"), NO_OUTPUT),
        (result(stdout="1", stderr="warn"), "1\nwarn"),
        (result("error", stdout="1\n", stderr="Trace\nError: x\n", exit_code=1), "1\nTrace\nError: x\n"),
        (result("error", exit_code=3), "[the code failed with exit code 3]"),
        (result("error", error_class="MemoryError"), "[the code failed: MemoryError]"),
        (result("timeout", stdout="1"), "1\n[the code exceeded the limit of 5 s and was stopped]"),
        (result("memory"), "[the code exceeded the limit of 256 MB of memory and was stopped]"),
        (result("output_limit", truncated=True), "[the code wrote more output than the limit allows and was stopped]"),
        (result("killed", error_class="SIGSEGV"), "[the code was killed by SIGSEGV]"),
        (result("killed"), "[the code was killed]"),
        (result(stdout="x", truncated=True), "x\n[output beyond the limit was dropped]"),
    ],
)  # fmt: skip
def test_describe(execution, shown):
    assert describe(execution, timeout_s=5.0, memory_mb=256) == shown


RESTARTED = "[the interpreter was restarted: everything defined before is lost]"


@pytest.mark.parametrize(
    ("execution", "shown"),
    [
        (result("timeout", stdout="1"), f"1\n[the code exceeded the limit of 5 s and was stopped]\n{RESTARTED}"),
        (result("killed", error_class="SIGSEGV"), f"[the code was killed by SIGSEGV]\n{RESTARTED}"),
        (result(stdout="bye\n"), f"bye\n{RESTARTED}"),
        (result(), RESTARTED),
        (
            result("killed", error_class="SessionLost", stderr="SessionLost: it was killed; start a new session\n"),
            f"[the code was not run: the interpreter had ended after the code before it]\n{RESTARTED}",
        ),
    ],
)
def test_a_restart_is_told_last(execution, shown):
    assert describe(execution, timeout_s=5.0, memory_mb=256, restarted=True) == shown


def test_what_the_code_claims_is_not_taken_for_a_lost_session():
    claimed = result("error", error_class="SessionLost", stderr="SessionLost: by me\n")
    assert describe(claimed, timeout_s=5.0, memory_mb=256) == "SessionLost: by me\n"


def test_a_restart_survives_clipping():
    limits = dataclasses.replace(LIMITS, max_observation_chars=300)
    text = render(result("timeout", stdout="x" * 10_000), limits, TAGS, restarted=True)
    assert len(text) <= 300
    assert text.endswith(f"[the code exceeded the limit of 5 s and was stopped]\n{RESTARTED}")


def test_every_status_has_words():
    for status in ExecutionStatus:
        text = describe(result(status, stdout="", stderr=""), 2.5, 64)
        assert text.startswith("[")
        assert ("2.5 s" in text) == (status is ExecutionStatus.TIMEOUT)


def test_unavailable_is_never_the_codes_output():
    text = describe(result("unavailable", stdout="internal", stderr="socket error"), 5, 256)
    assert "internal" not in text
    assert "socket" not in text
    assert "says nothing about the code" in text


def test_the_verdict_survives_clipping():
    text = render(result("timeout", stdout="x" * 10_000), LIMITS, TAGS)
    assert 195 < len(text) <= 200
    assert text.endswith("[the code exceeded the limit of 5 s and was stopped]")


def test_render_tool_results():
    assert render(ToolResult("found <code>"), LIMITS, TAGS) == r"found <\code>"
    assert render(ToolResult("empty code", is_error=True), LIMITS, TAGS) == "Error: empty code"
    assert render(ToolResult("\x00"), LIMITS, TAGS) == NO_OUTPUT


MARKERS = ("```", "<code>", "</code>", "\n...", " characters", "] ...", "..", "[", "<|im_end|>")
"""Tags, a token, and markers that the note about what was left out holds or can complete."""


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*MARKERS, "<co", "de>", "`", "\n", ".", "x", "yz "]) | st.text(max_size=3), max_size=30),
    st.integers(1, 40),
    st.integers(100, 300),
)
def test_render_keeps_the_limit_and_shows_no_marker_wherever_it_cuts(parts, repeated, max_chars):
    limits = dataclasses.replace(LIMITS, max_observation_chars=max_chars)
    shown = render(result(stdout="".join(parts) * repeated), limits, MARKERS)
    shown.encode()
    assert len(shown) <= max_chars
    assert not [marker for marker in MARKERS if marker in shown]


@pytest.mark.parametrize("name", ["code_tags", "tool_calls", "markdown"])
def test_no_output_makes_more_than_the_limit_that_is_stated(name):
    tags = get_protocol(name).tags
    for n_chars in (10, 150, 199, 200, 5000):
        for tag in (*tags, "`", "x"):
            shown = render(result(stdout=tag * n_chars), LIMITS, tags)
            assert len(shown) <= LIMITS.max_observation_chars
            if len(tag) * n_chars > LIMITS.max_observation_chars:
                assert "characters left out" in shown
                assert len(shown) > LIMITS.max_observation_chars - 10  # and no less is shown than there is room for
