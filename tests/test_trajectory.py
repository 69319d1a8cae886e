"""The record of an attempt, made by real episodes, and its JSONL files."""

import fcntl
import json
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from retool_env.config import EpisodeConfig
from retool_env.driver import TurnWork
from retool_env.env import ReToolEnv
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError, TrajectoryError
from retool_env.problems import Problem
from retool_env.protocol import EndReason, Feedback, RunCode
from retool_env.recorder import Recorder
from retool_env.sandbox import ExecutionResult, ExecutionStatus
from retool_env.tools import Tool, ToolResult
from retool_env.trajectory import ExecutionRecord, ToolRecord, Trajectory, read_jsonl, write_jsonl

PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42", source="own", metadata={"level": 1})
CODE = "<code>\nprint(6 * 7)\n</code>"
ANSWER = "<answer>\\boxed{42}</answer>"
ODD_TEXT = st.text(alphabet=st.characters(), max_size=15) | st.sampled_from(
    ["\ud83d\ude00", "\ud800", "\u2028", "\x85", "\x00", "\n", "\r\n", "\ufeff", '"\\', "\U0010ffff"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**4299, 1 - 10**4300]) | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=6,
)


def record(
    *turns: str, problem: Problem = PROBLEM, output: str = "42\n", tier: str | None = "landlock", **options: Any
) -> Trajectory:
    """An attempt whose executions gave ``output``, and whose end is an abort if it did not come by itself."""
    episode = Episode(problem, EpisodeConfig(**options))
    recorder = Recorder(episode)
    for text in turns:
        done = TurnWork()
        action = episode.read(text)
        if isinstance(action, RunCode):
            done.results = [
                ExecutionResult(ExecutionStatus.OK, stdout=output, wall_s=0.25, exit_code=0)
                if call.name == "code_interpreter"
                else ToolResult(output)
                for call in action.calls
            ]
            done.observation = episode.observe(done.results)
        elif isinstance(action, Feedback):
            done.observation = episode.observe()
        elif not episode.over:
            episode.finish(None)
        recorder.add_turn(text, "stop", None, action, done, 0.5)
        if episode.over:
            break
    if not episode.over:
        episode.fail(EndReason.ABORTED)
    return recorder.trajectory(tier)


def test_an_attempt_is_recorded_completely() -> None:
    with ReToolEnv([PROBLEM], sandbox={"preload": ()}) as env:
        prompt, _ = env.reset()
        observation = env.step(CODE + " and more")[0]
        middle = env.trajectory()
        env.step("<code></code>")
        env.step(ANSWER.removesuffix("</answer>"), stop_reason="</answer>")
        trajectory = env.trajectory()
    assert middle.outcome is None
    assert middle.ended is None
    assert middle.turns == trajectory.turns[:1]
    assert trajectory.problem == PROBLEM
    assert trajectory.prompt == prompt
    assert trajectory.opening == ({"role": "user", "content": prompt},)
    assert trajectory.sandbox_tier in ("nsjail", "landlock")
    assert (trajectory.rules.protocol, trajectory.rules.reward, trajectory.rules.timeout_s) == (
        "code_tags",
        "tool_aware",
        5.0,
    )
    first, second, third = trajectory.turns
    assert (first.text, first.kept, first.action) == (CODE + " and more", CODE, "run_code")
    assert first.calls[0].arguments == {"code": "print(6 * 7)"}
    result = first.results[0]
    assert isinstance(result, ExecutionRecord)
    assert (result.status, result.stdout) == (ExecutionStatus.OK, "42\n")
    assert 0 < result.wall_s <= first.elapsed_s
    assert first.observation == observation
    assert (second.action, second.message, second.calls) == ("feedback", "empty code", ())
    assert (third.action, third.stop_reason, third.kept) == ("answer", "</answer>", ANSWER)
    assert third.grade is not None
    assert third.grade.correct
    outcome = trajectory.outcome
    assert outcome is not None
    assert (outcome.reward, outcome.correct, outcome.answer, outcome.turns) == (1.05, True, "42", 3)
    assert trajectory.ended is EndReason.ANSWERED
    assert trajectory.text == prompt + CODE + observation + second.kept + second.observation + ANSWER


def test_tools_and_custom_rewards_are_recorded_by_name() -> None:
    def generous(facts: object) -> float:
        return 2.0

    tool = Tool("look_up", "Looks up.", {"type": "object"}, lambda: "found")
    text = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    trajectory = record(text, "\\boxed{1}", output="found", protocol="tool_calls", tools=(tool,), reward=generous)
    assert trajectory.rules.tools == ("look_up",)
    assert trajectory.rules.reward.endswith("generous")
    assert trajectory.turns[0].results == (ToolRecord(text="found", is_error=False),)
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_it_is_frozen_and_knows_its_version() -> None:
    trajectory = record(ANSWER)
    assert trajectory.format_version == 4
    assert trajectory.package_version
    with pytest.raises(ValidationError):
        trajectory.prompt = "other"  # type: ignore[misc]


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(ODD_TEXT.map(lambda text: f"{text}<code>print({text!r})</code>") | ODD_TEXT, max_size=4),
    output=ODD_TEXT,
    question=ODD_TEXT.filter(str.strip),
    metadata=st.dictionaries(ODD_TEXT, JSON, max_size=3),
)
def test_one_line_out_and_back(turns: list[str], output: str, question: str, metadata: dict[str, Any]) -> None:
    # Only construction without validation can put such a text into a problem.
    problem = Problem.model_construct(id="p", question=question, answer="42", source="", metadata=metadata)
    trajectory = record(*turns, problem=problem, output=output, on_no_action="feedback")
    line = trajectory.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line.encode("utf-8")) == trajectory


