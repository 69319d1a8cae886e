"""What the built distribution holds, and what an installed one exposes."""

import email.message
import email.parser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = {
    *("data", "datasets", "multiagent", "rollout", "transformers", "ray", "serve", "trl", "verl", "openrlhf"),
    *("bench", "report", "test", "test-engines", "dev"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: setuptools leaves build/ behind, and takes stale files from it the next time."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    # The folders that must not get in are there too, so that leaving them out is a decision of the build.
    for name in ("retool_env", "adapters", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, *_isolation(), "--wheel-dir", str(target), str(source)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def _isolation() -> list[str]:
    """With a setuptools of ours that is new enough the build needs no network."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return []
    return ["--no-build-isolation"] if int(version.split(".")[0]) >= 77 else []


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def _requirement_names(metadata: email.message.Message, extra: str | None) -> set[str]:
    marker = f'extra == "{extra}"'
    lines = [str(line).replace("'", '"') for line in metadata.get_all("Requires-Dist", [])]
    wanted = [line for line in lines if (marker in line if extra else "extra ==" not in line)]
    return {re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-") for line in wanted}


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else_at_the_top(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"retool_env", "retool_openrlhf", "retool_verl"}


@pytest.mark.slow
def test_the_wheel_holds_every_module_of_the_package(wheel: zipfile.ZipFile) -> None:
    # A subpackage that pyproject.toml forgets works in a checkout and is missing for everybody else.
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "retool_env").rglob("*.py")}
    assert "retool_env/cli.py" in expected
    assert expected - set(wheel.namelist()) == set()


@pytest.mark.slow
def test_the_wheel_holds_the_type_marker_and_the_data_files(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "retool_env/py.typed" in names
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "retool_env/protocol/templates").glob("*")}
    assert templates, "no prompt template in the source"
    assert templates - names == set()
    sheets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "retool_env/report").glob("*.[cj]s*")}
    assert {"retool_env/report/report.css", "retool_env/report/viewer.js"} <= sheets
    assert sheets - names == set()


@pytest.mark.slow
def test_the_metadata_names_the_extras_the_command_and_the_licence(
    wheel: zipfile.ZipFile, metadata: email.message.Message
) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "retool = retool_env.cli_start:main" in wheel.read(entry_points).decode()


@pytest.mark.slow
def test_the_core_needs_no_trainer_and_no_compiler(metadata: email.message.Message) -> None:
    core = _requirement_names(metadata, None)
    assert {"gymnasium", "pydantic", "numpy"} <= core
    heavy = {"torch", "transformers", "vllm", "sglang", "ray", "datasets", "reasoning-gym", "verl", "openrlhf", "trl"}
    assert core & heavy == set()
    assert "reasoning-gym" in _requirement_names(metadata, "data")


def _run_elsewhere(code: str, cwd: Path) -> str:
    """Runs code as a user's program would: the installed package, another folder, no help from the environment."""
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    code = "import importlib.util as u; print(u.find_spec('retool_env') is not None)"
    if _run_elsewhere(code, tmp_path) != "True":
        pytest.skip("retool_env is not installed in this environment (make test installs it)")
    return tmp_path


@pytest.mark.parametrize("name", ["tests", "benchmarks", "adapters"])
def test_our_own_folders_are_not_importable(installed: Path, name: str) -> None:
    # Trainers install a top-level package called tests, so a foreign one may be found: it must not be ours.
    code = (
        "import importlib.util as u\n"
        f"spec = u.find_spec({name!r})\n"
        "print([*(spec.submodule_search_locations or []), spec.origin] if spec else [])"
    )
    assert str(ROOT / name) not in _run_elsewhere(code, installed)


def test_the_adapters_are_importable_by_names_of_their_own(installed: Path) -> None:
    assert _run_elsewhere("import retool_openrlhf, retool_verl; print('ok')", installed) == "ok"
