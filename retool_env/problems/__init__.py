"""Problems and where they come from: the built-in mix, JSONL files, or a sequence of your own.

A list of problems is a plain ``Sequence[Problem]`` everywhere.
"""

from retool_env.problems.builtin import BuiltinProblems, builtin_problems
from retool_env.problems.files import load_jsonl, load_problems
from retool_env.problems.problem import Problem

__all__ = ["BuiltinProblems", "Problem", "builtin_problems", "load_jsonl", "load_problems"]
