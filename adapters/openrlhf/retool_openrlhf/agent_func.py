"""The file for ``--train.agent_func_path``. OpenRLHF loads it and builds ``AgentExecutor`` without arguments.

    --train.agent_func_path "$(python -m retool_openrlhf.options)"

The configuration (``retool_openrlhf.options``) is read, and a mistake in it found, when the file is loaded. OpenRLHF's
loader does not put the file into ``sys.modules``, so everything that matters is imported.
"""

from retool_openrlhf.executor import RetoolExecutor
from retool_openrlhf.options import read_environment

SETTINGS = read_environment()


class AgentExecutor(RetoolExecutor):
    """The executor that OpenRLHF looks for by this name."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
