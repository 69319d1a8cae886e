"""The figures of a run as pictures, PNG each; needs matplotlib (the extra ``report``). No untrusted text is drawn."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from retool_env.report.figures import Estimate, RunMetrics

_COLOURS: Final = {"correct": "#009e73", "wrong": "#d55e00", "all": "#0072b2", "vote": "#cc79a7"}
"""From Okabe and Ito's palette, which colour-blind readers can tell apart."""

Panel = Callable[[RunMetrics, Any], None]
"""Draws one picture on axes of matplotlib's."""

_LENGTHS: Final = ("response_tokens", "response_chars")
_NAMES: Final = {
    "response_tokens": "tokens of the response",
    "response_chars": "characters of the response",
    "code_lines": "lines of code of an attempt",
    "first_position": "share of the response before the first block",
    "blocks": "blocks of an attempt",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture.

    Attributes:
        alt: What it shows, in words.
        png: The picture.
    """

    alt: str
    png: bytes


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        return False
    return True


def plots(metrics: RunMetrics) -> Iterator[Plot]:
    """Yields the pictures of a run; none where nothing is counted or matplotlib is not installed."""
    if not metrics.counted or not has_matplotlib():
        return
    for alt, panel in _panels(metrics):
        yield Plot(alt, _drawn(panel, metrics))


def _panels(metrics: RunMetrics) -> Iterator[tuple[str, Panel]]:
    if metrics.settings["ks"]:
        yield "pass@k and maj@k by k, with intervals", _by_k
    yield "Number of problems by pass rate", _pass_rates
    length = next((name for name in _LENGTHS if name in metrics.distributions), None)
    if length is not None:
        yield "Response length of correct and wrong attempts", _histogram(length)
    if metrics.behaviour["all"].with_code:
        yield "Share of attempts with code, and pass rates, of correct and wrong attempts", _code_use
        yield "Position of the first block in the response", _histogram("first_position")
        yield "Lines of code of correct and wrong attempts", _histogram("code_lines")
        yield "Blocks of correct and wrong attempts", _histogram("blocks")
    yield "Why attempts ended", _ends


def _drawn(panel: Panel, metrics: RunMetrics) -> bytes:
    # A figure of its own and not pyplot's: pyplot keeps global state, and picks a display.
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure: Any = figure_module.Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.25)
    panel(metrics, axes)
    with closing(io.BytesIO()) as stream:
        # Without the version of matplotlib in it, so that the same figures make the same bytes.
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        return stream.getvalue()


def _by_k(metrics: RunMetrics, axes: Any) -> None:
    ks = list(metrics.settings["ks"])
    for name, colour, label in (("pass", "all", "pass@k"), ("maj", "vote", "maj@k")):
        found = {k: metrics.estimates[f"{name}@{k}"] for k in ks}
        _line(axes, {k: one for k, one in found.items() if one.value is not None}, _COLOURS[colour], label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("attempts k")
    axes.set_title("Right by number of attempts", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _line(axes: Any, found: Mapping[int, Estimate], colour: str, label: str) -> None:
    axes.plot(list(found), [one.value for one in found.values()], "o-", color=colour, label=label)
    band = {k: one for k, one in found.items() if one.low is not None}
    axes.fill_between(
        list(band), [one.low for one in band.values()], [one.high for one in band.values()], color=colour, alpha=0.15
    )


def _pass_rates(metrics: RunMetrics, axes: Any) -> None:
    rates = [one.pass_rate for one in metrics.per_problem if one.pass_rate is not None]
    edges = [step / 20 for step in range(21)]
    axes.hist(rates, bins=edges, color=_COLOURS["all"])
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of right attempts")
    axes.set_ylabel("problems")
    axes.set_title("Problems by pass rate", fontsize=10)


def _histogram(name: str) -> Panel:
    def draw(metrics: RunMetrics, axes: Any) -> None:
        found = metrics.distributions[name]
        # The last bin reaches to the largest value; it is drawn as wide as the others.
        edges = [*found.edges[:-1], 2 * found.edges[-2] - found.edges[-3]] if len(found.edges) > 2 else found.edges
        axes.stairs(found.correct, edges, fill=True, alpha=0.55, color=_COLOURS["correct"], label="correct")
        axes.stairs(found.wrong, edges, linewidth=1.6, color=_COLOURS["wrong"], label="wrong")
        if edges[-1] < found.edges[-1]:
            axes.set_xlabel("the last bin holds all that is more")
        axes.set_ylabel("attempts")
        axes.set_title(_NAMES[name].capitalize(), fontsize=10)
        axes.legend(fontsize=8, frameon=False)

    return draw


def _code_use(metrics: RunMetrics, axes: Any) -> None:
    rows = {
        "attempts\nwith code": "code_ratio",
        "blocks\nthat pass": "pass_rate",
        "last blocks\nthat pass": "last_pass_rate",
    }
    rows |= {"a block\nfailed": "failed_ratio", "of these,\nrepaired": "repaired_ratio"}
    for i, group in enumerate(("correct", "wrong")):
        heights = [getattr(metrics.behaviour[group], name) or 0.0 for name in rows.values()]
        places = [place + 0.4 * (i - 0.5) for place in range(len(rows))]
        axes.bar(places, heights, 0.38, color=_COLOURS[group], label=f"{group} attempts")
    axes.set_xticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_ylim(0, 1.25)  # room for the legend
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.set_title("How code was used", fontsize=10)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")


def _ends(metrics: RunMetrics, axes: Any) -> None:
    names = list(metrics.ended)[::-1]
    axes.barh(range(len(names)), [metrics.ended[name] for name in names], color=_COLOURS["all"])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlabel("attempts")
    axes.set_title("Why attempts ended", fontsize=10)