def test_what_json_cannot_hold_is_recorded_as_text() -> None:
    metadata = {"path": Path("a/b"), "nan": math.nan, "pair": (1, 2), 3: "key"}
    trajectory = record(ANSWER, problem=PROBLEM.model_copy(update={"metadata": metadata}))
    assert trajectory.problem.metadata == {"path": "a/b", "nan": "nan", "pair": [1, 2], "3": "key"}


class Mute:
    def __str__(self) -> str:
        raise RuntimeError


def test_what_has_no_text_is_recorded_by_its_type_and_a_huge_integer_in_hexadecimal() -> None:
    huge = 10**4300
    metadata = {"mute": Mute(), "huge": [huge, -huge, huge - 1], Mute(): 1, huge: 2}
    trajectory = record(ANSWER, problem=PROBLEM.model_copy(update={"metadata": metadata}))
    assert trajectory.problem.metadata == {
        "mute": "<Mute>",
        "huge": [hex(huge), hex(-huge), huge - 1],
        "<Mute>": 1,
        hex(huge): 2,
    }
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


@pytest.mark.parametrize(
    "number", ["1" * 4300, "-" + "1" * 4300, "1" * 4301, "NaN", "-Infinity", "1e999", "1e308", "1e-999"]
)
def test_whatever_number_a_policy_writes_the_record_can_be_read(number: str) -> None:
    tool = Tool("f", "", {"type": "object"}, lambda **arguments: "done")
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": {number}}}}}</tool_call>'
    trajectory = record(text, "\\boxed{1}", protocol="tool_calls", tools=(tool,))
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_files_are_appended_to_and_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    first, second, third = record(ANSWER), record("\u2028 \x85", CODE), record("nothing")
    write_jsonl(path, first)
    write_jsonl(path, [second, third])
    write_jsonl(path, [])
    assert list(read_jsonl(path)) == [first, second, third]
    assert path.read_bytes().count(b"\n") == 3


def test_after_a_writer_was_killed_only_its_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    write_jsonl(path, record(ANSWER))
    with path.open("ab") as stream:
        stream.write(record(CODE).to_json().encode()[:-20])
    write_jsonl(path, record("nothing"))
    attempts = read_jsonl(path)
    assert next(attempts) == record(ANSWER)
    with pytest.raises(TrajectoryError, match="line 2"):
        next(attempts)
    assert Trajectory.from_json(path.read_text().splitlines()[2]) == record("nothing")


def test_damaged_lines_can_be_skipped_each_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    lines = [record(ANSWER).to_json(), "{", damaged(format_version=99), "", record("nothing").to_json(), "\xff"]
    path.write_text("\n".join(lines), encoding="latin-1")
    with pytest.warns(UserWarning, match="skipped") as caught:
        attempts = list(read_jsonl(path, on_damaged="skip"))
    assert attempts == [record(ANSWER), record("nothing")]
    said = [str(warning.message) for warning in caught]
    assert [f"{path}, line {number}" in text for number, text in zip((2, 3, 6), said, strict=True)] == [True] * 3
    with pytest.raises(ConfigurationError, match=r"on_damaged.*'raise' or 'skip', got 'ignore'"):
        read_jsonl(path, on_damaged="ignore")  # type: ignore[arg-type]


