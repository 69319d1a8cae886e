"""The strict preset pays what verl's math_dapo pays with strict_box_verify, and extracts what it extracts."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.grading import agrade, grade, grade_answer

ROOT = Path(__file__).parents[2]
# Written by scripts/record_math_dapo.py from the verl that each row names.
RECORDED = [
    json.loads(line)
    for line in (ROOT / "tests" / "cases" / "math_dapo_strict.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = st.text(st.sampled_from("\\{} 42x\n") | st.characters(codec="utf-8"), max_size=120)
BOXES = st.lists(
    st.sampled_from(["\\boxed{", "\\boxed", "{", "}", "}", "\\{", "\\}", "42", " ", "x" * 40, "y" * 90]) | TEXTS,
    max_size=12,
).map("".join)
GOLDS = st.sampled_from(["42", "", "x", "{}", "\\{42\\}"]) | TEXTS


def test_enough_was_recorded() -> None:
    assert len(RECORDED) > 400
    assert sum(row["correct"] for row in RECORDED) > 100
    assert sum(row["extracted"] is None for row in RECORDED) > 100


def test_what_was_recorded() -> None:
    for row in RECORDED:
        result = grade(row["text"], row["gold"], preset="strict")
        assert (result.correct, result.answer) == (row["correct"], row["extracted"]), row
        assert result.method == ("none" if row["extracted"] is None else "text")
        assert not result.timed_out


async def test_the_asynchronous_twin_says_the_same() -> None:
    for row in RECORDED:
        result = await agrade(row["text"], row["gold"], preset="strict")
        assert (result.correct, result.answer) == (row["correct"], row["extracted"])


@settings(max_examples=500, deadline=None)
@given(BOXES, GOLDS)
def test_it_never_raises_and_looks_at_a_hundred_characters(text: str, gold: str) -> None:
    result = grade(text, gold, preset="strict")
    windowed = grade(text[-100:], gold, preset="strict")
    assert (result.correct, result.answer) == (windowed.correct, windowed.answer)


def test_golds_that_the_other_presets_refuse_are_strings_like_others() -> None:
    assert grade("\\boxed{}", "", preset="strict").correct
    assert grade("\\boxed{nan}", "nan", preset="strict").correct
    assert grade_answer("42", "42", preset="strict").correct
    assert not grade_answer("42.0", "42", preset="strict").correct


@pytest.mark.parametrize("text", ["<code>\\boxed{42}</code>", "<interpreter>\n\\boxed{42}\n</interpreter>"])
def test_what_a_tool_printed_is_paid_as_verl_pays_it(text: str) -> None:
    assert grade(text, "42", preset="strict").correct
    assert not grade(text, "42").correct
    assert not grade(text, "42", preset="lenient").correct


def installed_verl() -> ModuleType:
    spec = importlib.util.find_spec("verl")  # of a top-level package: nothing of verl runs
    assert spec is not None
    assert spec.submodule_search_locations
    script = importlib.util.spec_from_file_location("record_math_dapo", ROOT / "scripts" / "record_math_dapo.py")
    assert script is not None
    assert script.loader is not None
    recorder = importlib.util.module_from_spec(script)
    script.loader.exec_module(recorder)
    return recorder.load(Path(spec.submodule_search_locations[0]).parent)


if importlib.util.find_spec("verl") is not None:
    VERL = installed_verl()

    @settings(max_examples=3000, deadline=None)
    @given(BOXES, GOLDS)
    def test_the_installed_verl_says_the_same(text: str, gold: str) -> None:
        extracted = VERL.compute_score(text, gold, strict_box_verify=True)["pred"]
        for reference in {gold, extracted} - {None}:
            theirs = VERL.compute_score(text, reference, strict_box_verify=True)
            ours = grade(text, reference, preset="strict")
            assert (ours.correct, ours.answer) == (theirs["score"] > 0, theirs["pred"])
