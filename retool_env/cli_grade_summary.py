"""What ``retool grade`` counts, and the tables it shows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from retool_env.cli_grade_rows import Row, Unread
from retool_env.protocol.observation import clean

if TYPE_CHECKING:
    from retool_env.grading import Grade

_MAX_EXAMPLES: Final = 3
_MAX_CHARS: Final = 60
_VERDICTS: Final = {True: "correct", False: "wrong", None: "timed out"}


@dataclass(slots=True)
class MethodCount:
    """What one layer of the grader decided.

    Attributes:
        rows: Rows.
        correct: The correct ones among them.
        elapsed_s: Seconds that they took, all together.
    """

    rows: int = 0
    correct: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """A row on which the old score and the grade differ."""

    number: int
    gold: str
    answer: str | None
    reason: str


@dataclass(slots=True)
class Tally:
    """Counts of a run.

    Attributes:
        compared: There is an old score to compare with.
        bad: Rows that could not be read.
        left_out: Rows with nothing to grade.
        methods: The graded rows, by the layer that decided.
        timed_out: Rows without a verdict, because the comparison hung or ran out of memory. Not among the graded ones.
        verdicts: Rows with an old score: how many for each pair of old verdict and new one (None: timed out).
        unscored: Rows without an old score.
        examples: The first rows for each pair of verdicts that differ.
    """

    compared: bool = False
    bad: int = 0
    left_out: int = 0
    methods: dict[str, MethodCount] = field(default_factory=dict)
    timed_out: MethodCount = field(default_factory=MethodCount)
    verdicts: Counter[tuple[bool, bool | None]] = field(default_factory=Counter)
    unscored: int = 0
    examples: dict[tuple[bool, bool | None], list[Example]] = field(default_factory=dict)

    @property
    def graded(self) -> int:
        """Rows with a verdict."""
        return sum(count.rows for count in self.methods.values())

    @property
    def correct(self) -> int:
        """Rows that are correct."""
        return sum(count.correct for count in self.methods.values())

    @property
    def rows(self) -> int:
        """Rows that were read or should have been."""
        return self.graded + self.timed_out.rows + self.left_out + self.bad

    def add(self, row: Row, grade: Grade) -> None:
        """Counts a row with its grade."""
        count = self.timed_out if grade.timed_out else self.methods.setdefault(grade.method, MethodCount())
        count.rows += 1
        count.correct += grade.correct
        count.elapsed_s += grade.elapsed_s
        if self.compared:
            self._compare(row, grade)

    def pass_over(self, row: Unread) -> None:
        """Counts a row that is not graded."""
        if row.bad:
            self.bad += 1
        else:
            self.left_out += 1

    def _compare(self, row: Row, grade: Grade) -> None:
        if row.was_correct is None:
            self.unscored += 1
            return
        verdicts = (row.was_correct, None if grade.timed_out else grade.correct)
        self.verdicts[verdicts] += 1
        if verdicts[0] != verdicts[1]:
            examples = self.examples.setdefault(verdicts, [])
            if len(examples) < _MAX_EXAMPLES:
                examples.append(Example(row.number, row.gold, grade.answer, grade.reason))

    def tables(self, preset: str, elapsed_s: float) -> Iterator[Table]:
        """Yields what is shown: the summary, the methods and, with an old score, the comparison.

        Args:
            preset: How it was graded.
            elapsed_s: Seconds of the whole run.
        """
        yield self._summary(preset, elapsed_s)
        if self.graded + self.timed_out.rows:
            yield self._by_method()
        if self.compared:
            yield self._comparison()
            if self.examples:
                yield self._disagreements()

    def _summary(self, preset: str, elapsed_s: float) -> Table:
        table = Table(show_header=False)
        table.add_column(style="bold")
        table.add_column()
        none = self.methods.get("none", MethodCount()).rows
        accuracy = f"{100 * self.correct / self.graded:.1f} %" if self.graded else "n/a"
        for name, value in (
            ("rows", str(self.rows)),
            ("graded", f"{self.graded} (preset {preset})"),
            ("correct", str(self.correct)),
            ("accuracy", f"{accuracy} (of the graded)"),
            ("no answer", f"{none} (graded as wrong)"),
            ("timed out", f"{self.timed_out.rows} (no verdict)"),
            ("left out", f"{self.left_out} (unfinished, or ended by a fault)"),
            ("could not be read", str(self.bad)),
            ("total time", f"{elapsed_s:.1f} s"),
        ):
            table.add_row(Text(name), Text(value))
        return table

    def _by_method(self) -> Table:
        table = Table()
        for name in ("method", "rows", "correct", "seconds"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for method, count in sorted(self.methods.items()):
            table.add_row(Text(method), str(count.rows), str(count.correct), f"{count.elapsed_s:.2f}")
        if self.timed_out.rows:
            table.add_row("timed out", str(self.timed_out.rows), "", f"{self.timed_out.elapsed_s:.2f}")
        return table

    def _comparison(self) -> Table:
        scored = self.verdicts.total()
        agree = sum(count for (old, new), count in self.verdicts.items() if old == new)
        table = Table(title=f"agreement with the old score: {agree} of {scored}", title_justify="left", min_width=60)
        table.add_column("old score")
        for name in _VERDICTS.values():
            table.add_column(name, justify="right")
        for old in (True, False):
            table.add_row(_VERDICTS[old], *(str(self.verdicts[old, new]) for new in _VERDICTS))
        if self.unscored:
            table.add_row(f"none ({self.unscored} rows)", *[""] * len(_VERDICTS))
        return table

    def _disagreements(self) -> Table:
        table = Table(title="rows that disagree, the first ones", title_justify="left")
        for name in ("row", "old", "now", "gold", "answer", "reason"):
            table.add_column(name, overflow="fold")
        for (old, new), examples in self.examples.items():
            for example in examples:
                shown = (example.gold, "" if example.answer is None else example.answer, example.reason)
                cells = (Text(_short(text)) for text in shown)
                table.add_row(str(example.number), _VERDICTS[old], _VERDICTS[new], *cells)
        return table


def _short(text: str) -> str:
    """The text without what steers a terminal, on one line and cut."""
    line = " ".join(clean(text[: 10 * _MAX_CHARS]).split())
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 1] + "…"
