"""The quick way to tell a last expression from the rest of a program says the same as the syntax tree."""

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retool_env.sandbox.child import _split_lines

LINES = st.sampled_from(
    [
        "x = 1", "x", "x + 1", "print(x)", "(x", "x)", ")", "[1,", "2]", '"""', "'''", "'a", "b'", "'a' 'b'", "# c",
        "   ", "if x:", "    y = 2", "    y", "\ty", "else:", "def f():", "    return 1", "@f", "f()", "return 1",
        "yield", "", "await x", "x; y", "(x := 2)", "lambda: 0", "x if x else", "3",
        "from __future__ import annotations", "global x", "print(1) # c", "'doc'", "class A: pass",
        "x \\", "+ 2", "f'{x}'", "x\xa0", "x\x0c", "x\r", "*a, b", "...", "é",
    ]
)  # fmt: skip


def tree_of(source: str) -> ast.Module | None:
    try:
        compile(source, "main.py", "exec", dont_inherit=True)
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


@given(st.lists(LINES, max_size=6).map("\n".join))
@example("x = 1\nfrom __future__ import annotations")
@example("from __future__ import annotations\nx")
@example("\n\nx\n\n")
@example("x = '''\na\n'''")
@example("global x\nx")
def test_as_the_syntax_tree_has_it(source):
    found = _split_lines(source, "main.py")
    tree = tree_of(source)
    if found is None:
        return
    assert tree is not None
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    assert found[0] == compile(tree, "main.py", "exec", dont_inherit=True)
    assert found[1] == compile(ast.Expression(last.value), "main.py", "eval", dont_inherit=True)


@pytest.mark.parametrize("source", ["print(1)", "x = 1\nprint(x)\n", "import math\n\n\nmath.pi  # about 3\n"])
def test_ordinary_programs_take_it(source):
    assert _split_lines(source, "main.py") is not None


class TestTracebacks:
    @pytest.mark.parametrize("ending", ["", "\n", "\n\n# the end\n"])
    def test_lines_are_the_programs(self, tier_sandbox, ending):
        result = tier_sandbox.run("x = 1\n\n1/0" + ending)
        assert 'File "main.py", line 3, in <module>\n    1/0\n' in result.stderr

    def test_a_value_that_cannot_be_shown(self, tier_sandbox):
        result = tier_sandbox.run("class A:\n    def __repr__(self):\n        return 1/0\nA()")
        assert result.status == "error"
        assert result.error_class == "ZeroDivisionError"
        assert 'File "main.py", line 3, in __repr__' in result.stderr

    def test_a_warning_is_shown_once(self, tier_sandbox):
        for program in ("x = 1 is 1\nx", "print('\\d')", "x = '\\d'\n(x,\n)"):
            assert tier_sandbox.run(program).stderr.count("SyntaxWarning") <= 1

    def test_a_display_hook_of_the_program(self, tier_sandbox):
        program = "import sys\nsys.displayhook = lambda value: print('shown', value)\n3"
        assert tier_sandbox.run(program).stdout == "shown 3\n"
