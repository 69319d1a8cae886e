"""The file for ``--train.agent_func_path`` with OpenRLHF's own loop and ``RetoolInstance``, which says its limits."""

from openrlhf.utils.agent import MultiTurnAgentExecutor

from retool_openrlhf.instance import RetoolInstance
from retool_openrlhf.options import check_instance, read_environment

SETTINGS = read_environment()
check_instance(SETTINGS)


class AgentInstance(RetoolInstance):
    """The attempt that OpenRLHF makes for every sample, without arguments."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)


class AgentExecutor(MultiTurnAgentExecutor):
    """OpenRLHF's own loop."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)
