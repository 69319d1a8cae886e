"""Whether OpenRLHF would take a launch script's flags: read by its own parser, and checked by its own checks.

    PRINT=1 adapters/openrlhf/scripts/grpo.sh | python -m retool_openrlhf.flags train_ppo_ray

The parser of OpenRLHF's command stands in its ``if __name__ == "__main__":``. That block is run here, out of the
installed file, without what it would train with: neither a GPU nor a GPU's packages are needed. What the parser lets
through and the run then does otherwise is found, too: a flag by the beginning of its name, one that is given twice, one
that no line reads, a value that OpenRLHF changes, and what it only prints a warning of.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

COMMANDS: Final = ("train_ppo_ray", "train_sft")

_HARMLESS: Final = ("[Warning] Using --colocate_all_models in async RLHF only colocates DeepSpeed models.",)
"""What is said of flags that do what they should: the models that are trained share their GPUs, vLLM has its own."""


class _Parser(argparse.ArgumentParser):
    """A parser that says its mistakes as an exception, and takes no abbreviations."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        raise _RefusedError(message)


class _RefusedError(Exception):
    pass


def find_faults(command: str, flags: Sequence[str]) -> list[str]:
    """Returns what is wrong with the flags of a command of OpenRLHF, in words; empty if nothing is.

    Args:
        command: One of ``COMMANDS``.
        flags: As on the command line.

    Raises:
        ImportError: OpenRLHF is not installed.
    """
    names = [flag.partition("=")[0] for flag in flags if flag.startswith("--")]
    faults = [f"{name}: given {n} times" for name, n in Counter(names).items() if n > 1]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            arguments = read_flags(command, flags)
    except _RefusedError as error:
        return [*faults, f"the parser: {error}"]
    except (AssertionError, ValueError, TypeError) as error:
        return [*faults, f"the checks of {command}: {error}"]
    # What it would do otherwise than it was told, it says.
    faults += [line for line in said.getvalue().splitlines() if line.strip() and not line.startswith(_HARMLESS)]
    if command == "train_ppo_ray":
        faults += _check_gpus(arguments)
    return faults + [f"{name}: no line of OpenRLHF reads it" for name in names if not _is_read(name)]


def read_flags(command: str, flags: Sequence[str]) -> Any:
    """Returns the arguments that OpenRLHF's command would train with.

    Raises:
        AssertionError: One of its checks fails.
    """
    block = _main_block(command)
    found: list[Any] = []
    names: dict[str, Any] = {
        "argparse": SimpleNamespace(ArgumentParser=_Parser),
        "datetime": datetime,
        "train": found.append,
        "__name__": f"openrlhf.cli.{command}",
    }
    argv = sys.argv
    sys.argv = [command, *flags]
    try:
        exec(block, names)  # the command's own code
    finally:
        sys.argv = argv
    [arguments] = found
    return arguments


def _check_gpus(arguments: Any) -> list[str]:
    """Does what ``train`` would do first: in hybrid mode vLLM has exactly the GPUs of the models."""
    gpus = arguments.actor.num_nodes * arguments.actor.num_gpus_per_node
    engines = (arguments.vllm.num_engines or 0) * arguments.vllm.tensor_parallel_size
    if not arguments.train.colocate_all or arguments.train.async_enable or gpus == engines:
        return []
    return [f"--train.colocate_all: --actor has {gpus} GPUs (num_nodes x num_gpus_per_node) and --vllm has {engines}"]


@cache
def _main_block(command: str) -> Any:
    path = _folder() / "cli" / f"{command}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    [block] = [each.body for each in tree.body if isinstance(each, ast.If)]
    return compile(ast.Module(block, []), str(path), "exec")


@cache
def _folder() -> Path:
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or spec.origin is None:
        raise ImportError("OpenRLHF is not installed")
    return Path(spec.origin).parent


@cache
def _source() -> str:
    """All source but the definitions of flags."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(_folder().rglob("*.py")))
    return re.sub(r"add_argument\(\s*f?\"[^\"]*\"", "", "\n".join(texts))


@cache
def _is_read(flag: str) -> bool:
    """Whether a line reads the last part of a flag's name, as an attribute or by its name."""
    name = re.escape(flag.removeprefix("--").rpartition(".")[2])
    return re.search(rf"\.{name}\b|[\"']{name}[\"']", _source()) is not None


def main(arguments: Sequence[str], lines: Iterable[str]) -> int:
    """Checks flags from standard input, one word a line; returns 0, or 1 if there is a fault."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        print(f"usage: python -m retool_openrlhf.flags {'|'.join(COMMANDS)} < FLAGS", file=sys.stderr)
        return 2
    faults = find_faults(arguments[0], [line.rstrip("\n") for line in lines if line.strip()])
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
