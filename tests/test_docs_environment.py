"""The environment's manual is complete, and its examples run and print what it says."""

import ast
import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from retool_env.config import EpisodeConfig, EpisodeOptions
from retool_env.env import ReToolEnv
from retool_env.outcome import FAULTS
from retool_env.protocol.base import EndReason
from retool_env.reward import REWARD_TABLES

pytestmark = pytest.mark.once  # a document says the same on every Python

PAGE = Path(__file__).parents[1] / "docs" / "environment.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)\n```\n", TEXT, flags=re.DOTALL)
CODE = "\n".join(EXAMPLES)


def rows(section: str) -> dict[str, list[str]]:
    """The first table of a section: from the first cell to the others."""
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]
    return {first.strip('`"'): rest for first, *rest in cells}


def options() -> list[str]:
    named = [name for name in inspect.signature(ReToolEnv.__init__).parameters if name not in ("self", "rules")]
    return [*named, *EpisodeOptions.__annotations__]


def said(example: str) -> list[str]:
    """The lines that an example says it prints: behind each print, or as comments below."""
    return [
        behind or below
        for behind, below in re.findall(r"^ *print\(.*\)  # (.*)$|^# (.*)$", example, flags=re.MULTILINE)
    ]


def test_the_examples_run_one_after_the_other_and_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pettingzoo", reason="needs the extra `multiagent`")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, example in enumerate(EXAMPLES):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)
            lines = printed.getvalue().splitlines()
            expected = said(example)
            if "{mode}" in str(expected):
                (index,) = (i for i, line in enumerate(expected) if "{mode}" in line)
                expected[index : index + 1] = [expected[index].format(mode=mode) for mode in ("ansi", "html")]
            assert lines == expected, example
    finally:
        if "sandbox" in names:
            names["sandbox"].close()
    assert list(tmp_path.iterdir()) == []


def test_every_option_has_its_row_with_its_default() -> None:
    table = rows("Options")
    assert list(table) == options()
    defaults: dict[str, Any] = {name: field.default for name, field in EpisodeConfig.model_fields.items()}
    stated = {name: ast.literal_eval(cells[0].strip("`")) for name, cells in table.items()}
    assert stated == {name: defaults.get(name) for name in options()}


@pytest.mark.parametrize("option", options())
def test_every_option_is_in_an_example(option: str) -> None:
    assert re.search(rf"\b{option}=", CODE)


def test_the_options_are_those_of_the_configuration() -> None:
    # What a sandbox limits is not an option of its own; the page says where it goes.
    assert {*EpisodeConfig.model_fields} - {*EpisodeOptions.__annotations__} == {"timeout_s", "memory_mb"}
    assert '"timeout_s"' in CODE
    assert '"memory_mb"' in CODE


def test_every_info_key_has_its_row_with_its_type_and_an_example() -> None:
    with contextlib.closing(gymnasium.make("ReTool-v0", problems=[{"question": "6 * 7?", "answer": "42"}])) as env:
        _, info = env.reset(seed=0)
    assert {key: cells[0] for key, cells in rows("Info").items()} == {
        key: type(value).__name__ for key, value in info.items()
    }
    assert [key for key in info if f'info["{key}"]' not in CODE] == []


def test_every_end_reason_has_its_row_and_an_example() -> None:
    listed = [key for key in rows("How an episode ends") if key != 'info["ended"]']
    assert listed == [str(reason) for reason in EndReason]
    part = TEXT.split("\n## How an episode ends\n")[1].split("\n## ")[0]
    printed = " ".join(
        line for example in re.findall(r"```python\n(.*?)```", part, re.DOTALL) for line in said(example)
    )
    assert [reason for reason in EndReason if reason not in printed.split()] == []


def test_what_is_said_of_the_order_of_the_end_reasons_is_true() -> None:
    reasons = list(EndReason)
    assert [reason.truncated for reason in reasons] == [False] * 2 + [True] * (len(reasons) - 2)
    assert set(reasons[-3:]) == FAULTS


def test_every_reward_table_and_render_mode_has_its_row() -> None:
    assert list(rows("Rewards")) == list(REWARD_TABLES)
    assert sorted(rows("Rendering")) == sorted(ReToolEnv.metadata["render_modes"])


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT)
    assert targets
    assert [target for target in targets if "://" not in target and not (PAGE.parent / target).exists()] == []
