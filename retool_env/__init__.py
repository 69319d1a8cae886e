"""retool_env: the environment side of ReTool (arXiv 2504.11536).

A policy writes text; blocks of Python in it run in a sandbox; a final answer is graded and paid. Importing this package
registers ``ReTool-v0`` with gymnasium and imports nothing heavy: the names below are loaded when they are first used.

Problems from a file whose columns have unusual names::

    problems = retool_env.load_jsonl("aime.jsonl", question="Problem", answer="Integer Answer")
    env = gymnasium.make("ReTool-v0", problems=problems)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import gymnasium

if TYPE_CHECKING:
    from retool_env._version import __version__
    from retool_env.config import EpisodeConfig
    from retool_env.env import ReToolEnv
    from retool_env.env_options import InvalidOptionError
    from retool_env.episode import Episode
    from retool_env.errors import ReToolError
    from retool_env.outcome import Outcome
    from retool_env.problems import BuiltinProblems, Problem, builtin_problems, load_jsonl, load_problems
    from retool_env.protocol import (
        Action,
        Answer,
        Ended,
        EndReason,
        Feedback,
        Observation,
        Protocol,
        RunCode,
        register_protocol,
    )
    from retool_env.reward import RewardFacts
    from retool_env.sandbox import ExecutionResult, ExecutionStatus, Sandbox, SandboxConfig
    from retool_env.tools import Tool, ToolCall, ToolRegistry, ToolResult
    from retool_env.trajectory import Trajectory, read_jsonl, write_jsonl
    from retool_env.vector import ReToolVectorEnv

__all__ = [
    "Action",
    "Answer",
    "BuiltinProblems",
    "EndReason",
    "Ended",
    "Episode",
    "EpisodeConfig",
    "ExecutionResult",
    "ExecutionStatus",
    "Feedback",
    "InvalidOptionError",
    "Observation",
    "Outcome",
    "Problem",
    "Protocol",
    "ReToolEnv",
    "ReToolError",
    "ReToolVectorEnv",
    "RewardFacts",
    "RunCode",
    "Sandbox",
    "SandboxConfig",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "ToolResult",
    "Trajectory",
    "__version__",
    "builtin_problems",
    "load_jsonl",
    "load_problems",
    "read_jsonl",
    "register_protocol",
    "write_jsonl",
]

_MODULES: Final = {
    "_version": ("__version__",),
    "config": ("EpisodeConfig",),
    "env": ("ReToolEnv",),
    "env_options": ("InvalidOptionError",),
    "episode": ("Episode",),
    "errors": ("ReToolError",),
    "outcome": ("Outcome",),
    "problems": ("BuiltinProblems", "Problem", "builtin_problems", "load_jsonl", "load_problems"),
    "protocol": (
        "Action",
        "Answer",
        "EndReason",
        "Ended",
        "Feedback",
        "Observation",
        "Protocol",
        "RunCode",
        "register_protocol",
    ),
    "reward": ("RewardFacts",),
    "sandbox": ("ExecutionResult", "ExecutionStatus", "Sandbox", "SandboxConfig"),
    "tools": ("Tool", "ToolCall", "ToolRegistry", "ToolResult"),
    "trajectory": ("Trajectory", "read_jsonl", "write_jsonl"),
    "vector": ("ReToolVectorEnv",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads a public name from its module, once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


gymnasium.register(
    id="ReTool-v0",
    entry_point="retool_env.env:ReToolEnv",
    vector_entry_point="retool_env.vector:ReToolVectorEnv",
    order_enforce=False,  # the environment does that itself, and its messages say more
)
