"""From a block's text to the source that runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.protocol.blocks import Malformed
from retool_env.protocol.source import dedent, read_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("print(1)", "print(1)"),
        ("```print(1)```", "print(1)"),
        ("```python print(1)```", "print(1)"),
        ("```py3\nx\n```\n", "x"),
        ("````python\nx\n````", "x"),
        ("```python title=a\nx\n```", "x"),
        ("```python\nx", "x"),
        ("```python\nx\n```\nThat prints x.", "x"),
        ("```python\r\nx\r\ny\r\n```\r\n", "x\r\ny"),
        ("\n\n  if x:\n    y\n\n  z\n", "if x:\n  y\n\nz"),
        ("\tif x:\n\t\ty", "if x:\n\ty"),
        ("    s = '''\n   \n      a\n    '''", "s = '''\n   \n  a\n'''"),
        ("    s = '''\nabc\n'''", "    s = '''\nabc\n'''"),
        ("# only a comment", "# only a comment"),
        ("s = '\ud800'", "s = '\ufffd'"),
    ],
)
def test_read_source(text, source):
    assert read_source(text) == source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty code"),
        (" \n\t\r\n", "empty code"),
        ("```", "empty code"),
        ("``````", "empty code"),
        ("```python```", "empty code"),
        ("```python\n\n", "empty code"),
        ("```c++\nx\n```", "unsupported language: c++"),
        ("```" + "a" * 100 + "\nx\n```", "unsupported language: " + "a" * 40),
    ],
)
def test_bad_source(text, message):
    assert read_source(text) == Malformed(message)


@given(
    st.lists(st.sampled_from(["a", "if a:", "  b", "\tc", "", "   ", "'''"]), min_size=1),
    st.sampled_from(["", "  ", "\t"]),
)
def test_dedent_takes_off_a_shared_indent_and_nothing_else(lines, indent):
    lines = ["first", *lines]
    text = "\n".join(lines)
    assert dedent("\n".join(indent + line for line in lines)) == text
