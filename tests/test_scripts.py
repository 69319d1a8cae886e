"""The scripts behind ``make`` and CI: which Python is found, what the set-up refuses to touch, when a tier counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once  # they find the Python, whichever runs the tests

ROOT = Path(__file__).parents[1]
HERE = "{}.{}".format(*sys.version_info)


def _run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)


def _fake(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _environment(tmp_path: Path) -> dict[str, str]:
    """No Python of this machine in reach, only the usual commands."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "ls", "sort", "dirname", "cksum"):
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
                break
    return {"PATH": str(tools), "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")}


def test_a_python_on_the_path_is_found_by_its_version(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    Path(environment["PATH"], "python3").symlink_to(sys.executable)
    done = _run("find_python.sh", HERE, **environment)
    assert done.returncode == 0, done.stderr
    version = subprocess.run([done.stdout.strip(), "--version"], capture_output=True, text=True, check=True)
    assert f"Python {HERE}." in version.stdout


def test_a_shim_that_fails_is_passed_over_for_the_python_behind_it(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    _fake(Path(environment["PATH"], f"python{HERE}"), "echo 'command not found' >&2; exit 127")
    real = tmp_path / "pyenv" / "versions" / f"{HERE}.99" / "bin" / "python"
    _fake(real, f'exec "{sys.executable}" "$@"')
    done = _run("find_python.sh", HERE, **environment)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()


def test_the_order_of_the_versions_is_the_order_of_preference(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    for version in ("3.11", "3.12", "3.13"):
        # Stands for any Python: says that the version it is asked about is its own.
        _fake(Path(environment["PATH"], f"python{version}"), f"echo /pretend/python{version}")
    assert _run("find_python.sh", **environment).stdout == "/pretend/python3.12\n"
    assert _run("find_python.sh", "3.11", "3.13", **environment).stdout == "/pretend/python3.11\n"


def test_without_a_python_the_message_says_what_to_install(tmp_path: Path) -> None:
    done = _run("find_python.sh", **_environment(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    for text in ("3.12 3.13 3.11", "apt-get install", "pyenv install", "PYTHON="):
        assert text in done.stderr


def test_the_set_up_never_clears_a_folder_that_is_not_an_environment(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    done = _run("setup.sh", str(precious), "data", sys.executable)
    assert done.returncode == 1
    assert "not a virtual environment" in done.stderr
    assert (precious / "thesis.tex").exists()


def test_the_set_up_says_which_pythons_will_do(tmp_path: Path) -> None:
    done = _run("setup.sh", str(tmp_path / "venv"), "data", str(tmp_path / "no_python"))
    assert done.returncode == 1
    assert "3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_second_set_up_is_told_by_its_stamp_that_all_is_done(tmp_path: Path) -> None:
    # No pip in this environment: had it tried to install anything, it would have failed.
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    assert _run("setup.sh", str(venv), "data").returncode == 1
    base = "import os, sys; print(os.path.realpath(sys._base_executable))"
    found = subprocess.run([venv / "bin/python", "-c", base], capture_output=True, text=True, check=True)
    with (ROOT / "pyproject.toml").open("rb") as file:
        sum_of_file = subprocess.run(["cksum"], stdin=file, capture_output=True, text=True, check=True)
    (venv / ".retool-data").write_text(f"{sum_of_file.stdout.strip()} {found.stdout.strip()} {ROOT}\n")
    done = _run("setup.sh", str(venv), "data")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("nsjail", "code"), [("", 0), ("<skipped message='no binary'/>", 1), ("<failure message='escaped'/>", 1)]
)
def test_a_tier_whose_tests_did_not_pass_is_a_failure(nsjail: str, code: int, tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase name='test_attack[landlock-fork_bomb]'/>"
        "<testcase name='test_attack[landlock-swap]'><skipped message='no swap here'/></testcase>"
        f"<testcase name='test_attack[nsjail-fork_bomb]'>{nsjail}</testcase>"
        "<testcase name='test_that_names_nsjail'/>"
        "</testsuite></testsuites>"
    )
    command = [sys.executable, str(ROOT / "scripts" / "check_tiers.py"), str(report), "nsjail", "landlock"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert "tier landlock: 1 passed, 1 skipped" in done.stdout
    assert ("nsjail" in done.stderr) is bool(code)


def test_vllm_is_not_installed_into_another_python_than_its_versions_are_for(tmp_path: Path) -> None:
    other = tmp_path / "python3.12"
    _fake(other, "exit 1")  # as `sys.exit(sys.version_info[:2] != (3, 11))` does there
    done = _run("setup_vllm.sh", str(tmp_path / "venv"), str(other))
    assert done.returncode == 1
    assert "is no Python 3.11" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    python = tmp_path / "python"
    _fake(python, f"touch {tmp_path}/called; exit 1")
    maker = ROOT / "scripts" / "make_smollm2.py"
    check = subprocess.run(["cksum"], input=maker.read_text(), capture_output=True, text=True, check=True)
    (tmp_path / "model").mkdir()
    stamp = tmp_path / "model" / ".version"
    for written, returncode in ((f"0.1.2 {check.stdout.strip()}", 0), ("0.1.1 of another maker", 1)):
        stamp.write_text(written + "\n")
        done = _run("fetch_smollm2.sh", str(tmp_path / "model"), str(python))
        assert done.returncode == returncode, done.stderr
        assert (tmp_path / "called").exists() == (returncode != 0)
