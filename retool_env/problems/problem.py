"""``Problem``: a question with its gold answer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Problem(BaseModel):
    r"""A question and its gold answer. Frozen; unknown fields are an error.

    Attributes:
        id: Names the problem in trajectories and reports; unique within a list of problems.
        question: The text the policy sees, verbatim; not blank.
        answer: The gold answer, as text the grader can parse: ``"204"``, ``"3/7"``, ``"\\frac{\\sqrt{2}}{3}"``.
        source: Where the problem comes from, for example ``"aime_2024"``. Free text.
        metadata: Whatever else is known about it. Never shown to the policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    source: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("question")
    @classmethod
    def _not_blank(cls, question: str) -> str:
        if not question.strip():
            raise ValueError("a question must not be blank")
        return question
