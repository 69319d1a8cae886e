"""reasoning-gym tasks by name and parameters."""

import copy
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from retool_env.errors import ConfigurationError, MissingDependencyError, ProblemError
from retool_env.grading import grade_answer
from retool_env.problems import ReasoningGym, load_problems
from retool_env.problems.reasoning import UNSUITED


def test_a_task_gives_problems_with_its_parameters() -> None:
    problems = ReasoningGym("leg_counting", size=20, min_animals=2, max_animals=2, min_instances=1, max_instances=1)
    assert len(problems) == 20
    for problem in problems:
        assert problem.question.count(" 1 ") == 2
        assert problem.source == "reasoning-gym/leg_counting"
        assert problem.metadata == {"task": "leg_counting"}
        assert grade_answer(problem.answer, problem.answer).correct
    assert len({problem.id for problem in problems}) == 20
    assert problems[-1] == problems[19]
    with pytest.raises(IndexError):
        problems[20]


def test_the_form_as_text_gives_the_same() -> None:
    problems = ReasoningGym("leg_counting", size=5, seed=3, max_animals=4)
    assert list(load_problems("reasoning-gym:leg_counting?size=5&seed=3&max_animals=4")) == list(problems)
    assert list(load_problems("reasoning-gym:leg_counting?size=5&max_animals=4", seed=3)) == list(problems)
    assert load_problems("reasoning-gym:leg_counting?max_animals=4", seed=3, limit=5) != list(problems[:4])
    assert load_problems(problems) is problems
    assert len(load_problems("reasoning-gym:gcd")) == 500


def test_problems_depend_on_the_arguments_alone() -> None:
    # If a new version of reasoning-gym changes the question, the problems of a seed have changed: say so in the change
    # log, then renew it.
    problems = ReasoningGym("gcd", size=100, seed=7)
    assert re.findall(r"\d+", problems[3].question) == ["346", "382"]
    assert problems[3].answer == "2"
    assert ReasoningGym("gcd", size=100, seed=7)[3] == problems[3]
    assert pickle.loads(pickle.dumps(problems))[3] == problems[3] == copy.deepcopy(problems)[3]
    assert len(pickle.dumps(problems)) < 1000
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(problems.__getitem__, range(30))) == problems[:30]


def test_neighbouring_seeds_have_no_problem_in_common() -> None:
    one, two = ({problem.question for problem in ReasoningGym("lcm", size=50, seed=s, max_value=10**6)} for s in (0, 1))
    assert not one & two


def test_ids_tell_tasks_seeds_and_parameters_apart() -> None:
    sequences = [
        ReasoningGym("gcd", size=2),
        ReasoningGym("gcd", size=2, seed=1),
        ReasoningGym("gcd", size=2, max_value=50),
        ReasoningGym("lcm", size=2),
    ]
    assert len({problem.id for problems in sequences for problem in problems}) == 8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("reasoning-gym:leg_count", r"no task 'leg_count'; did you mean 'leg_counting'"),
        ("reasoning-gym:leg_counting?animals=3", r"'leg_counting': .*'animals' \(it has .*min_animals, .*\)"),
        ("reasoning-gym:leg_counting?min_animals=9&max_animals=3", r"parameters of the task 'leg_counting': "),
        ("reasoning-gym:leg_counting?min_animals=many", r"parameters of the task 'leg_counting': "),
        ("reasoning-gym:leg_counting?self=1", "parameters of the task 'leg_counting': .*'self'"),
        (
            "reasoning-gym:leg_counting?max_animals=3.5",
            r"leg_counting-\w+-0-\d: .* these parameters: (TypeError|ValueError)",
        ),
        # Python 3.11 takes 1e9 for an integer here, and names another error than 3.12.
        (
            "reasoning-gym:gcd?max_value=999.5",
            r"the task 'gcd' cannot make it with these parameters: (TypeError|ValueError)",
        ),
        ("reasoning-gym:chain_sum?min_digits=5000&max_digits=5000", "cannot make it with these parameters: ValueError"),
        ("reasoning-gym:leg_counting?size=0", "size: must be at least 1, got 0"),
        ("reasoning-gym:leg_counting?size=5000000000", "size: must be at most"),
        ("reasoning-gym:leg_counting?size=ten", "size must be an integer, got 'ten'"),
        ("reasoning-gym:leg_counting?task=gcd", "the task is named before"),
        ("reasoning-gym:leg_counting?size", "name=value pairs"),
        ("reasoning-gym:", "no task ''"),
    ],
)
def test_a_wrong_name_or_parameter_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_problems(spec)


@pytest.mark.parametrize("task", sorted(UNSUITED))
def test_tasks_that_a_gold_answer_cannot_grade_are_refused(task: str) -> None:
    with pytest.raises(ConfigurationError, match=f"task: '{task}' cannot be graded here: "):
        ReasoningGym(task)


def test_golds_that_cannot_be_compared_with_are_found_when_the_sequence_is_made() -> None:
    with pytest.raises(ProblemError, match=r"problem mini_sudoku-0-0, of the task 'mini_sudoku': the gold answer"):
        ReasoningGym("mini_sudoku")
    with pytest.raises(ProblemError, match=r"the task 'propositional_logic' gives no single answer"):
        ReasoningGym("propositional_logic")


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingDependencyError, match=r"needed for the task 'gcd': pip install \"retool-env\[data\]\""):
        ReasoningGym("gcd")
