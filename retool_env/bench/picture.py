"""The report as one picture; needs matplotlib (the extra ``bench``)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from retool_env.bench.actions import PROTOCOLS
from retool_env.bench.rates import FACES, KINDS
from retool_env.bench.targets import OWN_US

_COLOURS: Final = dict(zip(PROTOCOLS, ("#0072b2", "#d55e00", "#009e73"), strict=True))
"""From Okabe and Ito's palette, which colour-blind readers can tell apart."""

_STYLES: Final = {"prose": "-", "program": "--", "answer": ":", "output": "-."}


def draw(report: dict[str, Any], path: Path) -> bool:
    """Writes the picture of what was measured; returns False where matplotlib is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        return False
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    panels = {"own": _own, "length": _length, "rates": _rates, "memory": _memory}
    drawn = [panel for topic, panel in panels.items() if topic in report]
    rows, columns = (len(drawn) + 1) // 2, min(2, len(drawn))
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(7.2 * columns, 4.6 * rows), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(drawn) :]:
        axes.axis("off")
    for axes, panel in zip(grid.flat, drawn, strict=False):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        panel(report, axes)
    machine = report["machine"]
    figure.suptitle(
        f"retool_env: {machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel'].split('-')[0]}, "
        f"Python {machine['python']}, tier {machine['tier']}",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _own(report: dict[str, Any], axes: Any) -> None:
    shapes = list(report["own"][PROTOCOLS[0]])
    for i, protocol in enumerate(PROTOCOLS):
        heights = [report["own"][protocol][shape]["own_p50_us"] for shape in shapes]
        places = [place + 0.27 * (i - 1) for place in range(len(shapes))]
        axes.bar(places, heights, 0.25, label=protocol, color=_COLOURS[protocol])
    axes.axhline(OWN_US, color="black", linewidth=0.9, linestyle="--", label="target")
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_ylabel("us, p50")
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
    axes.set_title("Our own time for a step at 10 kB, beside the sandbox", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize=8, frameon=False)


def _length(report: dict[str, Any], axes: Any) -> None:
    for protocol, shapes in report["length"].items():
        for shape, figures in shapes.items():
            axes.plot(
                figures["chars"],
                figures["own_best_us"],
                _STYLES[shape],
                color=_COLOURS[protocol],
                label=f"{protocol}, {shape}",
            )
    longest = figures["chars"][-1]
    top = max(figures["own_best_us"][-1] for shapes in report["length"].values() for figures in shapes.values())
    ends = (longest / 8, longest)
    axes.plot(ends, (top / 4, top * 2), color="black", linewidth=0.9, label="slope of linear time")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("characters of text")
    axes.set_ylabel("us, best")
    axes.set_title("Our own time for a step, by length", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, ncols=2, frameon=False)


def _rates(report: dict[str, Any], axes: Any) -> None:
    faces = [face for face in FACES if "unsupported" not in report["rates"][face]]
    groups = [(face, kind) for face in faces for kind in KINDS]
    for i, protocol in enumerate(PROTOCOLS):
        heights = [report["rates"][face][protocol][kind]["turns_per_s"] for face, kind in groups]
        places = [place + 0.27 * (i - 1) for place in range(len(groups))]
        axes.bar(places, heights, 0.25, label=protocol, color=_COLOURS[protocol])
    names = [f"{face}\n{'code' if kind == 'code' else 'no code'}" for face, kind in groups]
    axes.set_xticks(range(len(groups)), names, fontsize=8.5)
    axes.set_yscale("log")
    axes.set_ylabel("turns a second")
    envs = report["rates"]["vector"].get("envs", 1)
    axes.set_title(f"Turns a second; vector and group of {envs}", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize=8, frameon=False)


def _memory(report: dict[str, Any], axes: Any) -> None:
    faces = [face for face in FACES if "unsupported" not in report["memory"][face]]
    stages = {"made_kb": "made", "reset_kb": "in an episode", "ended_kb": "at the end of one of 10 kB"}
    for i, (key, name) in enumerate(stages.items()):
        places = [place + 0.27 * (i - 1) for place in range(len(faces))]
        drawn = axes.bar(places, [report["memory"][face][key] for face in faces], 0.25, label=name)
        axes.bar_label(drawn, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(faces)), faces)
    axes.set_ylabel("KiB of Python objects")
    axes.set_title("Memory of one environment", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
