"""What this adapter relies on in verl, as a check that can be run where verl is installed.

    python -m retool_verl.signatures

It says which version is installed, whether it is one that was tested, and what has changed of what is relied on.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from typing import Any, Final

TESTED: Final = ("0.9.1", "0.9.0")
"""Versions of verl that the whole test suite of this adapter ran with."""

IN_PART: Final = ("0.8.0",)
"""Versions that ran with all but what they do not have themselves; the README says what that is."""

_AGENT_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_PARAMETERS: Final = {
    (_AGENT_LOOP, "AgentLoopBase.__init__"): (
        "trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "data_config", "kwargs"
    ),
    (_AGENT_LOOP, "AgentLoopBase.run"): ("sampling_params", "kwargs"),
    ("verl.workers.rollout.llm_server", "LLMServerClient.generate"): (
        "request_id", "prompt_ids", "sampling_params", "kwargs"
    ),
    ("verl.tools.base_tool", "BaseTool.__init__"): ("config", "tool_schema"),
    ("verl.tools.base_tool", "BaseTool.execute"): ("instance_id", "parameters", "kwargs"),
    ("verl.utils.dataset.multiturn_sft_dataset", "MultiTurnSFTDataset._process_single_message"): ("index", "message"),
}  # fmt: skip
"""Functions, and the parameters that they must have."""

_FIELDS: Final = {
    (_AGENT_LOOP, "AgentLoopOutput"): (
        "prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns", "metrics",
        "extra_fields",
    ),
    (_AGENT_LOOP, "AgentLoopMetrics"): ("generate_sequences", "tool_calls", "num_preempted"),
    ("verl.workers.rollout.replica", "TokenOutput"): (
        "token_ids", "log_probs", "stop_reason", "num_preempted", "extra_fields"
    ),
}  # fmt: skip
"""Models, and the fields that they must have."""


def find_changes() -> list[str]:
    """Returns what is not as this adapter needs it, in words; empty if all is.

    Raises:
        ImportError: verl is not installed.
    """
    importlib.import_module("verl")
    changes = []
    for (module, name), wanted in _PARAMETERS.items():
        found = _find(module, name)
        has = None if found is None else list(inspect.signature(inspect.unwrap(found)).parameters)
        changes += _compare(f"{module}.{name}", "parameters", wanted, has)
    for (module, name), wanted in _FIELDS.items():
        found = _find(module, name)
        changes += _compare(f"{module}.{name}", "fields", wanted, None if found is None else list(found.model_fields))
    return changes


def _find(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _compare(name: str, kind: str, wanted: tuple[str, ...], has: list[str] | None) -> list[str]:
    if has is None:
        return [f"{name}: there is no such thing any more"]
    missing = [each for each in wanted if each not in has]
    return [f"{name}: lacks the {kind} {', '.join(missing)} (it has {', '.join(has)})"] if missing else []


def _tested(version: str) -> str:
    if version in TESTED:
        return "tested"
    if version in IN_PART:
        return "tested but for what it does not have"
    return f"not tested; tested were {', '.join((*TESTED, *IN_PART))}"


def main() -> int:
    """Says what there is to say; returns 0, or 1 if something has changed."""
    version = importlib.metadata.version("verl")
    print(f"verl {version} ({_tested(version)})")
    changes = find_changes()
    for change in changes:
        print(change, file=sys.stderr)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
