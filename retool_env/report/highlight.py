"""Python code as coloured pieces, for the terminal and for HTML alike.

The lexer is pygments'. Its many token types are folded into eight kinds, which keeps pages small and leaves one place
that says what looks different from what.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["", "keyword", "builtin", "name", "string", "number", "operator", "comment", "error"]
"""What a piece of code is; empty for what looks like any other text."""

MAX_CHARS: Final = 20_000
"""Longer code is not taken apart: nobody reads it, and it would make a page heavy."""


def pieces(code: str) -> Iterator[tuple[Kind, str]]:
    """Yields the code in pieces, in order; together they are the code, to the character."""
    if len(code) > MAX_CHARS:
        yield "", code
        return
    lexer, kinds = _lexer()
    last: Kind = ""
    held: list[str] = []
    for _, token, text in lexer.get_tokens_unprocessed(code):
        kind = _kind(token, kinds)
        if kind != last and held:
            yield last, "".join(held)
            held = []
        last = kind
        held.append(text)
    if held:
        yield last, "".join(held)


def _kind(token: Any, kinds: Mapping[Any, Kind]) -> Kind:
    while token is not None:
        kind = kinds.get(token)
        if kind is not None:
            return kind
        token = token.parent
    return ""


@cache
def _lexer() -> tuple[Any, Mapping[Any, Kind]]:
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]  # loads slowly, and only viewers need it
    from pygments.token import Token  # type: ignore[import-untyped]

    kinds: dict[Any, Kind] = {
        Token.Keyword: "keyword",
        Token.Operator.Word: "keyword",
        Token.Name.Builtin: "builtin",
        Token.Name.Exception: "builtin",
        Token.Name.Function: "name",
        Token.Name.Class: "name",
        Token.Name.Decorator: "name",
        Token.Literal.String: "string",
        Token.Literal.Number: "number",
        Token.Operator: "operator",
        Token.Comment: "comment",
        Token.Error: "error",
    }
    return PythonLexer(), kinds
