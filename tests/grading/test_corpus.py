"""Hard public cases: no false positive, and exactly the false negatives named here."""

import json
from pathlib import Path

import pytest

from retool_env.grading import grade

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "grading.jsonl").read_text(encoding="utf-8").splitlines()
]

# 2516_8 against 2516: a number in base 8 is not the number of the same digits in base 10.
FALSE_NEGATIVES = {"g029"}
# Answers that no machine can evaluate; a timeout, or a rejection, is right.
HANGING = {case["id"] for case in CASES if case["category"] == "hang"}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict) -> None:
    # The answer-line cases are DAPO's dialect, which is an option.
    result = grade(case["prediction"], case["gold"], answer_line=case["category"] == "answer-line", limit_s=2)
    assert result.correct == (case["expected"] and case["id"] not in FALSE_NEGATIVES), result
    assert not result.timed_out or case["id"] in HANGING


def test_no_policy_free_case_is_missed() -> None:
    assert not [case["id"] for case in CASES if case["id"] in FALSE_NEGATIVES and not case["policy_dependent"]]
