"""The sandbox: fresh, contained Python interpreters for programs that nobody has read."""

from typing import TYPE_CHECKING, Any

from retool_env.sandbox.api import ExecutionResult, ExecutionStatus

if TYPE_CHECKING:
    from retool_env.sandbox.config import SandboxConfig
    from retool_env.sandbox.metrics import SandboxMetrics
    from retool_env.sandbox.sandbox import Sandbox
    from retool_env.sandbox.session import Session

__all__ = ["ExecutionResult", "ExecutionStatus", "Sandbox", "SandboxConfig", "SandboxMetrics", "Session"]


def __getattr__(name: str) -> Any:
    """Loads the parts that need pydantic when they are first asked for."""
    if name == "Sandbox":
        from retool_env.sandbox.sandbox import Sandbox

        return Sandbox
    if name == "SandboxConfig":
        from retool_env.sandbox.config import SandboxConfig

        return SandboxConfig
    if name == "SandboxMetrics":
        from retool_env.sandbox.metrics import SandboxMetrics

        return SandboxMetrics
    if name == "Session":
        from retool_env.sandbox.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
