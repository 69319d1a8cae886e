"""The errors retool_env raises. Each docstring says whose fault it is and what to do about it.

Nothing a model writes raises one of these: a bad model output is data and becomes feedback or an end reason.
"""


class ReToolError(Exception):
    """Base of every error of this package."""


class ConfigurationError(ReToolError, ValueError):
    """The caller's fault: an option has a value that cannot work.

    The message names the option, the value and the mend.
    """


class MissingDependencyError(ReToolError, ImportError):
    """The installation's fault: an optional package is needed for what was asked.

    The message says which extra has it.
    """


class EpisodeError(ReToolError):
    """The caller's fault: an ``Episode`` method was called out of order (for example ``read`` after the end)."""


class RewardError(ReToolError, ValueError):
    """The fault of a custom reward table: it returned something that is not a finite number."""


class ProblemError(ReToolError, ValueError):
    """The data's fault: a problem file is empty, lacks a column or holds a gold answer that cannot be parsed.

    The message names the file, the row and the column.
    """


class TrajectoryError(ReToolError, ValueError):
    """The data's fault: a recorded trajectory cannot be read (damaged line, unknown format version)."""


class DamagedTrajectoryError(TrajectoryError):
    """The data's fault: a line is not what was written once. One of a later release is no such line."""


class SandboxError(ReToolError):
    """Base of the sandbox's errors."""


class SandboxUnavailableError(SandboxError):
    """The machine's fault: the sandbox tier that was asked for cannot run here. The message says what is missing.

    Never shown to a model as the output of its code: it did nothing wrong. A fault of a *running* sandbox is not
    raised but reported as ``ExecutionStatus.UNAVAILABLE``.
    """


class SandboxBusyError(SandboxError):
    """The caller's doing: the sandbox's queue is full, or as many sessions are open as it may have.

    Wait and try again, close sessions, or raise ``max_queue`` or ``max_sessions``.
    """


class ForkError(SandboxError):
    """A session cannot be forked, now or ever. The message says why, and what to do about it."""


class SandboxClosedError(SandboxError):
    """The caller's fault: a closed ``Sandbox`` or ``Session`` was asked to run something."""


class PolicyError(ReToolError):
    """The fault of the policy's server: it cannot be reached, or it refuses what it is asked.

    The message names the server, the model and what came back.
    """
