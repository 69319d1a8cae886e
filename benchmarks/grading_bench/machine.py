"""The machine that the figures are from."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from sandbox_bench import machine

_PACKAGES = ("retool-env", "math-verify", "latex2sympy2-extended", "sympy", "antlr4-python3-runtime", "gmpy2")


def facts() -> dict[str, Any]:
    """Returns what a reader has to know to compare the figures with others."""
    found = machine.facts("")
    del found["tier"]
    installed = {name: version for name in _PACKAGES if (version := _version(name))}
    return found | {"packages": installed}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
