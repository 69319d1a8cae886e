"""What this adapter relies on in OpenRLHF, as a check that can be run where OpenRLHF is installed.

    python -m retool_openrlhf.signatures

It says which version is installed, whether it is one that was tested, and what has changed of what is relied on.
Modules that need a GPU's packages (flash-attn) are read, not imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Final

TESTED: Final = ("0.11.2",)
"""Versions of OpenRLHF that the whole test suite of this adapter ran with."""

_AGENT: Final = "openrlhf.utils.agent"
_ROLLOUT: Final = "openrlhf.trainer.ray.vllm_engine"
_SFT: Final = "openrlhf.datasets.sft_dataset"
_PARAMETERS: Final = {
    (_AGENT, "AgentExecutorBase.execute"): (
        "prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "llm_engine", "images"
    ),
    (_AGENT, "AgentInstanceBase.reset"): ("states", "kwargs"),
    (_AGENT, "AgentInstanceBase.step"): ("state_dict", "kwargs"),
    (_AGENT, "MultiTurnAgentExecutor.__init__"): ("agent_instance_cls",),
    (_ROLLOUT, "_load_agent_executor"): ("agent_func_path",),
    (_ROLLOUT, "RolloutRayActor.generate"): ("prompt_token_ids", "sampling_params"),
    (_SFT, "SFTDataset.__init__"): ("dataset", "tokenizer", "max_length", "strategy", "multiturn"),
    (_SFT, "SFTDataset.collate_fn"): ("item_list",),
    ("openrlhf.cli.train_sft", "train"): ("args",),
}  # fmt: skip
"""Functions, and the parameters that they must have."""

_KEYS: Final = {
    ("openrlhf.trainer.ppo_utils.samples_generator", "SamplesGenerator._process_response_into_experience"): (
        "prompt", "label", "images", "mm_train_inputs", "reward", "scores", "observation_tokens", "action_ranges",
        "rollout_log_probs", "truncated", "extra_logs",
    ),
    (_AGENT, "MultiTurnAgentExecutor.execute"): (
        "observation", "observation_text", "action_text", "label", "sampling_params", "rewards", "scores",
        "environment_feedback", "done", "extra_logs",
    ),
    (_ROLLOUT, "_load_agent_executor"): ("agent_module",),
    ("openrlhf.trainer.ppo_trainer", "compute_eval_metrics"): ("pass1",),
}  # fmt: skip
"""Functions, and the words that must stand in them: keys of what is handed over."""


def find_changes() -> list[str]:
    """Returns what is not as this adapter needs it, in words; empty if all is.

    Raises:
        ImportError: OpenRLHF is not installed.
    """
    _folder()
    changes = []
    for (module, name), wanted in _PARAMETERS.items():
        found = _find(module, name)
        has = None if found is None else _parameters(found)
        changes += _compare(f"{module}.{name}", "parameters", wanted, has)
    for (module, name), wanted in _KEYS.items():
        found = _find(module, name)
        changes += _compare(f"{module}.{name}", "keys", wanted, None if found is None else _words(found))
    return changes


@cache
def _folder() -> Path:
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or spec.origin is None:
        raise ImportError("OpenRLHF is not installed")
    return Path(spec.origin).parent


def _find(module: str, name: str) -> ast.AST | None:
    path = _folder().joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return None
    found: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        inside = {each.name: each for each in ast.walk(found) if isinstance(each, _NAMED) and each is not found}
        if part not in inside:
            return None
        found = inside[part]
    return found


_NAMED: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _parameters(function: ast.AST) -> list[str]:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each.arg for each in named if each is not None]


def _words(function: ast.AST) -> list[str]:
    constants = [each.value for each in ast.walk(function) if isinstance(each, ast.Constant)]
    return sorted({each for each in constants if isinstance(each, str) and each.isidentifier()})


def _compare(name: str, kind: str, wanted: tuple[str, ...], has: list[str] | None) -> list[str]:
    if has is None:
        return [f"{name}: there is no such thing any more"]
    missing = [each for each in wanted if each not in has]
    return [f"{name}: lacks the {kind} {', '.join(missing)} (it has {', '.join(has)})"] if missing else []


def main() -> int:
    """Says what there is to say; returns 0, or 1 if something has changed."""
    version = importlib.metadata.version("openrlhf")
    tested = "tested" if version in TESTED else f"not tested; tested were {', '.join(TESTED)}"
    print(f"OpenRLHF {version} ({tested})")
    changes = find_changes()
    for change in changes:
        print(change, file=sys.stderr)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
