import importlib
import json
import subprocess
import sys

import gymnasium
import pytest

import retool_env

HEAVY = (
    "sympy",
    "torch",
    "transformers",
    "pydantic",
    "math_verify",
    "rich",
    "typer",
    "jsonschema",
    "reasoning_gym",
    "scipy",
    "pandas",
)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_registers_the_environment_and_loads_nothing_heavy() -> None:
    code = f"""
import json, sys
import gymnasium
before = set(sys.modules)
import retool_env
new = sorted(set(sys.modules) - before)
print(json.dumps({{
    "heavy": [name for name in {HEAVY!r} if name in sys.modules],
    "ours": [name for name in new if name.startswith("retool_env")],
    "others": [name for name in new if not name.startswith("retool_env")],
    "registered": "ReTool-v0" in gymnasium.registry,
}}))
"""
    seen = json.loads(run_python(code))
    assert seen["heavy"] == []
    assert seen["registered"]
    # What is not imported costs no time: nothing of ours but the package itself, and nothing of anybody else's.
    assert seen["ours"] == ["retool_env"]
    assert seen["others"] == []


def test_every_public_name_is_there_and_is_loaded_when_it_is_used() -> None:
    for name in retool_env.__all__:
        value = getattr(retool_env, name)
        assert getattr(retool_env, name) is value
    assert set(retool_env.__all__) <= set(dir(retool_env))
    assert retool_env.__version__


def test_where_problems_come_from_is_public() -> None:
    wanted = {"BuiltinProblems", "Problem", "builtin_problems", "load_jsonl", "load_problems"}
    assert wanted <= set(retool_env.__all__)


def test_a_public_name_is_the_one_of_its_module() -> None:
    assert retool_env.Episode is importlib.import_module("retool_env.episode").Episode


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        retool_env.Nope  # noqa: B018


def test_the_spec_names_the_entry_point_as_text() -> None:
    spec = gymnasium.spec("ReTool-v0")
    assert spec.entry_point == "retool_env.env:ReToolEnv"
    assert not spec.nondeterministic
