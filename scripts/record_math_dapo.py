"""Records what verl's math_dapo says with ``strict_box_verify``, for the tests of the ``strict`` preset.

    pip download verl==0.9.1 --no-deps && unzip -d verl verl-*.whl
    python scripts/record_math_dapo.py verl tests/cases/math_dapo_strict.jsonl

Only the one file of the package is loaded, which needs neither verl's dependencies nor torch. A row has the text, the
gold, whether it was paid, and what was extracted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO

CORPUS = Path(__file__).parents[1] / "tests" / "cases" / "grading.jsonl"
PIECES = (
    *("\\boxed{", "\\boxed{", "\\boxed{", "\\boxed", "\\boxed ", "\\fbox{", "boxed{", "\\Boxed{", "\\\\boxed{"),
    *("{", "}", "}", "}", "}", "\\{", "\\}", "{}", "42", "42", "4", " ", "\n", "\\frac{1}{2}", "$", "=", ".", "é"),
    *("<code>", "</code>", "<think>", "</think>", "</answer>", "Answer: 42", "so we have ", "x" * 30, "y" * 90, "\\"),
)
GOLDS = ("42", "4", "", "\\frac{1}{2}", "{42", "42}", " 42", "\\{42\\}", "{}", "\\boxed{42}", "\\")
BY_HAND = (
    ("\\boxed{42}", "42"),
    ("\\boxed{042}", "42"),
    ("\\boxed{42.0}", "42"),
    ("\\boxed{ 42 }", "42"),
    ("\\boxed{\\boxed{42}}", "42"),
    ("\\boxed{4\\boxed{2}}", "2"),
    ("\\boxed{42} \\boxed{43", "42"),
    ("\\boxed{42} \\boxed", "42"),
    ("\\boxed {42}", "42"),
    ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
    ("\\boxed{\\{}", "\\{"),
    ("\\boxed{[1,2\\}}", "[1,2\\"),
    ("\\boxed{}", ""),
    ("", ""),
    ("42", "42"),
    ("<code>print('\\boxed{42}')</code>", "42"),
    *(("\\boxed{42}" + "." * count, "42") for count in (0, 89, 90, 91, 100, 290, 300)),
    *(("\\boxed{" + "4" * count + "}", "4" * count) for count in (90, 92, 93, 150)),
    *(("é" * count + "\\boxed{42}", "42") for count in (1, 95, 300)),
    ("\\boxed{" * 20 + "42" + "}" * 20, "42"),
    ("\\boxed{" * 10 + "42" + "}" * 9, "42"),
)


def load(folder: Path) -> ModuleType:
    """Loads verl's math_dapo from an unpacked wheel, or a folder of installed packages."""
    file = folder / "verl" / "utils" / "reward_score" / "math_dapo.py"
    spec = importlib.util.spec_from_file_location("math_dapo", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(count: int) -> Iterator[tuple[str, str]]:
    """Yields texts and golds: the corpus, those written by hand, and so many made of pieces."""
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        yield case["prediction"], case["gold"]
    yield from BY_HAND
    pick = random.Random(0)
    for _ in range(count):
        yield "".join(pick.choices(PIECES, k=pick.randint(1, 12))), pick.choice(GOLDS)


def main() -> None:
    """Writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, help="folder that holds the package verl")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--count", type=int, default=400, help="cases made of pieces (default 400)")
    arguments = parser.parse_args()
    math_dapo = load(arguments.verl)
    version = (arguments.verl / "verl" / "version" / "version").read_text(encoding="utf-8").strip()
    with arguments.out.open("w", encoding="utf-8") as file:
        for text, gold in cases(arguments.count):
            pred = _record(file, version, math_dapo, text, gold)
            if pred is not None and pred != gold:
                _record(file, version, math_dapo, text, pred)


def _record(file: TextIO, version: str, math_dapo: ModuleType, text: str, gold: str) -> str | None:
    result = math_dapo.compute_score(text, gold, strict_box_verify=True)
    pred: str | None = result["pred"]
    row = {"verl": version, "text": text, "gold": gold, "correct": result["score"] > 0, "extracted": pred}
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return pred


if __name__ == "__main__":
    main()
