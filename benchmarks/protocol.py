"""How long a protocol takes over 1 MB of hostile text, and the observation functions over as much output.

Run with ``python benchmarks/protocol.py``; ``--json FILE`` also writes the numbers. The target is 50 ms for each
repeated tag; the mixed rows are there to be seen. Times are the best of a few runs, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from retool_env.protocol import get_protocol
from retool_env.protocol.observation import clean, clip, neutralize
from retool_env.tools import ToolRegistry

N_CHARS = 1_000_000
TARGET_MS = 50.0
PROTOCOLS = ("code_tags", "tool_calls", "markdown")
TAGS = (
    *(
        "<code>",
        "</code>",
        "<interpreter>",
        "</interpreter>",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "<think></think>",
    ),
    *("<tool_call>", "</tool_call>", "<tool_response>", "<function=", "<function=f>", "<parameter=", "<parameter=p>"),
    *("\\boxed{", "{", "}", "`", "```", "```\n", "```python\n", "<", "\n", " "),
)
MIXED = (
    *(
        "<code></code>",
        "<think>\n<code>\n</code></think>\n",
        "\\boxed{1}",
        "\\boxed{{}",
        "<answer>1</answer>",
    ),
    *("<interpreter>\n</interpreter>\n", '<tool_call>{"name": "x"', '<tool_call>{"a":"</tool_call>'),
    "<function=code_interpreter>\n<parameter=code>\n1\n</parameter>\n</function>\n",
)
SPECIAL = ("<|im_start|>", "<|im_end|>", *(f"<|reserved_special_token_{number}|>" for number in range(250)))


def best_ms(function: Callable[[], object], n_runs: int) -> float:
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def repeated(unit: str) -> str:
    return (unit * (N_CHARS // len(unit) + 1))[:N_CHARS]


def measure(n_runs: int) -> list[dict[str, object]]:
    tools = ToolRegistry()
    rows: list[dict[str, object]] = []
    for unit in (*TAGS, *MIXED):
        text = repeated(unit)
        row: dict[str, object] = {"unit": unit, "has_target": unit in TAGS}
        for name in PROTOCOLS:
            protocol = get_protocol(name)
            row[name] = best_ms(lambda protocol=protocol, text=text: protocol.parse(text, tools), n_runs)
        rows.append(row)
    markers = tuple(tag for name in PROTOCOLS for tag in get_protocol(name).tags) + SPECIAL
    for unit in (
        "<|im_end|>",
        "<code>",
        "plain text\n",
        "\x1b[31mred\x1b[0m",
        "progress 1%\r",
        "<|reserved_special_token_",
    ):
        text = repeated(unit)
        rows.append(
            {
                "unit": unit,
                "has_target": True,
                "clean": best_ms(lambda text=text: clean(text), n_runs),
                "clip": best_ms(lambda text=text: clip(text, 2000), n_runs),
                "neutralize": best_ms(lambda text=text: neutralize(text, markers), n_runs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--runs", type=int, default=3, help="runs for each number; the best counts")
    options = parser.parse_args()
    rows = measure(options.runs)
    over = 0
    print(f"milliseconds for {N_CHARS:,} characters; Python {platform.python_version()}")
    for columns in (PROTOCOLS, ("clean", "clip", "neutralize")):
        print(f"\n{'repeated':34}" + "".join(f"{column:>12}" for column in columns))
        for row in rows:
            if columns[0] not in row:
                continue
            values = [float(str(row[column])) for column in columns]
            over += sum(value > TARGET_MS for value in values) if row["has_target"] else 0
            print(f"{ascii(row['unit'])[:33]:34}" + "".join(f"{value:12.2f}" for value in values))
    print(f"\nover the target of {TARGET_MS:g} ms: {over}")
    if options.json:
        options.json.write_text(json.dumps({"n_chars": N_CHARS, "target_ms": TARGET_MS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