def test_lines_that_do_not_fit_leave_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    write_jsonl(path, record(ANSWER))
    cut = record(CODE).to_json().encode()[:40]  # the end of a writer that was killed
    with path.open("ab") as stream:
        stream.write(cut)
    before = path.read_bytes()
    # Stands for a full disk: files can't grow beyond this size, which lies within the second line.
    room = len(before) + len(record(ANSWER).to_json()) + 100
    code = (
        "import resource, sys\nfrom retool_env import read_jsonl, write_jsonl\n"
        "from retool_env.trajectory import Trajectory\n"
        "trajectory = Trajectory.from_json(open(sys.argv[1]).readline())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try:\n    write_jsonl(sys.argv[1], [trajectory, trajectory])\nexcept OSError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", code, str(path), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout, done.stderr
    assert path.read_bytes() == before


def test_a_writer_waits_for_another_ones_line_to_be_whole(tmp_path: Path) -> None:
    locks = Path("/proc/locks")
    if not locks.exists():
        pytest.skip("/proc/locks is missing: cannot tell when a writer waits")
    path = tmp_path / "attempts.jsonl"
    first, second = record(ANSWER), record("nothing")
    line = first.to_json().encode() + b"\n"
    with path.open("ab", buffering=0) as stream, ThreadPoolExecutor(1) as threads:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(line[:100])
        waiting = f":{path.stat().st_ino} "
        writer = threads.submit(write_jsonl, path, second)
        while not writer.done() and not any("->" in lock and waiting in lock for lock in locks.open()):
            pass
        stream.write(line[100:])
        fcntl.flock(stream, fcntl.LOCK_UN)
        writer.result()
    assert list(read_jsonl(path)) == [first, second]


def damaged(**changes: Any) -> str:
    return json.dumps({**json.loads(record(ANSWER).to_json()), **changes})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "damaged"),
        ("[]", "not a trajectory"),
        ("{}", "not a trajectory"),
        ("[" * 100_000, "damaged"),
        (damaged(format_version=5), "unknown format_version 5; this release reads 1, 2, 3 and 4"),
        (damaged(format_version=True), "unknown format_version True"),
        (damaged(format_version=[1]), "unknown format_version"),
        (damaged(format_version="x" * 1000), "unknown format_version"),
        (damaged(prompt=3), "prompt"),
        (damaged(extra=3), "extra"),
        (damaged(turns=[{}]), "turns.0"),
        (damaged(outcome={"reward": 1}), "outcome"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "attempts.jsonl"
    write_jsonl(path, record(ANSWER))
    with path.open("a") as stream:
        stream.write(f"\n{line}\n")
    with pytest.raises(TrajectoryError, match=complaint) as caught:
        list(read_jsonl(path))
    assert "attempts.jsonl, line 3" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_bytes_that_are_not_utf8_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    path.write_bytes(b'{"format_version": "\xff"}\n')
    with pytest.raises(TrajectoryError, match="line 1"):
        list(read_jsonl(path))


def third_version(trajectory: Trajectory) -> dict[str, Any]:
    """The record as version 3 of the format had it."""
    data = json.loads(trajectory.to_json())
    data["format_version"] = 3
    del data["sample"]
    return data


def second_version(trajectory: Trajectory) -> dict[str, Any]:
    """The record as version 2 of the format had it."""
    data = third_version(trajectory)
    data["format_version"] = 2
    for name in ("grader", "grade_limit_s", "on_grade_timeout"):
        del data["rules"][name]
    return data


def first_version(trajectory: Trajectory) -> dict[str, Any]:
    """The record as version 1 of the format had it."""
    data = second_version(trajectory)
    data["format_version"] = 1
    del data["rules"]["interpreter"]
    for turn in data["turns"]:
        for result in turn["results"]:
            if result["kind"] == "execution":
                for name in ("queue_s", "code_chars", "restarted"):
                    del result[name]
    return data


@pytest.mark.parametrize("older", [first_version, second_version, third_version])
def test_files_of_older_versions_are_read_as_what_they_meant(
    tmp_path: Path, older: Callable[[Trajectory], dict[str, Any]]
) -> None:
    path = tmp_path / "old.jsonl"
    recorded = record(CODE, ANSWER)
    path.write_text(json.dumps(older(recorded)) + "\n")
    (old,) = read_jsonl(path)
    assert old == recorded
    rules = (old.rules.interpreter, old.rules.grader, old.rules.grade_limit_s, old.rules.on_grade_timeout)
    assert (old.format_version, rules) == (4, ("fresh", "default", 4.0, "wrong"))
    write_jsonl(path, old)  # and what is written again is of the version it says
    assert list(read_jsonl(path)) == [recorded, recorded]
    versions = [json.loads(line)["format_version"] for line in path.read_text().splitlines()]
    assert versions == [older(recorded)["format_version"], 4]


def test_a_damaged_line_of_the_first_version_is_damaged() -> None:
    data = first_version(record(CODE, ANSWER))
    del data["turns"][0]["results"][0]["wall_s"]
    with pytest.raises(TrajectoryError, match="wall_s"):
        Trajectory.from_json(json.dumps(data))


def test_what_a_call_cost_and_lost_is_recorded() -> None:
    episode = Episode(PROBLEM, EpisodeConfig(interpreter="session"))
    recorder = Recorder(episode)
    action = episode.read(CODE)
    result = ExecutionResult(ExecutionStatus.TIMEOUT, wall_s=5.0, queue_s=0.25, code_chars=12)
    done = TurnWork(results=[result], restarted=[0])
    done.observation = episode.observe(done.results, restarted=done.restarted)
    recorder.add_turn(CODE, "stop", None, action, done, 5.5)
    trajectory = recorder.trajectory("landlock")
    assert trajectory.rules.interpreter == "session"
    (execution,) = trajectory.turns[0].results
    assert isinstance(execution, ExecutionRecord)
    assert (execution.queue_s, execution.code_chars, execution.restarted) == (0.25, 12, True)
    assert "everything defined before is lost" in trajectory.turns[0].observation
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_jsonl(tmp_path / "none.jsonl"))
