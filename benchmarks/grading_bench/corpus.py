"""Right and wrong verdicts on the public cases of ``tests/cases/grading.jsonl`` and math-verify's own test pairs."""

from __future__ import annotations

import ast
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .children import Child

CASES = Path(__file__).parents[2] / "tests" / "cases" / "grading.jsonl"
_NO_VERDICT = ("timed out", "raised", "hung", "died")
_SHORT_CHARS = 100
_FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\[((?s:.+?))\\\]|\\\((.+?)\\\)")


@dataclass(frozen=True)
class Case:
    """A text and its gold.

    Attributes:
        id: Its name.
        text: What the model wrote.
        gold: The gold answer.
        correct: What a good grader says.
        policy_free: This is not a matter of policy.
        plain: Neither side is long or has several boxes.
    """

    id: str
    text: str
    gold: str
    correct: bool
    policy_free: bool = True
    plain: bool = True


def public_cases() -> list[Case]:
    """Returns the hard public cases."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [
        Case(row["id"], row["prediction"], row["gold"], row["expected"], not row["policy_dependent"]) for row in rows
    ]


def pairs(place: Path) -> list[Case]:
    """Reads the labelled pairs of math-verify's tests from its source distribution, without running them.

    They are what its parametrised tests give as gold, prediction and expected verdict; tests that take options beside
    these are left out. A prediction without a box is given as one, since that is where a model states its answer. Where
    a side without a box has one formula in it, that formula is taken; one within a line must not have a line break.

    Args:
        place: The ``.tar.gz``, or the folder that it unpacks to.

    Raises:
        ValueError: There are none.
    """
    found = [case for name, source in _test_files(place) for case in _pairs_of(name, source)]
    if not found:
        raise ValueError(f"--pairs {place}: there are no tests of math-verify; "
                         "get them with pip download --no-deps --no-binary :all: math-verify")  # fmt: skip
    return found


def measure(children: dict[str, Child], cases: Sequence[Case], limit_s: float) -> dict[str, Any]:
    """Lets every grader judge every case, case by case.

    Args:
        children: The graders.
        cases: The cases.
        limit_s: Seconds after which a grader is killed.
    """
    said: dict[str, list[str]] = {name: [] for name in children}
    for case in cases:
        for name, child in children.items():
            said[name].append(child.say(case.text, case.gold, limit_s))
    return {name: _count(cases, words) for name, words in said.items()}


def right_of_plain(cases: Sequence[Case], counts: dict[str, Any]) -> dict[str, int]:
    """Returns ``n`` and ``right`` of the plain cases."""
    wrong = {*counts["false_positives"], *counts["false_negatives"]}
    plain = [case for case in cases if case.plain]
    return {"n": len(plain), "right": sum(case.id not in wrong for case in plain)}


def _count(cases: Sequence[Case], words: Sequence[str]) -> dict[str, Any]:
    judged = list(zip(cases, words, strict=True))
    positives = [case for case, word in judged if word == "correct" and not case.correct]
    negatives = [case for case, word in judged if word != "correct" and case.correct]
    without = Counter(words)
    return {
        "n": len(cases),
        "right": len(cases) - len(positives) - len(negatives),
        "false_positives": [case.id for case in positives],
        "false_negatives": [case.id for case in negatives],
        "policy_free": {
            "n": sum(case.policy_free for case in cases),
            "false_positives": sum(case.policy_free for case in positives),
            "false_negatives": sum(case.policy_free for case in negatives),
        },
        **{word.replace(" ", "_"): without[word] for word in _NO_VERDICT},
    }


def _test_files(place: Path) -> Iterator[tuple[str, str]]:
    if place.is_dir():
        for file in sorted(place.rglob("test_*.py")):
            yield file.name, file.read_text(encoding="utf-8")
        return
    with tarfile.open(place) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name = member.name.rpartition("/")[2]
            content = archive.extractfile(member) if name.startswith("test_") and name.endswith(".py") else None
            if content is not None:
                yield name, content.read().decode()


def _pairs_of(name: str, source: str) -> Iterator[Case]:
    for function in ast.walk(ast.parse(source)):
        for call in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
            if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("parametrize"):
                continue
            names = [part.strip() for part in str(_literal(call.args[0])).split(",")]
            rows = call.args[1].elts if isinstance(call.args[1], ast.List) else []
            if names not in (["gold", "pred", "expected"], ["gold", "pred", "result"]):
                continue
            for row in rows:
                values = _literal(row)
                if values is not None:
                    yield _as_case(f"{name}:{row.lineno}", *values)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:  # computed
        return None


def _as_case(id: str, gold: str, prediction: str, expected: int) -> Case:
    sides = (gold, prediction)
    plain = all(len(side) <= _SHORT_CHARS and side.count("\\boxed") <= 1 for side in sides)
    gold, text = (side if "\\boxed" in side else _formula(side) for side in sides)
    return Case(id, text if "\\boxed" in text else f"\\boxed{{{text}}}", gold, bool(expected), plain=plain)


def _formula(text: str) -> str:
    """The only formula of a text, without what marks it as one; the whole text where there is none or several."""
    found = list(_FORMULA.finditer(text))
    return next(filter(None, found[0].groups())).strip() if len(found) == 1 else text.strip()
