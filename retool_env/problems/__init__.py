"""Problems and where they come from: files, data sets of the hub, generators, mixes of them, or a list of your own.

A list of problems is a plain ``Sequence[Problem]`` everywhere. ``load_problems`` takes every kind of source.
"""

from retool_env.problems.builtin import BuiltinProblems, builtin_problems
from retool_env.problems.files import load_jsonl
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.load import ProblemSource, load_problems
from retool_env.problems.mix import Mix, shuffled
from retool_env.problems.presets import PRESETS
from retool_env.problems.problem import Problem
from retool_env.problems.reasoning import ReasoningGym
from retool_env.problems.rows import BadRow, OnBad, ProblemWarning
from retool_env.problems.sharding import Shard, shard

__all__ = [
    "PRESETS",
    "BadRow",
    "BuiltinProblems",
    "LazyProblems",
    "Mix",
    "OnBad",
    "Problem",
    "ProblemSource",
    "ProblemWarning",
    "ReasoningGym",
    "Shard",
    "builtin_problems",
    "load_jsonl",
    "load_problems",
    "shard",
    "shuffled",
]
