"""Measures the grader beside what others grade with: math-verify, verl's math_dapo, and the text of the last box.

    python benchmarks/grading.py                          everything, about five minutes
    python benchmarks/grading.py --quick                  the same with few repetitions: does it run?
    python benchmarks/grading.py --only latency corpus    some of it
    python benchmarks/grading.py --verl PYTHON            verl is installed for another Python, or unpacked in a folder
    python benchmarks/grading.py --pairs math_verify-0.9.0.tar.gz     also the pairs of math-verify's own tests

The time of one grading, for integers and for LaTeX; right and wrong verdicts on
the public cases of ``tests/cases/grading.jsonl``; and thousands of answers of which some hang and some exhaust the
memory. Each grader runs in a process of its own, which is killed where it hangs; timings are taken in that process and
interleaved, so that all see the same machine. Each figure stands beside its target.

For the pairs: ``pip download --no-deps --no-binary :all: math-verify``. Only their labels are read, nothing is run.

Prints tables and writes ``grading.json``, which ``grading_bench/__init__.py`` documents. Meant for a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading_bench import children, corpus, graders, latency, machine, many, tables, targets
from rich.console import Console

SECTIONS = ("latency", "corpus", "pairs", "many")


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: Of each kind of answer, for the latency.
        block: Answers in a round.
        limit_s: Seconds after which a grader is killed.
        answers: How many are graded in a row.
        bombs: Those that hang; as many exhaust the memory.
        many_limit_s: Seconds that one comparison may take there.
    """

    rounds: int = 40
    block: int = 25
    limit_s: float = 10.0
    answers: int = 10_000
    bombs: int = 100
    many_limit_s: float = 0.5


QUICK = Plan(rounds=2, block=6, limit_s=2.0, answers=120, bombs=4, many_limit_s=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=SECTIONS,
        metavar="SECTION",
        help="some of: " + ", ".join(SECTIONS),
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it runs, not for figures")
    parser.add_argument(
        "--verl", metavar="PLACE", help="a folder with verl in it, or a Python that has it (default: this one)"
    )
    parser.add_argument(
        "--pairs", type=Path, metavar="PLACE", help="math-verify's source distribution: the .tar.gz, or a folder"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder for the files (default runs/bench)"
    )
    options = parser.parse_args()
    try:
        math_dapo = graders.find_math_dapo(options.verl)
        pairs = None if options.pairs is None else corpus.pairs(options.pairs)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    plan = QUICK if options.quick else Plan()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    report = _measure(plan, tuple(options.only), math_dapo, pairs, console)
    report["options"] = {
        "quick": options.quick,
        "sections": list(options.only),
        "limit_s": plan.limit_s,
        "many_limit_s": plan.many_limit_s,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "grading.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {options.out}")


def _measure(
    plan: Plan, sections: tuple[str, ...], math_dapo: Path | None, pairs: list[corpus.Case] | None, console: Console
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "schema": 1,
        "machine": machine.facts(),
        "graders": {name: graders.describe(name, math_dapo) for name in graders.NAMES},
    }
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "latency": lambda: _latency(plan, math_dapo),
        "corpus": lambda: _judge(corpus.public_cases(), plan, math_dapo),
        "pairs": lambda: _pairs(plan, math_dapo, pairs),
        "many": lambda: many.measure(plan.answers, plan.bombs, plan.many_limit_s),
    }
    tables.show_machine(report, console)
    for section in sections:
        with console.status(f"measuring {section}"):
            report[section] = measures[section]()
        report["targets"] = targets.judge(report)
        tables.show(section, report, console)
    return report


def _latency(plan: Plan, math_dapo: Path | None) -> dict[str, Any]:
    with ExitStack() as stack:
        return latency.measure(children.start(graders.TIMED, math_dapo, stack), plan.rounds, plan.block)


def _judge(cases: list[corpus.Case], plan: Plan, math_dapo: Path | None) -> dict[str, Any]:
    with ExitStack() as stack:
        return corpus.measure(children.start(graders.NAMES, math_dapo, stack), cases, plan.limit_s)


def _pairs(plan: Plan, math_dapo: Path | None, pairs: list[corpus.Case] | None) -> dict[str, Any]:
    if pairs is None:
        return {"unsupported": "math-verify's tests are not installed with it: give its source distribution as --pairs"}
    part = _judge(pairs, plan, math_dapo)
    return {name: counts | {"plain": corpus.right_of_plain(pairs, counts)} for name, counts in part.items()}


if __name__ == "__main__":
    main()
