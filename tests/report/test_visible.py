"""Hidden characters are named, and nothing else changes."""

import html
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retool_env.report.visible import visible, visible_html

TEXT = st.text(alphabet=st.characters()) | st.text(alphabet="\x00\x1b\r\n\t<>&\"'\u202e\u2066\ud800a[]")
KINDS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
BIDI = [char for char in map(chr, range(0x110000)) if unicodedata.bidirectional(char) in KINDS]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b31m", r"\x9b31m"),
        ("nul\x00", r"nul\x00"),
        ("\x07\b\f\v", r"\a\b\f\v"),
        ("50 %\r100 %", r"50 %\r100 %"),
        ("one\r\ntwo\n\tthree", "one\ntwo\n\tthree"),
        ("\u202eevil", "[U+202E RLO]evil"),
        ("\u2066\u2069", "[U+2066 LRI][U+2069 PDI]"),
        ("4\u200b2\ufeff", "4[U+200B ZWSP]2[U+FEFF BOM]"),
        ("soft\xadhyphen", "soft[U+00AD]hyphen"),
        ("\U000e0041", "[U+E0041]"),
        ("\ud800", "[U+D800]"),
        ("\u2028", "[U+2028 LSEP]"),
        ("שלום, 👩\u200d🔬, é, 数", "שלום, 👩\u200d🔬, é, 数"),
        (r"\x1b and <b>", r"\x1b and <b>"),
    ],
)
def test_names(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert html.unescape(re.sub(r"<[^>]*>", "", visible_html(text))) == shown


@pytest.mark.parametrize("char", BIDI)
def test_every_bidi_control_is_named(char: str) -> None:
    assert visible(char) == f"[U+{ord(char):04X} {unicodedata.bidirectional(char)}]"


@given(TEXT)
def test_what_is_shown_can_be_encoded_and_steers_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert {char for char in shown if unicodedata.category(char) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert not set(shown) & set(BIDI)
    assert visible(shown) == shown


@given(TEXT)
@example("\U000e0100")
def test_html_has_no_tag_but_ours(text: str) -> None:
    shown = visible_html(text)
    assert re.sub(r'<span class="hidden-char" title="[A-Z a-z0-9-]+">|</span>', "", shown).count("<") == 0
    assert html.unescape(re.sub(r"<[^>]*>", "", shown)) == visible(text)


def test_the_title_tells_the_name() -> None:
    assert 'title="RIGHT-TO-LEFT OVERRIDE">[U+202E RLO]</span>' in visible_html("\u202e")


@pytest.mark.parametrize("char", "\u034f\u115f\u1160\u17b4\u3164\uffa0\ufff0\U0001bca0\U0001d173\U000e0100\U000e0fff")
def test_what_a_reader_would_not_see_is_named(char: str) -> None:
    assert visible(f"4{char}2") == f"4[U+{ord(char):04X}]2"
    assert char not in visible_html(f"4{char}2")


def test_what_emoji_are_made_of_stays() -> None:
    heart = "\u2764\ufe0f\u200d\U0001f525"
    assert visible(heart) == visible_html(heart) == heart
