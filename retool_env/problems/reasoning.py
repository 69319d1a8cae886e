"""``ReasoningGym``: the problems of one reasoning-gym task, by its name and parameters."""

from __future__ import annotations

import difflib
import json
from typing import Any, Final

from retool_env.errors import ConfigurationError, MissingDependencyError, ProblemError
from retool_env.problems.gold import gold_fault
from retool_env.problems.lazy import LazyProblems
from retool_env.problems.permutation import digest
from retool_env.problems.problem import Problem

_MAX_SIZE: Final = 1 << 31
_N_PROBED: Final = 8

_MANY_ANSWERS: Final = "many answers are right, and the problem holds one of them"
_READ_OFF: Final = "an expression in the question is equal to the answer, so that copying it would be graded as correct"
UNSUITED: Final[dict[str, str]] = {
    "countdown": _MANY_ANSWERS,
    "fraction_simplification": _READ_OFF,
    "jugs": _MANY_ANSWERS,
    "knight_swap": _MANY_ANSWERS,
    "palindrome_generation": _MANY_ANSWERS,
    "polynomial_multiplication": _READ_OFF,
    "prime_factorization": _READ_OFF,
    "puzzle24": _MANY_ANSWERS,
    "shortest_path": _MANY_ANSWERS,
    "sokoban": _MANY_ANSWERS,
    "word_ladder": _MANY_ANSWERS,
}
"""Tasks that cannot be graded by comparing with a gold answer, and why. The list need not be complete."""


class ReasoningGym(LazyProblems):
    """The problems of one reasoning-gym task: number ``i`` is made when it is asked for, always the same.

    Which problem number ``i`` is depends only on the arguments and the version of reasoning-gym. Two seeds have no
    problem in common, but for chance: reasoning-gym's own ``seed=1`` is its ``seed=0`` moved on by one, so the seed is
    hashed before it is handed on. Answers are graded by comparing them with the gold, not by the task's own scoring:
    a task that leaves many right answers is refused where that is known. A gold answer is checked when its problem is
    made, and those of the first problems when the sequence is.

    Safe to share between threads, to copy and to pickle.
    """

    def __init__(self, /, task: str, size: int = 500, seed: int = 0, **parameters: Any):
        """Makes the sequence. This imports reasoning-gym, which takes a second or more.

        Args:
            task: reasoning-gym's name of the task, for example "leg_counting".
            size: Length of the sequence.
            seed: Chooses the sequence.
            **parameters: The task's own, for example ``min_animals=3``; JSON values.

        Raises:
            ConfigurationError: The task is unknown or cannot be graded here, or a parameter is wrong. One that only
                later problems stumble over is told when these are asked for.
            MissingDependencyError: reasoning-gym is not installed.
            ProblemError: A gold answer of the first problems is nothing that an answer can be compared with.
        """
        super().__init__(size)
        if size > _MAX_SIZE:
            raise ConfigurationError(f"size: must be at most {_MAX_SIZE}, got {size}")
        self.task = task
        self.seed = seed
        self.parameters = parameters
        self._dataset: Any = None
        label = f"-{digest(json.dumps(parameters, sort_keys=True, default=str)):016x}"[:9] if parameters else ""
        self._prefix = f"{task}{label}-{seed}"
        for index in range(min(size, _N_PROBED)):
            self._make(index)

    def __repr__(self) -> str:
        extra = "".join(f", {name}={value!r}" for name, value in self.parameters.items())
        return f"ReasoningGym({self.task!r}, size={self.size}, seed={self.seed}{extra})"

    def __getstate__(self) -> dict[str, Any]:
        # The generator is rebuilt where it is needed; it would make the pickle large.
        return {**self.__dict__, "_dataset": None}

    def _make(self, index: int) -> Problem:
        if self._dataset is None:
            self._dataset = self._open()
        name = f"{self._prefix}-{index}"
        try:
            entry = self._dataset[index]
        except Exception as error:  # the task's own code, which trusts its parameters
            raise ConfigurationError(
                f"problem {name}: the task {self.task!r} cannot make it with these parameters: "
                f"{type(error).__name__}: {error}"
            ) from error
        gold = entry["answer"]
        if not isinstance(gold, str):
            raise ProblemError(f"problem {name}: the task {self.task!r} gives no single answer; choose another task")
        gold = gold.strip()
        if (fault := gold_fault(gold)) is not None:
            raise ProblemError(f"problem {name}, of the task {self.task!r}: {fault}")
        return Problem(
            id=name,
            question=entry["question"].strip(),
            answer=gold,
            source=f"reasoning-gym/{self.task}",
            metadata={"task": self.task},
        )

    def _open(self) -> Any:
        try:
            import reasoning_gym  # type: ignore[import-untyped]
            from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]
        except ImportError as error:
            raise no_reasoning_gym(f"the task {self.task!r}") from error
        if self.task not in DATASETS:
            close = difflib.get_close_matches(self.task, DATASETS, n=3)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ConfigurationError(f"task: reasoning-gym has no task {self.task!r}{hint}")
        if self.task in UNSUITED:
            raise ConfigurationError(f"task: {self.task!r} cannot be graded here: {UNSUITED[self.task]}")
        # reasoning-gym seeds a generator with seed + i for problem i; numpy's, which one task uses, ends at 2^32.
        seed = digest(self.seed, self.task) % (2**32 - self.size)
        try:
            return reasoning_gym.create_dataset(self.task, seed=seed, size=self.size, **self.parameters)
        except (TypeError, ValueError, AssertionError) as error:
            names = [name for name in DATASETS[self.task][1].__dataclass_fields__ if name not in ("seed", "size")]
            raise ConfigurationError(
                f"parameters of the task {self.task!r}: {error or type(error).__name__} (it has {', '.join(names)})"
            ) from error


def no_reasoning_gym(what: str) -> MissingDependencyError:
    """Returns the error for something that needs reasoning-gym where it is not installed."""
    return MissingDependencyError(
        f'reasoning-gym is needed for {what}: pip install "retool-env[data]" '
        '(in a clone: pip install -e ".[data]"), or use problems of your own (a JSONL file)'
    )
