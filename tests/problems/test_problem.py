"""``Problem`` itself."""

import pytest
from pydantic import ValidationError

from retool_env.problems import Problem


def test_a_problem_is_frozen_and_survives_json() -> None:
    problem = Problem(id="p", question="1 + 1 = \u2026 \U0001f600", answer="2", source="s", metadata={"level": 3})
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    with pytest.raises(ValidationError, match="frozen"):
        problem.answer = "3"  # type: ignore[misc]


@pytest.mark.parametrize("field", ["id", "question", "answer"])
def test_empty_text_is_refused(field: str) -> None:
    fields = {"id": "p", "question": "q", "answer": "2", field: ""}
    with pytest.raises(ValidationError, match=field):
        Problem(**fields)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="gold"):
        Problem.model_validate({"id": "p", "question": "q", "answer": "2", "gold": "2"})
