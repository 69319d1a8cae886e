"""The run's folder: whole lines, whatever happens; and what a folder that is opened again makes of what is there."""

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retool_env.errors import ConfigurationError, TrajectoryError
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptConfig, AttemptResult, attempt
from retool_env.rollout.byte_tokenizer import ByteTokenizer
from retool_env.rollout.engines import ScriptedEngine, TurnLostError
from retool_env.rollout.store import ASIDE, CONFIG, TOKENS, TRAJECTORIES, RunFolder
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.trajectory import SampleRecord, read_jsonl

PROBLEMS = [Problem(id=f"p{number}", question=f"What is {number}?", answer=str(number)) for number in range(4)]
ASKED: dict[str, Any] = {"n": 4, "attempt": {"temperature": 1.0}}


@pytest.fixture(scope="session")
def results() -> dict[str, AttemptResult]:
    """A real attempt, and one that a fault has ended. Nothing in them runs code."""

    async def make() -> dict[str, AttemptResult]:
        codec = TokenCodec(ByteTokenizer())
        made = {}
        for name, turn in (("good", "<answer>\\boxed{1}</answer>"), ("fault", TurnLostError("gone"))):
            engine = ScriptedEngine(codec, lambda ids, params, turn=turn: turn)
            with Sandbox(tier="none") as sandbox:
                made[name] = await attempt(PROBLEMS[1], engine, codec, sandbox, AttemptConfig(max_resumes=0))
        return made

    with pytest.warns(RuntimeWarning, match="none"):
        return asyncio.run(make())


def add(folder: RunFolder, results: dict[str, AttemptResult], number: int, sample: int, name: str = "good") -> None:
    result = results[name]
    record = result.record.model_copy(
        update={
            "problem": PROBLEMS[number],
            "sample": SampleRecord(id=f"{number}/{sample}", problem_number=number, sample=sample, seed=7),
        }
    )
    folder.add(record, result)


def opened(path: Path, asked: dict[str, Any] = ASKED, problems: list[Problem] = PROBLEMS) -> RunFolder:
    return RunFolder(path, problems, asked, {"concurrency": 3})


def ids(path: Path) -> tuple[list[str], list[str]]:
    records = [record.sample.id for record in read_jsonl(path / TRAJECTORIES) if record.sample is not None]
    return [json.loads(line)["id"] for line in (path / TOKENS).read_text().splitlines()], records


def test_what_is_written_is_found_again(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path / "a" / "run") as folder:
        assert folder.found.attempts == 0
        add(folder, results, 1, 2)
        add(folder, results, 0, 0)
    config = json.loads((folder.path / CONFIG).read_text())
    assert (config["asked"], config["how"]) == (ASKED, {"concurrency": 3})
    with opened(folder.path) as again:
        assert (again.found.attempts, again.found.correct, again.found.faults) == (2, 2, 0)
        done = [(number, sample) for number in range(5) for sample in range(5) if again.is_done(number, sample)]
        assert done == [(0, 0), (1, 2)]
    assert ids(folder.path) == (["1/2", "0/0"], ["1/2", "0/0"])


def test_a_line_of_tokens_holds_all_that_a_trainer_needs(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 1, 0)
    row = json.loads((tmp_path / TOKENS).read_text())
    good = results["good"]
    assert row["prompt_ids"] + row["response_ids"] == good.tokens.ids
    assert (row["response_mask"], row["response_logprobs"]) == (good.response_mask, good.response_logprobs)
    assert (row["exact"], row["has_logprobs"], row["dropped"], row["template_drift"]) == (True, True, 0, "")


