"""Measures what the rollout loop itself costs: the GPU must never wait for us.

    python benchmarks/rollout.py --tokenizer DIR     about two minutes; DIR as scripts/fetch_tokenizers.sh makes it
    python benchmarks/rollout.py --quick             few attempts: does it run?
    python benchmarks/rollout.py --profile           also where the time goes

512 attempts at the same time through ``retool_env.rollout.runner``, with the real sandbox, the real tokenizer and the
real files, against an engine that only waits: for each turn as long as a server would take, the turns' lengths being
log-normal. Reported are the CPU time of the event loop's thread for a turn, how late the loop comes to what is due, and
the share of the time that attempts wait for the sandbox; then, whether a turn costs more in a longer attempt, and what
calling a server over HTTP takes. What the engine's waits cost by themselves is measured before and taken off, as what
the clock's ticks cost is: with a server, that is a part of the call.

Prints tables and writes ``rollout.json``, which ``rollout_bench/__init__.py`` documents. Meant for a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from pathlib import Path
from typing import Any

from grading_bench import machine
from rich.console import Console
from rollout_bench import calls, measure, tables, targets

from retool_env.config import EpisodeConfig
from retool_env.rollout.attempt import AttemptConfig, make_codec
from retool_env.rollout.byte_tokenizer import ByteTokenizer
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few attempts: to see that it runs, not for figures")
    parser.add_argument("--concurrency", type=int, help="attempts at the same time (default 512)")
    parser.add_argument("--problems", type=int, help="problems, with 16 attempts each (default 64)")
    parser.add_argument("--scale", type=float, help="a turn takes this part of a server's time (default 0.5)")
    parser.add_argument("--tokenizer", help="folder of a tokenizer (default: a token for each byte)")
    parser.add_argument("--protocol", default="code_tags", choices=("code_tags", "markdown"))
    parser.add_argument("--tier", default="auto", help="nsjail, landlock, or the better one that runs (auto)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="show where the time goes (which makes it longer)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for the file (default runs/bench)")
    options = parser.parse_args()
    asked = {name: value for name in ("concurrency", "problems", "scale") if (value := getattr(options, name))}
    plan = measure.replace(measure.QUICK if options.quick else measure.Plan(), **asked)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    measure.allow_open_files()
    report: dict[str, Any] = {"schema": 1, "machine": machine.facts()}
    report["options"] = {
        "quick": options.quick,
        "concurrency": plan.concurrency,
        "problems": plan.problems,
        "n": plan.n,
        "scale": plan.scale,
        "seed": options.seed,
        "tokenizer": None if options.tokenizer is None else Path(options.tokenizer).name,
        "protocol": options.protocol,
    }
    tables.show_machine(report, console)
    codec = _codec(options.tokenizer, options.protocol)
    with Sandbox(tier=options.tier) as sandbox:
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        with console.status("measuring a run"):
            report["rollout"] = measure.rollout(codec, sandbox, plan, options.seed, options.protocol)
        profile.disable()
        with console.status("measuring growth"):
            report["growth"] = measure.growth(codec, sandbox, plan, options.seed, options.protocol)
    with console.status("measuring calls of a server"):
        report["calls"] = calls.measure((8,), (1000,)) if options.quick else calls.measure()
    report["targets"] = targets.judge(report)
    tables.show(report, console)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rollout.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {options.out}")


def _codec(folder: str | None, protocol: str) -> TokenCodec:
    config = AttemptConfig(episode=EpisodeConfig(protocol=protocol))
    if folder is None:
        return make_codec(ByteTokenizer(), config)
    from transformers import AutoTokenizer

    return make_codec(AutoTokenizer.from_pretrained(folder), config)


if __name__ == "__main__":
    main()
