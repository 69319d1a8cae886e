"""``retool grade``, run as a user runs it: real files, the real grader."""

import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from retool_env.cli import app
from retool_env.trajectory import Trajectory, read_jsonl, write_jsonl

runner = CliRunner()
COMMAND = [sys.executable, "-m", "retool_env.cli_start", "grade"]
VERL = [
    {"input": "6*7?", "output": "It is \\boxed{42}.", "gts": "42", "score": 1.0, "step": 3},
    {"input": "6*7?", "output": "It is \\boxed{42 or 43}.", "gts": "42", "score": 1.0, "step": 3},
    {
        "input": "?",
        "output": "It is \\boxed{\\frac{1}{\\sqrt2}}.",
        "gts": "\\frac{\\sqrt2}{2}",
        "score": -1.0,
        "step": 3,
    },
    {"input": "?", "output": "I do not know.", "gts": "5", "score": -1.0, "step": 3},
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(*rows: object, name: str = "rows.jsonl") -> Path:
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        content = b"".join(line + b"\n" for line in lines)
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return make


def grade(*arguments: object, input: bytes | None = None) -> Result:
    return runner.invoke(app, ["grade", *map(str, arguments)], input=input, env={"COLUMNS": "200"})


def summary(result: Result) -> dict[str, str]:
    """The rows of the summary, by name."""
    return dict(re.findall(r"│ ([a-z ]+?) +│ ([^│]+?) +│$", result.stdout, flags=re.MULTILINE))


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs a few attempts in a protocol, once, and returns the file of their trajectories."""

    @cache
    def run(protocol: str) -> Path:
        path = tmp_path_factory.mktemp("attempts") / "trajectories.jsonl"
        done = runner.invoke(app, ["demo", "-n", "12", "--seed", "1", "--protocol", protocol, "--out", str(path)])
        assert done.exit_code == 0, done.output
        return path

    return run


class TestRows:
    def test_the_rollouts_that_verl_dumps_are_graded_as_they_are(self, write: Callable[..., Path]) -> None:
        result = grade(write(*VERL))
        assert result.exit_code == 0, result.output
        counts = summary(result)
        assert counts["rows"] == "4"
        assert counts["graded"] == "4 (preset default)"
        assert counts["correct"] == "2"
        assert counts["accuracy"] == "50.0 % (of the graded)"
        assert counts["no answer"] == "1 (graded as wrong)"
        assert counts["timed out"] == "0 (no verdict)"
        assert counts["could not be read"] == "0"
        assert set(re.findall(r"│ (\w+) +│ +\d+ │ +\d+ │ +[\d.]+ │", result.stdout)) == {"none", "numeric", "symbolic"}

    @pytest.mark.parametrize("text", ["response", "Completion", "prediction", "generation", "text", "output"])
    @pytest.mark.parametrize("gold", ["answer", "Gold", "ground_truth", "gts", "label", "target", "solution"])
    def test_the_usual_column_names_are_found(self, text: str, gold: str, write: Callable[..., Path]) -> None:
        result = grade(write({"prompt": "\\boxed{0}", text: "\\boxed{1}", gold: 1, "score": 0}))
        assert summary(result)["correct"] == "1", result.output

    def test_columns_can_be_named_and_lie_in_an_object(self, write: Callable[..., Path]) -> None:
        row = {"said": {"last": "\\boxed{7}"}, "text": "\\boxed{8}", "gold": 8, "reward_model": {"ground_truth": "7"}}
        file = write(row)
        result = grade(file, "--text-column", "said.last", "--gold-column", "reward_model.ground_truth")
        assert summary(result)["correct"] == "1", result.output
        assert summary(grade(file, "--text-column", "said.last"))["correct"] == "0"

    def test_a_chat_is_graded_by_what_the_assistant_said_last(self, write: Callable[..., Path]) -> None:
        chat = [
            {"role": "assistant", "content": "\\boxed{1}"},
            {"role": "tool", "content": "\\boxed{2}"},
            {"role": "assistant", "content": "\\boxed{3}"},
            {"role": "user", "content": "\\boxed{4}"},
        ]
        assert summary(grade(write({"completion": chat, "gold": 3})))["correct"] == "1"

    @pytest.mark.parametrize(
        ("gold", "answer"), [(b"0.1", "1/10"), (b"0.12345678901234567890123", "0.12345678901234567890123")]
    )
    def test_a_number_as_gold_is_not_rounded(self, gold: bytes, answer: str, write: Callable[..., Path]) -> None:
        file = write(b'{"text": "\\\\boxed{' + answer.encode() + b'}", "gold": ' + gold + b"}")
        assert summary(grade(file))["correct"] == "1"

    def test_what_a_tool_printed_is_no_answer(self, write: Callable[..., Path]) -> None:
        text = "<code>print('\\\\boxed{42}')</code><interpreter>\\boxed{42}</interpreter>Done."
        assert summary(grade(write({"text": text, "gold": "42"})))["no answer"] == "1 (graded as wrong)"

    def test_a_preset_is_used_and_named(self, write: Callable[..., Path]) -> None:
        file = write({"text": "It is \\boxed{042}", "gold": "42"}, {"text": "Answer: 42", "gold": "42"})
        found = {preset: summary(grade(file, "--preset", preset)) for preset in ("strict", "default", "lenient")}
        assert {preset: counts["correct"] for preset, counts in found.items()} == {
            "strict": "0",
            "default": "1",
            "lenient": "2",
        }
        assert all(f"preset {preset}" in counts["graded"] for preset, counts in found.items())

    def test_a_file_can_be_compressed_or_standard_input(self, write: Callable[..., Path]) -> None:
        assert summary(grade(write(*VERL, name="rows.jsonl.gz")))["correct"] == "2"
        assert summary(grade("-", input=write(*VERL).read_bytes()))["correct"] == "2"

    def test_more_workers_change_nothing_but_the_time(self, write: Callable[..., Path], tmp_path: Path) -> None:
        rows = [{"text": f"\\boxed{{{n}\\sqrt{{2}}}}", "gold": f"\\sqrt{{{2 * n * n + n % 2}}}"} for n in range(1, 150)]
        rows.insert(70, {"text": "\\boxed{(1+x)^{5000000}}", "gold": "x"})
        file, found = write(*rows), []
        for workers in (1, 3):
            out = tmp_path / f"{workers}.jsonl"
            result = grade(file, "--workers", workers, "--limit-s", 2, "--out", out)
            assert result.exit_code == 0, result.output
            assert summary(result)["timed out"] == "1 (no verdict)"
            found.append([{**row, "elapsed_s": None} for row in results(out)])
        assert found[0] == found[1]
        assert [row["row"] for row in found[0]] == list(range(1, 151))
        assert sum(row["correct"] for row in found[0]) == 74

    def test_memory_does_not_grow_with_the_file(self, tmp_path: Path) -> None:
        def peak_kb(name: str, count: int) -> int:
            path = tmp_path / name
            with path.open("w") as stream:
                for n in range(count):
                    stream.write(json.dumps({"text": "x" * 20_000 + f"\\boxed{{{n}}}", "gold": n % 10}) + "\n")
            code = (
                "import resource, runpy, sys\n"
                "try: runpy.run_module('retool_env.cli', run_name='__main__')\n"
                "finally: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
            )
            done = subprocess.run([sys.executable, "-c", code, "grade", str(path)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return int(done.stdout.split("peak ")[1])

        assert peak_kb("large.jsonl", 4000) < peak_kb("small.jsonl", 40) + 20_000  # the file has 80,000


class TestTrajectories:
    @pytest.mark.parametrize("protocol", ["code_tags", "tool_calls", "markdown"])
    def test_recorded_attempts_get_the_verdicts_they_got(self, protocol: str, attempts: Callable[[str], Path]) -> None:
        result = grade(attempts(protocol), "--compare", "outcome.correct")
        assert result.exit_code == 0, result.output
        assert summary(result)["rows"] == "12"
        assert "agreement with the old score: 12 of 12" in result.stdout
        assert 0 < int(summary(result)["correct"]) < 12

    def test_faults_and_unfinished_attempts_are_left_out(self, attempts: Callable[[str], Path], tmp_path: Path) -> None:
        whole = next(read_jsonl(attempts("code_tags")))
        assert whole.outcome is not None
        data = json.loads(whole.to_json())
        changed = [
            data,
            {**data, "outcome": None},
            *(
                {**data, "outcome": {**data["outcome"], "ended": end}}
                for end in ("sandbox_unavailable", "grade_timeout")
            ),
        ]
        path = tmp_path / "changed.jsonl"
        write_jsonl(path, [Trajectory.from_json(json.dumps(row)) for row in changed])
        out = tmp_path / "out.jsonl"
        result = grade(path, "--out", out)
        assert result.exit_code == 0, result.output
        assert summary(result)["left out"].startswith("2 ")
        assert summary(result)["graded"].startswith("2 ")
        assert [row["error"] for row in results(out)] == [
            None,
            "the attempt goes on",
            "the attempt ended by a fault (sandbox_unavailable)",
            None,
        ]

    def test_a_turn_that_was_cut_is_no_answer(self, attempts: Callable[[str], Path], tmp_path: Path) -> None:
        whole = next(
            attempt for attempt in read_jsonl(attempts("code_tags")) if attempt.outcome and attempt.outcome.correct
        )
        data = json.loads(whole.to_json())
        data["turns"][-1]["finish"] = "length"
        path = tmp_path / "cut.jsonl"
        path.write_text(json.dumps(data) + "\n")
        assert summary(grade(path))["no answer"] == "1 (graded as wrong)"


class TestBadRows:
    def test_they_are_reported_by_line_and_do_not_stop_the_run(
        self, write: Callable[..., Path], tmp_path: Path
    ) -> None:
        good = {"text": "\\boxed{1}", "gold": "1"}
        file = write(
            good,
            b"",
            b'{"text": ',
            b"[1]",
            {"text": "\\boxed{1}"},
            {"text": None, "gold": 1},
            {"text": "\\boxed{1}", "gold": None},
            {"text": "\\boxed{1}", "gold": "\\frac{1}{"},
            {"text": "\\boxed{1}", "gold": ""},
            b'{"text": "\xff", "gold": 1}',
            b"[" * 100_000,
            good,
        )
        out = tmp_path / "out.jsonl"
        result = grade(file, "--out", out)
        assert result.exit_code == 1
        counts = summary(result)
        assert (counts["rows"], counts["correct"], counts["could not be read"]) == ("11", "2", "9")
        assert re.findall(r"^row (\d+): ", result.stderr, flags=re.MULTILINE) == [*"3456789", "10", "11"]
        for said in ("not valid JSON", "got list", "column 'gold' is missing", "unbalanced braces", "byte 11"):
            assert said in result.stderr
        rows = results(out)
        assert [row["row"] for row in rows] == [1, *range(3, 13)]
        assert [row["correct"] for row in rows] == [True, *[None] * 9, True]
        assert all((row["error"] is None) == (row["correct"] is not None) for row in rows)

    def test_only_the_first_are_told(self, write: Callable[..., Path]) -> None:
        result = grade(write({"text": "\\boxed{1}", "gold": "1"}, *[b"{"] * 50))
        assert result.exit_code == 1
        assert result.stderr.count("not valid JSON") == 10
        assert summary(result)["could not be read"] == "50"

    def test_damaged_gzip_data_ends_the_reading_and_is_said(self, write: Callable[..., Path]) -> None:
        file = write(*({"text": f"\\boxed{{{n * 7919 % 10007}}}", "gold": n} for n in range(20_000)), name="r.jsonl.gz")
        file.write_bytes(file.read_bytes()[:-1000])
        result = grade(file)
        assert result.exit_code == 1
        assert "damaged gzip data" in result.stderr
        assert int(summary(result)["rows"]) > 1000

    def test_control_characters_do_not_reach_the_terminal(self, write: Callable[..., Path]) -> None:
        row = {"text": "\\boxed{\x1b[31m5}", "gold": "4", "score": 1}
        bad = {"text": 1, "gold": "\x1b[31m", "[bold]": "\x1b]0;x\x07"}
        result = grade(write(row, bad, {"gold": "4", "\x1b[31m": 0}), "--compare", "score")
        assert result.exit_code == 1
        assert "\x1b[31m" not in result.output
        assert "\x07" not in result.output


class TestOut:
    def test_a_row_for_each_row_with_what_the_grader_said(self, write: Callable[..., Path], tmp_path: Path) -> None:
        out = tmp_path / "new" / "out.jsonl"
        result = grade(write(*VERL), "--out", out)
        assert str(out) in result.stdout
        rows = results(out)
        keys = ["row", "correct", "answer", "method", "reason", "timed_out", "elapsed_s", "error"]
        assert all(list(row) == keys for row in rows)
        assert [(row["row"], row["correct"], row["answer"]) for row in rows] == [
            (1, True, "42"),
            (2, False, "42 or 43"),
            (3, True, "\\frac{1}{\\sqrt2}"),
            (4, False, None),
        ]
        assert [row["method"] for row in rows] == ["numeric", "numeric", "symbolic", "none"]
        assert all(row["elapsed_s"] > 0 and row["timed_out"] is False for row in rows)

    def test_text_that_no_file_can_hold_is_written_all_the_same(
        self, write: Callable[..., Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "out.jsonl"
        result = grade(write(b'{"text": "\\\\boxed{\\ud800x}", "gold": "x"}'), "--out", out)
        assert result.exit_code == 0, result.output
        assert results(out)[0]["answer"] == "\ufffdx"

    def test_never_overwrites_a_file(self, write: Callable[..., Path]) -> None:
        file = write(*VERL)
        before = file.read_bytes()
        result = grade(file, "--out", file)
        assert result.exit_code == 2
        assert "exists" in result.output
        assert file.read_bytes() == before

    def test_nothing_is_left_where_nothing_was_graded(self, write: Callable[..., Path], tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        assert grade(write({"question": "?"}), "--out", out).exit_code == 2
        assert not out.exists()

    def test_a_disk_that_fills_up_ends_the_run_and_costs_nothing_that_is_written(
        self, write: Callable[..., Path], tmp_path: Path
    ) -> None:
        file, out = write(*VERL * 50), tmp_path / "out.jsonl"
        done = subprocess.run(
            [*COMMAND, str(file), "--out", str(out)],
            # Stands for a full disk: files can't grow beyond this size.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1, done.stderr
        assert "File too large" in done.stderr
        assert str(out) in done.stderr.replace("\n", "")
        assert "Traceback" not in done.stderr
        lines = out.read_text().splitlines()
        assert len(lines) > 10
        assert [json.loads(line)["row"] for line in lines[:10]] == list(range(1, 11))


class TestCompare:
    def test_shows_where_an_old_score_and_the_grade_differ(self, write: Callable[..., Path]) -> None:
        unscored = {**VERL[0], "score": None}
        hangs = {**VERL[0], "output": "\\boxed{(1+x)^{5000000}}", "gts": "x", "score": 0}
        result = grade(write(*VERL, unscored, hangs), "--compare", "score", "--limit-s", 1)
        assert result.exit_code == 0, result.output
        assert "agreement with the old score: 2 of 5" in result.stdout
        assert re.search(r"│ correct +│ +1 │ +1 │ +0 │", result.stdout)
        assert re.search(r"│ wrong +│ +1 │ +1 │ +1 │", result.stdout)
        assert "none (1 rows)" in result.stdout
        assert re.search(r"│ 2 +│ correct +│ wrong +│ 42 +│ 42 or 43 +│ list", result.stdout)
        assert re.search(r"│ 3 +│ wrong +│ correct +│", result.stdout)
        assert re.search(r"│ 6 +│ wrong +│ timed out +│", result.stdout)

    @pytest.mark.parametrize(
        ("score", "correct"),
        [(True, True), (False, False), (1, True), (-1, False), (0, False), (1.2, True), (0.1, False), (0.5, True)],
    )
    def test_what_an_old_score_says(self, score: float, correct: bool, write: Callable[..., Path]) -> None:
        file = write({"text": "\\boxed{1}", "gold": "1", "reward": score})
        agree = "1 of 1" if correct else "0 of 1"
        assert f"agreement with the old score: {agree}" in grade(file, "--compare", "reward").stdout

    @pytest.mark.parametrize("score", [b"NaN", b"null", b'"yes"', b"[1]"])
    def test_what_is_no_score_is_counted_apart(self, score: bytes, write: Callable[..., Path]) -> None:
        file = write(b'{"text": "\\\\boxed{1}", "gold": "1", "score": ' + score + b"}")
        result = grade(file, "--compare", "score")
        assert "0 of 0" in result.stdout
        assert "none (1 rows)" in result.stdout

    def test_a_column_that_is_not_there_is_said_at_once(self, write: Callable[..., Path]) -> None:
        result = grade(write(*VERL), "--compare", "scores")
        assert result.exit_code == 2
        assert "'scores'" in result.output
        assert "'score'" in result.output


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_exit_code_2(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    result = grade(path)
    assert result.exit_code == 2
    assert "the file holds no row" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_file.jsonl"], "no_such_file.jsonl: No such file"),
        (["."], "Is a directory"),
        (["{file}", "--preset", "kind"], "strict, default, lenient"),
        (["{file}", "--limit-s", "0"], "0.1"),
        (["{file}", "--workers", "0"], "1"),
        (["{file}", "--out", "/proc/out.jsonl"], "/proc/out.jsonl"),
        (["{file}", "--text-column", "no.such"], "'no.such' (columns: 'input', 'output'"),
        (["{file}", "--gold-column", "gold"], "'gold' (columns: 'input', 'output'"),
    ],
)
def test_wrong_use_says_what_would_be_right(arguments: list[str], said: str, write: Callable[..., Path]) -> None:
    file = str(write(*VERL))
    result = grade(*(argument.format(file=file) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "1", "question": "?"}, "--gold-column ..."),
        ({"gold": "1", "input": "?"}, "--text-column ..."),
        ({"text": "1", "response": "1", "gold": "1"}, "--text-column text"),
        ({"text": "1", "answer": "1", "label": "1"}, "--gold-column answer"),
    ],
)
def test_unknown_and_ambiguous_columns_are_exit_code_2_and_name_the_option(
    row: dict[str, str], said: str, write: Callable[..., Path]
) -> None:
    result = grade(write(row))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("workers", [1, 2])
def test_control_c_leaves_cleanly_and_keeps_what_was_graded(
    workers: int, write: Callable[..., Path], tmp_path: Path
) -> None:
    hangs = {"output": "\\boxed{(1+x)^{5000000}}", "gts": "x"}
    file, out = write(*VERL, b"{", *[hangs] * 200), tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [*COMMAND, str(file), "--limit-s", "2", "--workers", str(workers), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("row 5: ")  # it is past the first rows, and hangs
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in output + errors
    assert "interrupted" in errors
    assert f"what was finished before is in {out}" in errors.replace("\n", "")
    assert "could not be read" in output  # the summary of what there is
    assert [row["correct"] for row in results(out)[:4]] == [True, False, True, False]
    with pytest.raises(ProcessLookupError):  # nothing of its process group is left
        os.killpg(process.pid, 0)
