"""Parquet files: the same rules as for JSONL, and no more than a batch of rows in memory."""

import datetime
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError, MissingDependencyError, ProblemError
from retool_env.problems import BadRow, Problem, load_problems
from retool_env.problems.files import BATCH_ROWS

from .conftest import write_jsonl, write_parquet


def test_a_parquet_file_gives_what_the_same_rows_give_as_jsonl(tmp_path: Path) -> None:
    rows = [
        {"Question": "1+1?", "Answer": "2", "level": 1, "tags": ["a", "b"]},
        {"Question": "½ of \U0001f600?", "Answer": "\\frac{1}{2}", "level": None, "tags": []},
    ]
    problems = load_problems(write_parquet(tmp_path / "set.parquet", rows))
    assert problems == load_problems(write_jsonl(tmp_path / "set.jsonl", rows))
    assert problems[0] == Problem(
        id="set-1", question="1+1?", answer="2", source="set", metadata={"level": 1, "tags": ["a", "b"]}
    )


@pytest.mark.parametrize(
    ("value", "gold"),
    [(204, "204"), (0.1, "0.1"), (2.5e20, "250000000000000000000"), (Decimal("1.50"), "1.50"), (204.0, "204.0")],
)
def test_numbers_become_exact_text(tmp_path: Path, value: object, gold: str) -> None:
    file = write_parquet(tmp_path / "set.parquet", [{"question": "?", "answer": value}])
    assert load_problems(file)[0].answer == gold


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a gold answer must be text or a number, got None"),
        (float("nan"), "the number nan is out of range"),
        (True, "a gold answer must be text or a number, got True"),
        ("\\frac{1}{", "the gold answer .* cannot be parsed"),
    ],
)
def test_a_bad_gold_is_named_with_its_row_and_column(tmp_path: Path, value: object, message: str) -> None:
    good = {None: "2", float: 2.0, bool: True, str: "2"}[type(value) if value is not None else None]
    file = write_parquet(tmp_path / "set.parquet", [{"question": "?", "answer": v} for v in (good, value)])
    row = 1 if value is True else 2
    with pytest.raises(ProblemError, match=rf"set\.parquet, row {row}, column 'answer': {message}"):
        load_problems(file)


def test_rows_are_numbered_on_through_the_batches(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": n} for n in range(2 * BATCH_ROWS + 5)]
    problems = load_problems(write_parquet(tmp_path / "set.parquet", rows))
    assert [problem.id for problem in problems] == [f"set-{n + 1}" for n in range(2 * BATCH_ROWS + 5)]


def test_metadata_is_something_that_json_can_hold(tmp_path: Path) -> None:
    row = {"question": "?", "answer": "1", "when": datetime.datetime(2025, 2, 6), "price": Decimal("1.5"), "raw": b"x"}
    [problem] = load_problems(write_parquet(tmp_path / "set.parquet", [row]))
    assert problem.metadata == {"when": "2025-02-06 00:00:00", "price": "1.5", "raw": "b'x'"}
    assert Problem.model_validate_json(problem.model_dump_json()) == problem


def test_what_is_no_parquet_file_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the datasets extra")
    file = tmp_path / "set.parquet"
    with pytest.raises(ConfigurationError, match="no such file"):
        load_problems(file)
    file.write_text("nonsense")
    with pytest.raises(ProblemError, match=r"set\.parquet: cannot be read as parquet"):
        load_problems(file)
    write_parquet(file, [{"question": "?", "answer": "1"}])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ProblemError, match=r"set\.parquet: cannot be read as parquet"):
        load_problems(file)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "set.parquet"
    file.write_text("anything")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "retool-env\[datasets\]" .*-e "\.\[datasets\]"'):
        load_problems(file)


def test_a_value_that_python_cannot_hold_makes_its_row_a_bad_one(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the datasets extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    ends, text = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xffB")
    remarks = pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, ends, text])  # the first is not UTF-8
    file = tmp_path / "set.parquet"
    parquet.write_table(pyarrow.table({"question": ["1?", "2?"], "answer": ["1", "2"], "remark": remarks}), file)
    with pytest.raises(ProblemError, match=r"set.parquet, row 1: a value cannot be read: UnicodeDecodeError"):
        load_problems(file)
    bad: list[BadRow] = []
    assert [problem.metadata for problem in load_problems(file, on_bad=bad.append)] == [{"remark": "B"}]
    assert [row.number for row in bad] == [1]


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the datasets extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "set.parquet"
    parquet.write_table(pyarrow.table([["?"], ["1"], ["2"]], names=["question", "answer", "answer"]), file)
    with pytest.raises(ProblemError, match="more than one column is called 'answer'"):
        load_problems(file)


def test_a_number_of_single_precision_is_what_was_written(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the datasets extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "set.parquet"
    numbers = pyarrow.array([0.1, 16777216.0, 1e-7], pyarrow.float32())
    parquet.write_table(pyarrow.table({"question": ["1?", "2?", "3?"], "answer": numbers}), file)
    assert [problem.answer for problem in load_problems(file)] == ["0.1", "16777216.0", "0.0000001"]
