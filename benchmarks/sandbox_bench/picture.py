"""The report as one picture."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from .programs import PROGRAMS

_WAYS = {
    "sandbox": "#0072b2",
    "sandbox, on demand": "#56b4e9",
    "sandbox, no light zygote": "#009e73",
    "sandbox, immortal": "#e69f00",
    "subprocess": "#666666",
}
_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#666666", "#cc79a7", "#d55e00")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def draw(report: dict[str, Any], path: Path) -> bool:
    """Writes the picture; returns False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {"latency": _latency, "throughput": _throughput, "sessions": _memory, "forks": _forks}
    report = report | ({"forks": True} if "latency" in report or "sessions" in report else {})
    drawn = [panel for topic, panel in panels.items() if topic in report]
    if not drawn:
        return True
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
        f"retool_env sandbox, tier {machine['tier']}: {machine['cores']} cores of {machine['cpu']}, "
        f"Linux {machine['kernel'].split('-')[0]}, Python {machine['python']}",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _latency(report: dict[str, Any], axes: Any) -> None:
    ways = dict(sorted(report["latency"]["ways"].items(), key=lambda item: not item[0].startswith("sandbox")))
    width, others = 0.84 / len(ways), cycle(("#8c6d8c", "#b79ab7", "#d9c9d9"))
    for i, (way, programs) in enumerate(ways.items()):
        places = [place + i * width for place in range(len(PROGRAMS))]
        heights = [programs[name]["p50_ms"] for name in PROGRAMS]
        colour = _WAYS.get(way) or next(others)
        axes.bar(places, heights, width * 0.94, label=way, color=colour)
    for kind, style in (("small", ":"), ("loaded", "--")):
        floor = report["latency"]["fork_floor"][kind]["p50_ms"]
        axes.axhline(floor, color="black", linewidth=0.9, linestyle=style, label=f"bare fork, {kind} process")
    axes.set_yscale("log")
    axes.set_ylabel("p50, ms")
    axes.set_title("One execution, idle machine (below: fresh Python / sandbox)", fontsize=10)
    shift = width * (len(ways) - 1) / 2
    axes.set_xticks([place + shift for place in range(len(PROGRAMS))], _described(ways["sandbox"]))
    axes.grid(axis="y", alpha=0.25)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 2, high * 12)
    axes.legend(fontsize=7.5, ncols=3, loc="upper left", frameon=False)


def _described(programs: dict[str, Any]) -> list[str]:
    kinds = {"P1": "print", "P2": "sympy expand", "P3": "sympy solve", "P4": "numpy eigvals"}
    return [f"{name}, {kinds[name]}\n{programs[name]['ratio']:.0f}x" for name in PROGRAMS]


def _throughput(report: dict[str, Any], axes: Any) -> None:
    per_core = report["throughput"]["per_core"]
    colours = dict(zip(per_core["subprocess"], (_COLOURS[0], _COLOURS[2], _COLOURS[6]), strict=False))
    styles = {"sandbox": "-", "sandbox, no light zygote": "--", "sandbox, immortal": ":"}
    for way, style in styles.items():
        for name, rates in per_core.get(way, {}).items():
            levels = sorted(rates, key=int)
            axes.plot(
                [int(level) for level in levels],
                [rates[level] for level in levels],
                style,
                marker="o",
                markersize=4,
                color=colours[name],
                label=f"{name}, {way}",
            )
    for name, rates in per_core["subprocess"].items():
        axes.axhline(rates["cores"], color=colours[name], linewidth=0.9, alpha=0.6)
        axes.annotate(
            f"{name}, fresh Pythons",
            (1, rates["cores"]),
            (0, 2),
            textcoords="offset points",
            color=colours[name],
            fontsize=7.5,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    levels = sorted(
        {int(level) for p in per_core.values() for rates in p.values() for level in rates if level != "cores"}
    )
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()
    axes.set_xlim(left=min(0.9, levels[0] * 0.9))
    axes.set_xlabel("programs in flight")
    axes.set_ylabel("executions a second and core")
    axes.set_title("Throughput", fontsize=10)
    axes.grid(alpha=0.25)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)
    axes.legend(fontsize=7.5, ncols=2, loc="upper left", frameon=False)


def _memory(report: dict[str, Any], axes: Any) -> None:
    sessions = report["sessions"]
    bars: list[tuple[str, float, str]] = []
    for kind, colour, limits in (("plain", _COLOURS[0], (1.3, 4.5)), ("immortal", _COLOURS[1], (0.9, 2.6))):
        memory = sessions["memory_mb"][kind]
        if "unsupported" not in memory:
            prefix = "" if kind == "plain" else "immortal, "
            for when, text, limit in zip(("idle", "after_sympy"), ("idle", "after P2"), limits, strict=True):
                line = len(bars)
                label = None if line else "target"
                axes.vlines(limit, line - 0.42, line + 0.42, color="black", linewidth=1.6, label=label)
                bars.append((f"{prefix}{text}", memory[when]["median"], colour))
    many = sessions["many"]
    if many["private_mb"] is not None:
        bars.append((f"idle, one of {many['open']}", many["private_mb"], _COLOURS[2]))
        bars.append(("its page tables", many["page_tables_mb"], _COLOURS[2]))
    _horizontal(axes, bars, "MB")
    axes.set_title("Memory that a live session has to itself (median)", fontsize=10)
    axes.legend(fontsize=8, loc="lower right", frameon=False)


def _forks(report: dict[str, Any], axes: Any) -> None:
    bars: list[tuple[str, float, str]] = []
    if "latency" in report:
        floors = report["latency"]["fork_floor"]
        bars.append(("bare fork, exit and wait:\na small process", floors["small"]["p50_ms"], _COLOURS[4]))
        bars.append(("the same:\none with sympy and numpy", floors["loaded"]["p50_ms"], _COLOURS[4]))
    if "sessions" in report:
        sessions = report["sessions"]
        for key, text in (
            ("fork", "Session.fork\nafter P2"),
            ("open", "open a session,\nfirst turn"),
            ("turn", "its next turn"),
        ):
            if "unsupported" not in sessions[key]:
                bars.append((text, sessions[key]["p50_ms"], _COLOURS[0]))
    for key, text in (("runaway", "runaway code:\nkill to gone"), ("fork_bomb", "fork and thread bomb:\nkill to gone")):
        if "unsupported" not in report.get("kill", {}).get(key, {"unsupported": ""}):
            bars.append((text, report["kill"][key]["p50_ms"], _COLOURS[6]))
    _horizontal(axes, bars, "ms")
    axes.set_title("Forks, turns and kills (p50)", fontsize=10)


def _horizontal(axes: Any, bars: list[tuple[str, float, str]], unit: str) -> None:
    names, values, colours = zip(*bars, strict=True) if bars else ((), (), ())
    drawn = axes.barh(range(len(names)), values, color=colours, height=0.62)
    axes.bar_label(drawn, [f"{value:.2f} {unit}" for value in values], fontsize=8, padding=3)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_xlim(0, max(values, default=1) * 1.18)
    axes.grid(axis="x", alpha=0.25)
