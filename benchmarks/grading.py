"""Median time of one grading, beside math-verify called in process. Run: ``python benchmarks/grading.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from retool_env.grading import grade_answer, shutdown

INTEGER = [("204", "204"), ("204", "205"), ("033", "33"), ("1,234", "1234")]
LATEX = [
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\sqrt{17}", r"\sqrt{17}"),
    (r"\frac{\pi}{6}", r"\frac{\pi}{3}"),
    (r"(1, \frac{9}{2})", r"(1, 4.5)"),
]


def p50_us(call: Callable[[str, str], object], pairs: list[tuple[str, str]], rounds: int) -> float:
    for pair in pairs:
        call(*pair)
    times = []
    for _ in range(rounds):
        for answer, gold in pairs:
            started = time.perf_counter()
            call(answer, gold)
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def math_verify(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    return verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}"))


def main() -> None:
    print(f"{'':12}{'retool_env':>14}{'math-verify':>14}   (p50, microseconds)")
    for name, pairs, rounds in (("integer", INTEGER, 2000), ("LaTeX", LATEX, 100)):
        ours, theirs = p50_us(grade_answer, pairs, rounds), p50_us(math_verify, pairs, max(rounds // 20, 20))
        print(f"{name:12}{ours:14.1f}{theirs:14.1f}")
    shutdown()


if __name__ == "__main__":
    main()