@pytest.mark.parametrize("kept", [1, 100, -1])
def test_a_torn_last_line_is_dropped_and_its_attempt_not_done(
    tmp_path: Path, results: dict[str, AttemptResult], kept: int
) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
        size = (tmp_path / TRAJECTORIES).stat().st_size
        add(folder, results, 1, 0)
    file = tmp_path / TRAJECTORIES
    data = file.read_bytes()
    file.write_bytes(data[: size + kept] if kept > 0 else data[:kept])
    with opened(tmp_path) as folder:
        assert folder.is_done(0, 0)
        assert not folder.is_done(1, 0)
        add(folder, results, 1, 0)
    assert ids(tmp_path) == (["0/0", "1/0"], ["0/0", "1/0"])


def test_tokens_that_are_torn_or_have_no_trajectory_are_dropped(
    tmp_path: Path, results: dict[str, AttemptResult]
) -> None:
    with opened(tmp_path) as folder:
        for number in range(3):
            add(folder, results, number, 0)
    tokens, file = tmp_path / TOKENS, tmp_path / TRAJECTORIES
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[2])  # whatever came to it
    tokens.write_bytes(tokens.read_bytes()[:-10])
    with opened(tmp_path) as folder:
        assert (folder.found.attempts, folder.found.unfinished) == (1, 1)
        assert [folder.is_done(number, 0) for number in range(3)] == [True, False, False]
    assert ids(tmp_path) == (["0/0"], ["0/0"])


