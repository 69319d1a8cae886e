"""Code in coloured pieces: nothing lost, nothing added, no text that takes too long."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.report.highlight import MAX_CHARS, pieces

from ..growth import LINEAR, growth  # noqa: TID252 - `tests` is on no path


def test_kinds() -> None:
    found = dict(map(reversed, pieces("@cached\ndef f(n):\n    return print('a') + 1  # why\n")))
    assert (found["def"], found["f"], found["print"]) == ("keyword", "name", "builtin")
    assert (found["'a'"], found["1"], found["+"], found["# why"]) == ("string", "number", "operator", "comment")
    assert found["@cached"] == "name"


@given(st.text(alphabet=st.characters()) | st.text(alphabet="'\"{}f#\\\n\r\t ()x1=@\ufeff"))
def test_the_pieces_are_the_code(code: str) -> None:
    assert "".join(text for _, text in pieces(code)) == code


def test_very_long_code_stays_in_one_piece() -> None:
    code = "x = 1\n" * MAX_CHARS
    assert list(pieces(code)) == [("", code)]


@pytest.mark.once
@pytest.mark.parametrize("unit", ["(", "\\", "'", "f'{", '"""', "%(a", "@", "\\N{", "{", "1_", "\t \r"])
def test_time_grows_with_the_length(unit: str) -> None:
    def prepare(n_chars: int) -> Callable[[], object]:
        code = (unit * n_chars)[:n_chars]
        return lambda: list(pieces(code))

    assert growth(prepare, MAX_CHARS) < LINEAR
