"""The graders that are compared, each as its users call it: text and gold in, a verdict out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Grade = Callable[[str, str], str]

OURS = "retool_env"
MATH_VERIFY = "math-verify"
MATH_DAPO = "math_dapo"
NAMES = (
    OURS,
    f"{OURS}, strict",
    f"{OURS}, lenient",
    MATH_VERIFY,
    MATH_DAPO,
    f"{MATH_DAPO}, strict",
    "last box, same text",
)
TIMED = (OURS, MATH_VERIFY, MATH_DAPO, "last box, same text")
_MATH_DAPO_FILE = Path("utils") / "reward_score" / "math_dapo.py"


def load(name: str, math_dapo: Path | None) -> Grade:
    """Returns a grader, ready to grade.

    Args:
        name: One of ``NAMES``.
        math_dapo: The file of verl's grader; needed for that one only.
    """
    program, _, variant = name.partition(", ")
    if program == OURS:
        return _ours(variant or "default")
    if program == MATH_VERIFY:
        return _math_verify()
    if program == MATH_DAPO:
        assert math_dapo is not None
        return _math_dapo(math_dapo, strict=variant == "strict")
    return lambda text, gold: _word(_last_box(text) == gold.strip())


def describe(name: str, math_dapo: Path | None) -> dict[str, str]:
    """Returns ``what`` is called, or why it is ``unsupported``."""
    program, _, variant = name.partition(", ")
    if program == OURS:
        return {"what": f"retool_env.grading.grade(text, gold, preset={variant or 'default'!r})"}
    if program == MATH_VERIFY:
        return {"what": f"math-verify {importlib.metadata.version('math-verify')}: verify(parse(gold), parse(text))"}
    if program != MATH_DAPO:
        return {"what": "whether the last balanced box holds the gold's very text"}
    if math_dapo is None:
        return {"unsupported": "verl is not installed here, and --verl does not say where it is"}
    return {"what": f"verl {_version_beside(math_dapo)}: math_dapo.compute_score(strict_box_verify={variant != ''})"}


def find_math_dapo(place: str | None) -> Path | None:
    """Finds verl's ``math_dapo.py``, without importing verl, which would import torch.

    Args:
        place: A folder that holds the package (an unpacked wheel will do), or the Python that it is installed for. By
            default this one.

    Raises:
        ValueError: It is not in the place that was given.
    """
    if place is None:
        found = importlib.util.find_spec("verl")
        folders = [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]
    elif Path(place).is_dir():
        folders = [Path(place) / "verl", Path(place)]
    else:
        code = "import importlib.util as u; print(*u.find_spec('verl').submodule_search_locations, sep='\\n')"
        done = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        folders = [Path(line) for line in done.stdout.splitlines()]
    for folder in folders:
        if (folder / _MATH_DAPO_FILE).is_file():
            return folder / _MATH_DAPO_FILE
    if place is not None:
        raise ValueError(f"--verl {place}: there is no verl/{_MATH_DAPO_FILE}")
    return None


def _version_beside(file: Path) -> str:
    for found in importlib.metadata.distributions(name="verl", path=[str(file.parents[3])]):
        return found.version
    return "of unknown version"


def _word(correct: object) -> str:
    return "correct" if correct else "wrong"


def _ours(preset: str) -> Grade:
    from retool_env.grading import grade

    def run(text: str, gold: str) -> str:
        given = grade(text, gold, preset=preset)
        return "timed out" if given.timed_out else _word(given.correct)

    return run


def _math_verify() -> Grade:
    from math_verify import parse, verify

    # The gold in a box, as verl and others hand it over: math-verify looks for LaTeX in a text.
    return lambda text, gold: _word(verify(parse(gold if "\\boxed" in gold else f"\\boxed{{{gold}}}"), parse(text)))


def _math_dapo(file: Path, strict: bool) -> Grade:
    compute_score = _load_file(file).compute_score
    return lambda text, gold: _word(compute_score(text, gold, strict_box_verify=strict)["acc"])


def _load_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _last_box(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position].strip()
    return None
