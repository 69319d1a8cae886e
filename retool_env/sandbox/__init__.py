"""The sandbox: fresh, contained Python interpreters for programs that nobody has read."""

from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.sandbox import Sandbox

__all__ = ["ExecutionResult", "ExecutionStatus", "Sandbox", "SandboxConfig"]
