"""The built-in problems: the same everywhere, gradable, mixed, and really solved by the programs we have for them."""

import contextlib
import copy
import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError, MissingDependencyError
from retool_env.grading import check_gold, grade_answer
from retool_env.problems import BuiltinProblems, Problem, builtin_problems
from retool_env.problems.builtin import FAMILIES
from retool_env.rollout.programs import write_program

from ..growth import compare  # noqa: TID252 - `tests` is on no path

ROOT = Path(__file__).parents[2]


def fingerprint(problems: list[Problem]) -> str:
    return hashlib.sha256("".join(problem.model_dump_json() for problem in problems).encode()).hexdigest()[:16]


def run_python(code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def test_every_gold_can_be_graded_and_equals_itself() -> None:
    for problem in builtin_problems(5 * len(FAMILIES), seed=11):
        check_gold(problem.answer)
        assert grade_answer(problem.answer, problem.answer).correct, problem


def test_golds_are_what_a_program_computes_from_the_question_alone() -> None:
    for problem in builtin_problems(20 * len(FAMILIES), seed=3):
        program = write_program(problem.metadata["family"], problem.question)
        assert program is not None, problem.question
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(program.source, {})
        assert output.getvalue() == f"answer = {problem.answer}\n", problem.question


def test_the_answer_cannot_be_read_off_the_question() -> None:
    for problem in builtin_problems(20 * len(FAMILIES), seed=5):
        numbers = re.findall(r"\d+(?:[./]\d+)?", problem.question)
        # A small count can be equal to some number of the question by chance (a day in a date).
        assert len(problem.answer) < 3 or problem.answer not in numbers, problem.question


def _numbers(question: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", question)]


HARD: dict[str, Callable[[str], bool]] = {
    "products": lambda question: len(_numbers(question)) >= 2 and min(_numbers(question)) >= 10**5,
    "decimal_chain_sum": lambda question: len(re.findall(r"\d{6,}\.", question)) >= 5,
    "count_primes": lambda question: min(_numbers(question)) >= 1000,
    "lcm": lambda question: len(_numbers(question)) >= 3 and min(_numbers(question)) >= 200,
    "base_conversion": lambda question: re.search(r"number \d{7,} to ", question) is not None,
    "simple_equations": lambda question: max(_numbers(question)) >= 10**6,
    "dice": lambda question: len(re.findall(r"1d\d+[,.] ", question)) == 6,
    "count_bits": lambda question: max(_numbers(question)) >= 2**40,
    "largest_island": lambda question: len(re.findall(r"\b[01]\b", question)) >= 100,
}
"""What makes a question of each family more than one does in one's head."""


def test_no_question_is_easy_without_a_program() -> None:
    assert set(HARD) == set(FAMILIES)
    for problem in builtin_problems(100 * len(FAMILIES), seed=13):
        assert HARD[problem.metadata["family"]](problem.question), problem.question


def test_a_stretch_of_the_sequence_holds_every_family_equally() -> None:
    problems = builtin_problems(6 * len(FAMILIES), seed=1)
    sources = [problem.source for problem in problems]
    assert {sources.count(f"reasoning-gym/{name}") for name in FAMILIES} == {6}
    assert len({problem.id for problem in problems}) == len(problems)
    assert len({problem.question for problem in problems}) == len(problems)
    assert sources[: len(FAMILIES)] != sources[len(FAMILIES) : 2 * len(FAMILIES)], "the order is not shuffled anew"


def test_the_sequence_is_the_same_in_every_process_and_on_every_python() -> None:
    # The expected value is the same for all supported Pythons. If a new version of reasoning-gym changes it, the
    # problems of a seed have changed: say so in the change log, then renew it.
    code = (
        "import hashlib\nfrom retool_env.problems import builtin_problems\n"
        "text = ''.join(problem.model_dump_json() for problem in builtin_problems(30, seed=7))\n"
        "print(hashlib.sha256(text.encode()).hexdigest()[:16])"
    )
    expected = fingerprint(builtin_problems(30, seed=7))
    assert run_python(code, PYTHONHASHSEED="1") == expected
    assert run_python(code, PYTHONHASHSEED="2", TZ="Asia/Tokyo") == expected
    assert expected == "023b13cab8563b65"


def test_seeds_give_different_problems() -> None:
    one, two = (builtin_problems(60, seed=seed) for seed in (0, 1))
    assert not {problem.question for problem in one} & {problem.question for problem in two}


def test_access_is_random_lazy_and_stable() -> None:
    problems = BuiltinProblems(seed=2, size=10**9)
    assert len(problems) == 10**9
    assert problems[-1] == problems[10**9 - 1]
    assert problems[5:8] == [problems[5], problems[6], problems[7]] == builtin_problems(8, seed=2)[5:]
    with pytest.raises(IndexError):
        problems[10**9]
    with pytest.raises(IndexError):
        problems[-(10**9) - 1]


def test_copies_and_pickles_hold_the_same_problems() -> None:
    problems = BuiltinProblems(seed=4, size=100)
    first = problems[0]
    pickled = pickle.dumps(problems)
    assert len(pickled) < 1000
    assert pickle.loads(pickled) == problems == copy.deepcopy(problems)
    assert pickle.loads(pickled)[0] == first
    assert BuiltinProblems(seed=5, size=100) != problems


def test_threads_share_a_sequence() -> None:
    problems = BuiltinProblems(seed=6, size=100)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(problems.__getitem__, range(60))) == builtin_problems(60, seed=6)


def test_far_problems_cost_no_more_than_near_ones() -> None:
    problems = BuiltinProblems(seed=0)
    assert compare(lambda: problems[900_000:900_100], lambda: problems[:100]) < 20


def test_families_can_be_chosen() -> None:
    problems = builtin_problems(6, families=["dice", "lcm"])
    assert {problem.metadata["family"] for problem in problems} == {"dice", "lcm"}
    with pytest.raises(ConfigurationError, match=r"families.*tetris.*products"):
        builtin_problems(6, families=["tetris"])
    with pytest.raises(ConfigurationError, match="families"):
        builtin_problems(6, families=[])
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        builtin_problems(0)


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "retool-env\[data\]" .*-e "\.\[data\]"'):
        builtin_problems(1)


def test_importing_the_package_imports_no_generator() -> None:
    heavy = "{'reasoning_gym', 'sympy', 'math_verify', 'torch'}"
    code = f"import sys, retool_env.problems; print(sorted({heavy} & set(sys.modules)))"
    assert run_python(code) == "[]"
