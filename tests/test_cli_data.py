"""``retool data``: files that trainers read. What the trainers make of them is tested in tests/verl and
tests/openrlhf."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from retool_env.cli import app
from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.problems import Problem, load_problems

from .retool_sft import QUESTION, row

runner = CliRunner()


def read(path: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


@pytest.fixture
def aime(tmp_path: Path) -> Path:
    path = tmp_path / "aime.jsonl"
    rows = [{"Problem": f"What is {n} - 1?", "Answer": f"{n - 1:03}"} for n in (1, 26, 1000)]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [row()] * 3))
    return path


class TestRl:
    def test_rows_of_verl(self, aime: Path, tmp_path: Path) -> None:
        out = tmp_path / "new" / "val.parquet"
        arguments = ["--problems", str(aime), "--preset", "aime-2024", "--split", "test", "--out", str(out)]
        result = runner.invoke(app, ["data", "rl", "--for", "verl", *arguments])
        assert result.exit_code == 0, result.output
        assert "3 problems" in result.output
        rows = read(out)
        assert [each["reward_model"]["ground_truth"] for each in rows] == ["0", "25", "999"]
        assert rows[1] == {
            "data_source": "aime-2024",
            "agent_name": "retool",
            "prompt": [{"role": "user", "content": "What is 26 - 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "25"},
            "extra_info": {
                "split": "test",
                "index": 1,
                "id": rows[1]["extra_info"]["id"],
                "question": "What is 26 - 1?",
                "need_tools_kwargs": False,
            },
        }
        # And back: what verl reads, this package reads, too.
        again = load_problems(out)
        assert [problem.answer for problem in again] == ["0", "25", "999"]

    def test_for_the_trainers_own_loop_the_prompt_is_whole(self, aime: Path, tmp_path: Path) -> None:
        out = tmp_path / "train.parquet"
        arguments = ["--problems", str(aime), "--loop", "tool_agent", "--max-turns", "5", "--out", str(out)]
        result = runner.invoke(app, ["data", "rl", "--for", "verl", *arguments])
        assert result.exit_code == 0, result.output
        rules = EpisodeConfig(protocol="tool_calls", max_turns=5)
        problem = Problem(id="p", question="What is 1 - 1?", answer="0")
        first = read(out)[0]
        assert first["agent_name"] == "tool_agent"
        assert first["prompt"] == Episode(problem, rules).messages()

    @pytest.mark.parametrize(("split", "evaluation"), [("train", False), ("test", True)])
    def test_rows_of_openrlhf(self, aime: Path, tmp_path: Path, split: str, evaluation: bool) -> None:
        out = tmp_path / "rows.parquet"
        arguments = ["--problems", str(aime), "--preset", "aime-2024", "--split", split, "--out", str(out)]
        result = runner.invoke(app, ["data", "rl", "--for", "openrlhf", *arguments])
        assert result.exit_code == 0, result.output
        rows = read(out)
        assert [each["input"] for each in rows] == ["What is 1 - 1?", "What is 26 - 1?", "What is 1000 - 1?"]
        assert {each["datasource"] for each in rows} == {"aime-2024"}
        label = json.loads(rows[1]["label"])
        assert label == {"answer": "25", "id": label["id"], "source": "aime-2024", "evaluation": evaluation}

    def test_for_openrlhfs_own_loop_the_prompt_is_whole(self, aime: Path, tmp_path: Path) -> None:
        out = tmp_path / "train.parquet"
        arguments = ["--problems", str(aime), "--loop", "agent_instance", "--max-turns", "5", "--out", str(out)]
        result = runner.invoke(app, ["data", "rl", "--for", "openrlhf", *arguments])
        assert result.exit_code == 0, result.output
        problem = Problem(id="p", question="What is 1 - 1?", answer="0")
        assert read(out)[0]["input"] == Episode(problem, EpisodeConfig(max_turns=5)).messages()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--for", "nobody"], "--for"),
            (["--loop", "mine"], "--loop"),
            (["--loop", "agent_instance"], "tool_agent"),
            (["--problems", "no/such.jsonl"], "no such file"),
            (["--answer-column", "nowhere"], "nowhere"),
        ],
    )
    def test_mistakes_are_said_and_leave_no_file(self, aime: Path, tmp_path: Path, more: list[str], said: str) -> None:
        out = tmp_path / "out" / "train.parquet"
        arguments = ["--for", "verl", "--problems", str(aime), "--out", str(out), *more]
        result = runner.invoke(app, ["data", "rl", *arguments])
        assert result.exit_code == 2
        assert said in result.output
        assert not out.exists()
        assert not list(out.parent.glob(".*"))

    def test_a_file_is_never_overwritten(self, aime: Path, tmp_path: Path) -> None:
        out = tmp_path / "train.parquet"
        out.write_text("mine")
        result = runner.invoke(app, ["data", "rl", "--for", "verl", "--problems", str(aime), "--out", str(out)])
        assert result.exit_code == 2
        assert out.read_text() == "mine"


class TestSft:
    def test_code_tags(self, sft: Path, tmp_path: Path) -> None:
        out = tmp_path / "sft.parquet"
        result = runner.invoke(app, ["data", "sft", "--for", "verl", "--source", str(sft), "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert "3 demonstrations" in result.output
        for each in read(out):
            assert set(each) == {"messages"}
            user, assistant = each["messages"]
            assert user["content"].endswith(QUESTION)
            assert assistant["content"].count("<interpreter>") == 2

    def test_tool_calls(self, sft: Path, tmp_path: Path) -> None:
        out = tmp_path / "sft.parquet"
        arguments = ["--source", str(sft), "--protocol", "tool_calls", "--timeout-s", "7", "--out", str(out)]
        result = runner.invoke(app, ["data", "sft", "--for", "verl", *arguments])
        assert result.exit_code == 0, result.output
        rules = EpisodeConfig(protocol="tool_calls", timeout_s=7.0)
        for each in read(out):
            assert each["tools"] == rules.registry().schemas()
            assert [message["role"] for message in each["messages"]][1:] == ["assistant", "tool"] * 2 + ["assistant"]

    @pytest.mark.parametrize("protocol", ["code_tags", "tool_calls"])
    def test_openrlhf(self, sft: Path, tmp_path: Path, protocol: str) -> None:
        out = tmp_path / "sft.parquet"
        arguments = ["--source", str(sft), "--protocol", protocol, "--out", str(out)]
        result = runner.invoke(app, ["data", "sft", "--for", "openrlhf", *arguments])
        assert result.exit_code == 0, result.output
        tools = EpisodeConfig(protocol="tool_calls").registry().schemas()
        for each in read(out):
            assert each["messages"][0]["content"].endswith(QUESTION)
            assert json.loads(each["tools"] or "[]") == (tools if protocol == "tool_calls" else [])

    def test_rows_that_cannot_be_used_are_named_and_left_out(self, sft: Path, tmp_path: Path) -> None:
        with sft.open("a") as stream:
            stream.write(json.dumps(row("nothing")) + "\n")
        out = tmp_path / "sft.parquet"
        result = runner.invoke(app, ["data", "sft", "--for", "verl", "--source", str(sft), "--out", str(out)])
        assert result.exit_code == 1
        assert "row 4" in result.output
        assert "rows left out: 1" in result.output
        assert len(read(out)) == 3
