"""The small real model that tests use, SmolLM2-135M-Instruct, and the prompt with which it writes ``code_tags``.

``scripts/fetch_smollm2.sh DIR PYTHON`` makes its folder; the environment variable RETOOL_SMOLLM2 names it. Where it is
missing, or torch or vLLM is, the tests are skipped; with ``--require-engines`` they fail.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from retool_env.problems import Problem
from retool_env.protocol.prompts import builtin_template

NAME = "smollm2"

TEMPLATE = builtin_template("code_tags_few_shot")
"""A model of this size does not follow instructions alone; it goes on as four solved problems do."""

PROBLEMS = tuple(
    Problem(id=f"small-{number}", question=question, answer=answer)
    for number, (question, answer) in enumerate(
        (
            ("What is 36 * 48?", "1728"),
            ("What is 915 - 278?", "637"),
            ("What is 456 + 789?", "1245"),
            ("What is the sum of the integers from 1 to 80?", "3240"),
            ("What is the remainder when 2500 is divided by 9?", "7"),
            ("What is 64 * 75?", "4800"),
            ("What is 1001 - 456?", "545"),
            ("What is the remainder when 777 is divided by 10?", "7"),
        )
    )
)


def need(config: pytest.Config, *packages: str) -> None:
    """Skips the test where a package is not installed, or fails it where engines are required."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            _lacks(config, f"{package} is not installed: make an environment with scripts/setup_vllm.sh")


def folder(config: pytest.Config) -> Path:
    """Returns the model's folder; skips the test where there is none, or fails it where engines are required."""
    name = os.environ.get("RETOOL_SMOLLM2", "")
    if not name:
        _lacks(config, "SmolLM2: run scripts/fetch_smollm2.sh DIR PYTHON and set RETOOL_SMOLLM2=DIR")
    if not (Path(name) / "config.json").is_file():
        pytest.fail(f"SmolLM2: RETOOL_SMOLLM2={name} holds no model", pytrace=False)
    return Path(name)


def _lacks(config: pytest.Config, what: str) -> None:
    if config.getoption("--require-engines"):
        pytest.fail(f"the tests against real engines are required: {what}", pytrace=False)
    pytest.skip(what)
