"""The words every sandbox tier speaks: a status, a result and a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ExecutionStatus(StrEnum):
    """How an execution ended. ``OK`` and ``ERROR`` may be what the code claims; every other verdict is the host's."""

    OK = "ok"
    """Ran to its end (exit code 0)."""
    ERROR = "error"
    """An uncaught exception, or an exit with a code other than 0."""
    TIMEOUT = "timeout"
    """Passed its wall-clock or CPU deadline and was killed."""
    MEMORY = "memory"
    """The kernel killed it for memory."""
    OUTPUT_LIMIT = "output_limit"
    """Wrote more than the output cap and was killed; what came before is kept."""
    KILLED = "killed"
    """Died by a signal (a crash, an abort), or called in a session that such an end has left without its state."""
    UNAVAILABLE = "unavailable"
    """The sandbox itself failed. Never the code's fault: retry, then drop or mask the attempt."""

    @property
    def ran(self) -> bool:
        """Whether the call counts as a tool call: all do but those that failed through no fault of the code."""
        return self is not ExecutionStatus.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The outcome of one execution.

    Attributes:
        status: How it ended.
        stdout: Standard output, UTF-8 with U+FFFD for invalid bytes.
        stderr: Standard error, the same; holds the traceback of an uncaught exception.
        error_class: Name of the uncaught exception's class (``"ZeroDivisionError"``), a signal's name
            (``"SIGSEGV"``) when killed, else an empty string. Claimed by the code unless the status is the host's.
        exit_code: Exit code of the program, or None where it is not known (it was killed).
        wall_s: Seconds of wall-clock time from the start of the code.
        cpu_s: Seconds of CPU time, 0.0 where it is not known.
        truncated: Output was dropped because of the output cap.
        queue_s: Seconds from the submission to the start of the code.
        code_chars: Length of the program in characters.
    """

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    error_class: str = ""
    exit_code: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    truncated: bool = False
    queue_s: float = 0.0
    code_chars: int = 0
