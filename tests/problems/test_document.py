"""docs/problems.md keeps its promises: its examples run, and its table of names is the one in force."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from retool_env.problems import PRESETS
from retool_env.problems.columns import ANSWER_NAMES, QUESTION_NAMES

from .conftest import write_jsonl, write_parquet
from .test_hub import CARD, ONE, TWO
from .test_presets import dapo

pytestmark = pytest.mark.once  # a document says the same on every Python

DOCUMENT = (Path(__file__).parents[2] / "docs/problems.md").read_text(encoding="utf-8")


def test_the_examples_work_one_after_the_other(hub: Path) -> None:
    write_parquet(hub / "train.parquet", [{"task": "1+1?", "result": 2}])
    write_jsonl(hub / "scraped.jsonl", [ONE, {"question": "?", "answer": "\\frac{1}{"}])
    write_jsonl(hub / "aime_2024.jsonl", [{"input": "1+1?", "output": "2"}])
    write_jsonl(hub / "opencompass/AIME2025/one.jsonl", [ONE])
    write_jsonl(hub / "opencompass/AIME2025/two.jsonl", [TWO])
    (hub / "opencompass/AIME2025/README.md").write_text(CARD)
    rows = [dapo(f"{n}+{n}?", str(2 * n), str(n)) for n in range(20)]
    write_parquet(hub / "BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet", rows * 3)
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert len(examples) == 5
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for example in examples:
            exec(example, names)
    [told] = re.findall(r"print\(row\)  # (.*) \.\.\.\n", DOCUMENT)
    assert printed.getvalue().startswith(told)
    assert [len(names[name]) for name in ("dapo", "aime_2024", "aime_2025")] == [20, 1, 2]  # type: ignore[arg-type]
    names["env"].close()  # type: ignore[attr-defined]


def test_the_names_of_columns_and_presets_are_all_there() -> None:
    for kind, groups in (("question", QUESTION_NAMES), ("answer", ANSWER_NAMES)):
        [cell] = re.findall(rf"^\| {kind} \| (.*) \|$", DOCUMENT, flags=re.MULTILINE)
        told = [tuple(re.findall(r"`([^`]+)`", group)) for group in cell.split(";")]
        assert told == [tuple(name for name in group if name != "groundtruth") for group in groups]
    for name, preset in PRESETS.items():
        assert f"| `{name}` | `{preset.repository}` ({preset.split}) |" in DOCUMENT
