"""The problem of a row, whatever the row holds, and the gold that a reward function is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from retool_verl.rows import row_problem

from retool_env.errors import ProblemError

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 * 7?"}]
GOLD = {"ground_truth": "42"}


def numpy_row() -> dict[str, Any]:
    import numpy as np

    gold = np.array(["42"], dtype=object)[0]
    prompt = np.array(ASKED, dtype=object)
    return {"raw_prompt": prompt, "reward_model": {"ground_truth": gold}, "index": np.int64(3), "extra_info": None}


@pytest.mark.parametrize(
    ("fields", "id"),
    [
        ({"raw_prompt": ASKED, "reward_model": GOLD}, "row"),
        ({"raw_prompt": ASKED, "reward_model": GOLD, "index": 0, "extra_info": {}}, "0"),
        ({"raw_prompt": ASKED, "reward_model": GOLD, "index": 7, "extra_info": {"index": 2, "id": "aime-2"}}, "aime-2"),
        ({"reward_model": GOLD, "extra_info": {"question": "What is 6 * 7?", "index": None}}, "row"),
        ({"raw_prompt": [{"role": "user", "content": "Hello."}, *ASKED], "reward_model": GOLD}, "row"),
        ({"raw_prompt": [{"content": "lost"}, "lost", None, *ASKED], "reward_model": GOLD}, "row"),
        ({"raw_prompt": [{"role": "user", "content": [{"type": "text", "text": "What is 6 * 7?"}]}],
          "reward_model": GOLD, "data_source": None}, "row"),
        (numpy_row, "3"),
    ],
)  # fmt: skip
def test_question_and_gold_are_found(fields: Any, id: str) -> None:
    problem = row_problem(fields() if callable(fields) else fields)
    assert (problem.id, problem.question, problem.answer) == (id, "What is 6 * 7?", "42")


def test_numbers_are_golds_too() -> None:
    import numpy as np

    for gold, text in ((42, "42"), (np.int64(42), "42"), (np.float64(0.5), "0.5"), (np.str_("42"), "42")):
        assert row_problem({"raw_prompt": ASKED, "reward_model": {"ground_truth": gold}}).answer == text


def test_text_that_is_not_valid_becomes_valid() -> None:
    extra = {"question": "What is \ud83d\ude00 \ud800?", "id": "\udfff"}
    problem = row_problem({"extra_info": extra, "reward_model": {"ground_truth": "4\ud800"}})
    assert (problem.question, problem.id, problem.answer) == ("What is \U0001f600 \ufffd?", "\ufffd", "4\ufffd")


@pytest.mark.parametrize("gold", [None, True, "", float("nan"), float("inf"), ["42"], {"answer": "42"}, b"42"])
def test_without_a_gold_there_is_no_problem(gold: object) -> None:
    from retool_verl.reward import compute_score, compute_score_verl

    with pytest.raises(ProblemError, match=r"row r7: reward_model.ground_truth must be"):
        row_problem({"raw_prompt": ASKED, "reward_model": {"ground_truth": gold}, "extra_info": {"id": "r7"}})
    for judge in (compute_score, compute_score_verl):
        with pytest.raises(ProblemError, match=r"ground_truth"):
            judge("", f"So \\boxed{{{gold}}}", gold)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"raw_prompt": None},
        {"raw_prompt": "What is 6 * 7?"},
        {"raw_prompt": [{"role": "assistant", "content": "42"}]},
        {"raw_prompt": [{"role": "user", "content": None}]},
        {"raw_prompt": [{"role": "user", "content": "  "}]},
        {"raw_prompt": [{"role": "user", "content": [{"type": "image"}]}]},
        {"raw_prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]},
    ],
)
def test_without_a_question_there_is_no_problem(fields: Mapping[str, Any]) -> None:
    with pytest.raises(ProblemError, match="question"):
        row_problem({**fields, "reward_model": GOLD})


def test_without_a_reward_model_there_is_no_problem() -> None:
    for model in (None, "42", []):
        with pytest.raises(ProblemError, match="ground_truth"):
            row_problem({"raw_prompt": ASKED, "reward_model": model})


@pytest.mark.parametrize("gold", ["nan", "  ", "-inf", "1" * 4001])
def test_a_gold_that_no_answer_can_be_compared_with_is_refused_before_the_attempt(gold: str) -> None:
    row = {"raw_prompt": [{"role": "user", "content": "What?"}], "reward_model": {"ground_truth": gold}}
    with pytest.raises(ProblemError, match=r"row .*(ground_truth|answer)"):
        row_problem(row)
    if gold.strip():
        assert row_problem(row, grader="strict").answer == gold
