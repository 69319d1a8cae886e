"""Fails unless tests of every named sandbox tier ran and passed: a skipped security test looks like a passed one.

    check_tiers.py JUNIT_XML TIER...

Reads pytest's ``--junitxml`` report, so it does not depend on the suite's own options. A test belongs to a tier when
the tier's name is one of its parameters: ``test_attack[nsjail-fork_bomb]``.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter


def count(report: str, tier: str) -> Counter[str]:
    """Counts the outcomes ("passed", "skipped", "failure", "error") of a tier's tests in a JUnit report file."""
    outcomes: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        parameters = re.search(r"\[(.*)\]$", case.get("name", ""), flags=re.DOTALL)
        if parameters and tier in parameters.group(1).split("-"):
            marks = [child.tag for child in case if child.tag in ("skipped", "failure", "error")]
            outcomes[marks[0] if marks else "passed"] += 1
    return outcomes


def main(report: str, *tiers: str) -> int:
    """Prints a line for each tier; returns the exit code."""
    untested = []
    for tier in tiers:
        outcomes = count(report, tier)
        print(f"tier {tier}: " + (", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())) or "no test"))
        if not outcomes["passed"]:
            untested.append(tier)
    if untested:
        print(f"no test of these tiers ran and passed: {', '.join(untested)}", file=sys.stderr)
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
