"""Grading: which answer a text gives, and whether it is the gold answer."""

from retool_env.grading.extract import extract_answer, last_boxed
from retool_env.grading.grader import Grade, agrade, agrade_answer, check_gold, grade, grade_answer, shutdown
from retool_env.grading.presets import PRESETS
from retool_env.grading.symbolic import WorkerStartError

__all__ = [
    "PRESETS",
    "Grade",
    "WorkerStartError",
    "agrade",
    "agrade_answer",
    "check_gold",
    "extract_answer",
    "grade",
    "grade_answer",
    "last_boxed",
    "shutdown",
]