def test_faults_are_made_again(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
        add(folder, results, 1, 0, "fault")
        add(folder, results, 2, 0)
        assert ids(tmp_path)[1] == ["0/0", "1/0", "2/0"]
    with opened(tmp_path) as folder:
        assert (folder.found.attempts, folder.found.faults) == (2, 1)
        assert not folder.is_done(1, 0)
        add(folder, results, 1, 0)
    assert ids(tmp_path) == (["0/0", "2/0", "1/0"], ["0/0", "2/0", "1/0"])


def test_another_configuration_is_refused_with_what_differs(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigurationError, match=r"attempt\.temperature was 1\.0 and is 0\.7; n was 4 and is 5"):
        opened(tmp_path, {"n": 5, "attempt": {"temperature": 0.7}})
    opened(tmp_path, {"attempt": {"temperature": 1.0}, "n": 4}).close()


def test_other_problems_are_refused(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 2, 0)
    with pytest.raises(ConfigurationError, match="number 2 was 'p2'"):
        opened(tmp_path, problems=PROBLEMS[::-1])
    with pytest.raises(ConfigurationError, match="number 2 was 'p2'"):
        opened(tmp_path, problems=PROBLEMS[:2])


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(ConfigurationError, match=r"thesis\.tex"):
        opened(tmp_path)
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(ConfigurationError, match="not of a run"):
        opened(tmp_path)


def aside(path: Path, name: str) -> bytes:
    return (path / f"{name}{ASIDE}").read_bytes()


def test_a_trajectory_damaged_in_the_middle_is_set_aside_with_its_tokens_and_made_again(
    tmp_path: Path, results: dict[str, AttemptResult]
) -> None:
    with opened(tmp_path) as folder:
        for number in range(3):
            add(folder, results, number, 0)
    file = tmp_path / TRAJECTORIES
    lines = file.read_bytes().splitlines(keepends=True)
    tokens = (tmp_path / TOKENS).read_bytes().splitlines(keepends=True)
    damaged = lines[1][:50] + b"\n"
    file.write_bytes(lines[0] + damaged + lines[2])
    with opened(tmp_path) as folder:
        (said,) = folder.found.damaged
        assert said.startswith("trajectories.jsonl, line 2: damaged")
        assert [folder.is_done(number, 0) for number in range(3)] == [True, False, True]
        assert (aside(tmp_path, TRAJECTORIES), aside(tmp_path, TOKENS)) == (damaged, tokens[1])
        add(folder, results, 1, 0)
    assert ids(tmp_path) == (["0/0", "2/0", "1/0"], ["0/0", "2/0", "1/0"])
    opened(tmp_path).close()
    assert aside(tmp_path, TRAJECTORIES) == damaged


def test_damaged_tokens_are_set_aside_with_their_trajectory(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
        add(folder, results, 1, 0)
    tokens, file = tmp_path / TOKENS, tmp_path / TRAJECTORIES
    lines = file.read_bytes().splitlines(keepends=True)
    first, second = tokens.read_bytes().splitlines(keepends=True)
    tokens.write_bytes(first[:50] + b"\n" + second)
    with opened(tmp_path) as folder:
        assert folder.found.damaged == ["tokens.jsonl, line 1: cut off"]
        assert not folder.is_done(0, 0)
    assert ids(tmp_path) == (["1/0"], ["1/0"])
    assert (aside(tmp_path, TOKENS), aside(tmp_path, TRAJECTORIES)) == (first[:50] + b"\n", lines[0])


def test_of_an_attempt_that_is_there_twice_the_first_stays(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
    for name in (TRAJECTORIES, TOKENS):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() * 2)
    with opened(tmp_path) as folder:
        assert folder.found.damaged == [
            f"{name}, line 2: attempt 0/0 is there twice" for name in (TRAJECTORIES, TOKENS)
        ]
        assert folder.is_done(0, 0)
    assert ids(tmp_path) == (["0/0"], ["0/0"])


def test_an_attempt_of_a_later_release_is_no_damage(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
    file = tmp_path / TRAJECTORIES
    later = file.read_bytes().replace(b'"format_version":4', b'"format_version":99')
    file.write_bytes(later)
    with pytest.raises(TrajectoryError, match=r"trajectories\.jsonl, line 1: unknown format_version 99"):
        opened(tmp_path)
    assert file.read_bytes() == later


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ConfigurationError, match="cannot be written"):
            opened(place)


def test_two_processes_cannot_have_one_folder(tmp_path: Path) -> None:
    script = """
import json, sys
from pathlib import Path
from retool_env.errors import ConfigurationError
from retool_env.problems import load_problems
from retool_env.rollout.store import RunFolder

path, problems, asked = sys.argv[1:]
try:
    RunFolder(Path(path), load_problems(json.loads(problems)), json.loads(asked), {}).close()
except ConfigurationError as error:
    print(error)
"""
    problems = [problem.model_dump() for problem in PROBLEMS]
    command = [sys.executable, "-c", script, str(tmp_path), json.dumps(problems), json.dumps(ASKED)]
    with opened(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "another run" in other.stdout, other
    opened(tmp_path).close()


def test_with_a_full_disk_an_attempt_is_not_written_by_half(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    """The limit on the size of a file stands in for the disk: writing stops in the middle of a line."""
    with opened(tmp_path) as folder:
        add(folder, results, 0, 0)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        sizes = [(tmp_path / name).stat().st_size for name in (TOKENS, TRAJECTORIES)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) + 100, hard))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as raised:
                list(map(partial(add, folder, results, 1), range(1, 100)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
    assert str(tmp_path) in str(raised.value)
    for name in (TOKENS, TRAJECTORIES):
        assert (tmp_path / name).read_bytes().endswith(b"\n")
    with opened(tmp_path) as folder:
        assert folder.is_done(0, 0)
        add(folder, results, 2, 0)
    tokens, records = ids(tmp_path)
    assert tokens == records
    assert records[-1] == "2/0"
    assert not list(tmp_path.glob("*.part"))


def test_an_attempt_without_tokens_is_recorded(tmp_path: Path, results: dict[str, AttemptResult]) -> None:
    with opened(tmp_path) as folder:
        sample = SampleRecord(id="0/0", problem_number=0, sample=0, seed=1, fault="refused")
        folder.add(results["fault"].record.model_copy(update={"sample": sample}), None)
    assert json.loads((tmp_path / TOKENS).read_text()) == {"id": "0/0"}
    (record,) = read_jsonl(tmp_path / TRAJECTORIES)
    assert record.sample == sample
