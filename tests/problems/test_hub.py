"""Data sets through ``datasets.load_dataset``: on folders of the hub's form, which the library reads the same way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError, MissingDependencyError
from retool_env.problems import Problem, load_problems

from .conftest import write_jsonl, write_parquet

ONE, TWO = {"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}


def test_an_id_of_the_hub_is_read(hub: Path) -> None:
    write_parquet(hub / "owner/name/data/train-00000-of-00001.parquet", [ONE | {"level": 3}])
    problem = Problem(id="owner/name-1", question="1+1?", answer="2", source="owner/name", metadata={"level": 3})
    assert load_problems("hf:owner/name") == [problem]
    assert load_problems("hf:owner/name", split="train", limit=1) == [problem]
    # Where a folder of the name exists it is a folder: only the name of the source is another.
    assert load_problems("owner/name")[0].source == "name"


def test_several_splits_need_a_choice(hub: Path) -> None:
    write_jsonl(hub / "owner/name/train.jsonl", [ONE])
    write_jsonl(hub / "owner/name/test.jsonl", [TWO])
    with pytest.raises(
        ConfigurationError, match=r"has several splits; choose one: split= '(train|test)', '(train|test)'"
    ):
        load_problems("hf:owner/name")
    assert load_problems("hf:owner/name", split="test")[0].answer == "4"
    assert load_problems("hf:owner/name?split=train")[0].answer == "2"
    with pytest.raises(ConfigurationError, match=r"owner/name cannot be loaded: .*valid"):
        load_problems("hf:owner/name", split="valid")


CARD = """---
configs:
- {config_name: AIME2025-I, data_files: [{split: test, path: one.jsonl}]}
- {config_name: AIME2025-II, data_files: [{split: test, path: two.jsonl}]}
---
"""


def test_configurations_are_chosen_or_read_one_after_the_other(hub: Path) -> None:
    write_jsonl(hub / "owner/name/one.jsonl", [ONE])
    write_jsonl(hub / "owner/name/two.jsonl", [TWO])
    (hub / "owner/name/README.md").write_text(CARD)
    with pytest.raises(ConfigurationError, match="AIME2025-I"):
        load_problems("hf:owner/name")
    assert [problem.answer for problem in load_problems("hf:owner/name", name="AIME2025-II")] == ["4"]
    both = load_problems("hf:owner/name?name=AIME2025-I&name=AIME2025-II&preset=aime-2025")
    assert [(problem.id, problem.answer) for problem in both] == [("aime-2025-1", "2"), ("aime-2025-2", "4")]
    assert load_problems("hf:owner/name", preset="aime-2025", name=["AIME2025-I", "AIME2025-II"]) == both


def test_a_folder_is_read_as_the_hub_is(hub: Path) -> None:
    write_jsonl(hub / "mine/train.jsonl", [ONE, TWO])
    assert load_problems(hub / "mine") == load_problems(str(hub / "mine")) == load_problems("mine")
    assert [problem.id for problem in load_problems("mine")] == ["mine-1", "mine-2"]
    (hub / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="the data set empty cannot be loaded"):
        load_problems("empty")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:owner/name?slit=test", "unknown 'slit'; there are name, split, revision and preset"),
        ("hf:owner/name?split", "after the '\\?' come name=value pairs"),
        ("hf:owner/name?preset=gsm", "preset: 'gsm' is not one of dapo-math-17k, aime-2024, aime-2025"),
        ("hf:json", "json is a format of files and no data set; give the path"),
        ("hf:imagefolder?split=train", "imagefolder is a format of files and no data set"),
        ("aime2024", "no such file: aime2024 .* none of dapo-math-17k, aime-2024, aime-2025"),
        ("data/train.parquet", "no such file: data/train.parquet"),
        ("a/b/c", "no such file: a/b/c"),
    ],
)
def test_a_name_that_means_nothing_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_problems(spec)


def test_all_formats_of_the_library_are_known() -> None:
    modules = pytest.importorskip("datasets.packaged_modules", reason="needs the datasets extra")
    for name in modules._PACKAGED_DATASETS_MODULES:
        with pytest.raises(ConfigurationError, match="format of files"):
            load_problems(f"hf:{name}")


def test_options_for_another_kind_of_source_are_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "set.jsonl", [ONE])
    with pytest.raises(ConfigurationError, match=r"split: for data sets of the hub, and .*set\.jsonl is a file"):
        load_problems(file, split="test")
    with pytest.raises(ConfigurationError, match="question, split: for the rows of a file or a data set"):
        load_problems([ONE], question="q", split="test")
    with pytest.raises(ConfigurationError, match="preset: for the rows"):
        load_problems("builtin", preset="aime-2024")


def test_what_the_library_cannot_read_is_an_error_that_says_why(hub: Path) -> None:
    (hub / "mine").mkdir()
    (hub / "mine/train.parquet").write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"the data set mine cannot be loaded: .*Parquet magic bytes"):
        load_problems("mine")


def test_what_the_hub_does_not_have_or_cannot_be_reached_is_an_error_that_names_it() -> None:
    pytest.importorskip("datasets", reason="needs the datasets extra")
    code = (
        "from retool_env.errors import ConfigurationError\nfrom retool_env.problems import load_problems\n"
        "try:\n    load_problems('nobody/no-such-set')\nexcept ConfigurationError as error:\n    print(error)"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("problems: the data set nobody/no-such-set cannot be loaded: ")


def test_without_datasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"data set 'owner/name': pip install \"retool-env\[datasets\]\""):
        load_problems("owner/name")
