"""``retool report``, run as a user runs it, on the record of a real run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from retool_env.cli import app
from retool_env.trajectory import read_jsonl, write_jsonl

runner = CliRunner()
COMMAND = [sys.executable, "-m", "retool_env.cli_start", "report"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty attempts of the demo, a few of them wrong, a few without any call."""
    path = tmp_path_factory.mktemp("demo") / "run.jsonl"
    done = runner.invoke(app, ["demo", "-n", "20", "--seed", "3", "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def run(demo: Path, tmp_path: Path) -> Path:
    """The folder of a run: those attempts, each four times."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_jsonl(folder / "trajectories.jsonl", [one for one in read_jsonl(demo) for _ in range(4)])
    return folder


def report(*arguments: object) -> Result:
    return runner.invoke(app, ["report", *map(str, arguments)])


def test_a_run(run: Path) -> None:
    result = report(run)
    assert result.exit_code == 0, result.output
    attempts = list(read_jsonl(run / "trajectories.jsonl"))
    correct = sum(one.outcome.correct for one in attempts if one.outcome)
    assert 0 < correct < 80
    found = json.loads((run / "metrics.json").read_text())
    assert (found["attempts"], found["correct"]) == (80, correct)
    assert f"{100 * correct / 80:.1f}%" in result.stdout
    for part in ("mean@4", "By number of attempts k", "How code was used", f"report  {run / 'report.html'}"):
        assert part in result.stdout
    blocks = [turn for one in attempts for turn in one.turns if turn.results]
    assert found["executions"]["blocks"] == len(blocks)
    assert found["behaviour"]["all"]["code_ratio"] == sum(any(t.results for t in one.turns) for one in attempts) / 80
    assert sorted(os.listdir(run)) == ["attempts.html", "metrics.json", "report.html", "trajectories.jsonl"]


def test_a_file_of_trajectories(demo: Path, tmp_path: Path) -> None:
    assert report(demo).exit_code == 2
    out = tmp_path / "new" / "report"
    result = report(demo, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(out)) == ["attempts.html", "metrics.json", "report.html"]
    assert os.listdir(demo.parent) == ["run.jsonl"]
    assert "<h1>run.jsonl</h1>" in (out / "report.html").read_text(encoding="utf-8")


def test_the_report_of_a_folder_elsewhere(run: Path, tmp_path: Path) -> None:
    assert report(run, "--out", tmp_path / "report", "--n-bootstrap", 0).exit_code == 0
    assert os.listdir(run) == ["trajectories.jsonl"]
    found = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert found["estimates"]["mean@n"]["low"] is None


def test_against_another_run(run: Path, demo: Path) -> None:
    result = report(run, "--against", demo)
    assert result.exit_code == 0, result.output
    assert "over 20 common problems" in result.stdout
    assert re.search(r"mean@n .* \+0\.0 points", result.stdout)


def test_the_seed_fixes_the_intervals(run: Path) -> None:
    def interval(seed: int) -> list[float]:
        assert report(run, "--seed", seed, "--n-bootstrap", 300).exit_code == 0
        estimate = json.loads((run / "metrics.json").read_text())["estimates"]["reward"]
        return [estimate["low"], estimate["high"]]

    assert interval(1) == interval(1)
    assert interval(1) != interval(2)


def test_bad_lines_are_said(run: Path) -> None:
    with (run / "trajectories.jsonl").open("a") as stream:
        stream.write('{"format_version": 3, "\x1b[2J')
    result = report(run)
    assert result.exit_code == 1
    assert "Could not be read: 1 line of the file" in " ".join(result.stdout.split())
    assert json.loads((run / "metrics.json").read_text())["unread"] == 1


def test_wrong_use_is_said(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ([tmp_path / "empty"], "No such file"),
        ([tmp_path / "nowhere"], "--out"),
        ([run, "--against", tmp_path / "nowhere"], "No such file"),
        ([run, "--out", run / "trajectories.jsonl" / "x"], "Not a directory"),
        ([run, "--n-bootstrap", "-1"], "n-bootstrap"),
    ):
        result = report(*arguments)
        assert result.exit_code == 2, result.output
        assert said in result.stderr
    (run / "report.html").write_text("precious")
    result = report(run)
    assert result.exit_code == 2
    assert "is not of a report" in result.stderr
    assert (run / "report.html").read_text() == "precious"


def test_hostile_text_commands_no_terminal(run: Path) -> None:
    attempt = json.loads((run / "trajectories.jsonl").read_bytes().splitlines()[0])
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e[bold red]\r\n\x00"
    attempt["problem"]["id"] = attempt["problem"]["source"] = attempt["rules"]["reward"] = evil
    with (run / "trajectories.jsonl").open("a") as stream:
        stream.write(json.dumps(attempt) + "\n")
    result = report(run)
    assert result.exit_code == 0, result.output
    assert not set("\x1b\x07\u202e\x00\r") & set(result.stdout)
    assert "[bold red]" in re.sub(r"[\s│]", "", result.stdout).replace("boldred", "bold red")


def test_a_pipe_gets_no_colour_and_leaves_nothing_behind(run: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    done = subprocess.run([*COMMAND, str(run)], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert len(os.listdir(run)) == 4


def test_memory_does_not_grow_with_the_length_of_attempts(demo: Path, tmp_path: Path) -> None:
    def peak_kb(turns: int) -> int:
        folder = tmp_path / f"run-{turns}"
        folder.mkdir()
        attempt = json.loads(demo.read_bytes().splitlines()[0])
        attempt["turns"] = [{**attempt["turns"][0], "kept": "x" * 1000}] * turns
        line = json.dumps(attempt) + "\n"
        with (folder / "trajectories.jsonl").open("w") as stream:
            for _ in range(1500):
                stream.write(line)
        code = (
            "import resource, sys\nsys.modules['matplotlib'] = None\nfrom pathlib import Path\n"
            "from retool_env.report.run_report import write_report\nwrite_report(Path(sys.argv[1]), n_bootstrap=0)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    few, many = peak_kb(1), peak_kb(20)
    assert many - few < 20_000  # and the file is 50 MB larger


def test_nothing_heavy_is_imported_for_the_figures() -> None:
    code = (
        "import sys\nimport retool_env.report.metrics, retool_env.report.run_report, retool_env.report.plots\n"
        "print([name for name in ('matplotlib', 'torch', 'transformers', 'pyarrow', 'httpx', 'rich', 'sympy')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
