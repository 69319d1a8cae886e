"""The runner, with a scripted engine and the real sandbox."""

import asyncio
import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from retool_env.errors import ConfigurationError, PolicyError
from retool_env.problems import LazyProblems, Problem
from retool_env.protocol.base import EndReason
from retool_env.rollout.attempt import AttemptConfig, AttemptFaultError, make_codec
from retool_env.rollout.balancer import Balancer
from retool_env.rollout.engines import GenerateParams, Generation, ScriptedEngine, TurnLostError
from retool_env.rollout.engines.base import Engine
from retool_env.rollout.parquet import write_parquet
from retool_env.rollout.progress import Display, RunFigures, run_figures
from retool_env.rollout.runner import TooManyFaultsError, describe, run, sample_seed
from retool_env.rollout.store import TOKENS, TRAJECTORIES, RunFolder
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.trajectory import Trajectory, read_jsonl

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path

PROBLEMS = [Problem(id=f"p{number}", question=f"What is {number} * 7?", answer=str(number * 7)) for number in range(6)]
CONFIG = AttemptConfig(max_resumes=0, resume_pause_s=0.0)


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    return make_codec(load("small"), CONFIG)


@pytest.fixture(scope="module")
def sandbox(start_sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    with start_sandbox() as sandbox:
        yield sandbox


class Solver:
    """Computes, then answers; right or wrong as its seed says. Keeps count of what it was asked."""

    def __init__(self, codec: TokenCodec):
        self._codec = codec
        self.seeds: list[tuple[str, int | None]] = []
        self.running = self.most_running = 0
        self.fails: Callable[[str, int], Exception | None] = lambda problem_id, call: None

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        conversation = params.conversation
        assert conversation is not None
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0.002)
        finally:
            self.running -= 1
        number = int(conversation.problem.id[1:])
        if not conversation.exchanges:
            self.seeds.append((conversation.problem.id, params.seed))
            error = self.fails(conversation.problem.id, len(self.seeds))
            if error is not None:
                raise error
            text = f"<code>\nprint({number} * 7)\n</code>"
        else:
            assert params.seed is not None
            output = conversation.exchanges[-1].observation.text.split("\n")[2]
            text = f"<answer>\\boxed{{{output if params.seed % 2 else 'none'}}}</answer>"
        return await ScriptedEngine(self._codec, [text]).generate(prompt_ids, params)

    async def aclose(self) -> None:
        pass


def records(path: Path) -> list[Trajectory]:
    return list(read_jsonl(path / TRAJECTORIES))


def names(path: Path) -> list[str]:
    return [record.sample.id for record in records(path) if record.sample is not None]


def opened(path: Path, problems: Sequence[Problem] = PROBLEMS, **asked: Any) -> RunFolder:
    return RunFolder(path, problems, asked)


async def test_every_attempt_is_made_once_and_bounded(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    solver = Solver(codec)
    with opened(tmp_path) as folder:
        figures = await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=5, concurrency=4, seed=3)
    assert solver.most_running == 4
    made = records(tmp_path)
    assert sorted(names(tmp_path)) == sorted(f"{number}/{sample}" for number in range(6) for sample in range(5))
    assert {record.ended for record in made} == {EndReason.ANSWERED}
    correct = sum(record.outcome.correct for record in made if record.outcome)
    assert 0 < correct < 30
    assert (figures.total, figures.done, figures.correct, figures.faults) == (30, 30, correct, 0)
    assert figures.accuracy == correct / 30
    assert figures.turns == 60
    for record, line in zip(made, (tmp_path / TOKENS).read_text().splitlines(), strict=True):
        row, sample = json.loads(line), record.sample
        assert sample is not None
        assert row["id"] == sample.id
        assert len(row["prompt_ids"]) == sample.n_prompt
        assert sum(row["response_mask"]) == sample.n_sampled
        assert len(row["response_mask"]) == sample.n_sampled + sample.n_appended
        assert codec.decode(row["response_ids"]).endswith("</answer>")
    assert figures.tokens == sum(record.sample.n_sampled for record in made if record.sample)


async def test_seeds_do_not_depend_on_the_order(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    outcomes = []
    for concurrency in (1, 7):
        with opened(tmp_path / str(concurrency)) as folder:
            await run(PROBLEMS, Solver(codec), codec, sandbox, folder, CONFIG, n=3, concurrency=concurrency, seed=3)
        made = {r.sample.id: (r.sample.seed, r.text, r.outcome) for r in records(folder.path) if r.sample}
        outcomes.append(made)
    assert outcomes[0] == outcomes[1]
    seeds = {seed for seed, _, _ in outcomes[0].values()}
    assert len(seeds) == 18
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert sample_seed(3, 0, "p0", 0) != sample_seed(4, 0, "p0", 0)


async def test_two_problems_with_one_id_do_not_collide(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    class Same(LazyProblems):
        def _make(self, index: int) -> Problem:
            return PROBLEMS[3]

    problems = Same(2)
    with opened(tmp_path, problems) as folder:
        await run(problems, Solver(codec), codec, sandbox, folder, CONFIG, n=2)
    assert sorted(names(tmp_path)) == ["0/0", "0/1", "1/0", "1/1"]
    assert len({record.sample.seed for record in records(tmp_path) if record.sample}) == 4


async def test_a_run_that_is_cancelled_keeps_what_has_ended_and_goes_on_from_there(
    tmp_path: Path, codec: TokenCodec, sandbox: Sandbox
) -> None:
    solver = Solver(codec)
    figures = RunFigures()
    with opened(tmp_path) as folder:
        task = asyncio.create_task(
            run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=4, concurrency=3, figures=figures)
        )
        while figures.done < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    before = names(tmp_path)
    assert 8 <= len(before) < 24
    again = Solver(codec)
    with opened(tmp_path) as folder:
        second = await run(PROBLEMS, again, codec, sandbox, folder, CONFIG, n=4, concurrency=3)
    assert names(tmp_path)[: len(before)] == before
    assert Counter(names(tmp_path)) == Counter(f"{number}/{sample}" for number in range(6) for sample in range(4))
    assert len(again.seeds) == 24 - len(before)
    assert (second.before, second.done, second.finished) == (len(before), 24 - len(before), 24)
    assert second.correct_before + second.correct == sum(r.outcome.correct for r in records(tmp_path) if r.outcome)


@pytest.mark.parametrize("error", [TurnLostError("the server fell"), PolicyError("too long"), RuntimeError("a bug")])
async def test_a_fault_is_recorded_and_made_again_and_never_wrong(
    tmp_path: Path, codec: TokenCodec, sandbox: Sandbox, error: Exception
) -> None:
    solver = Solver(codec)
    solver.fails = lambda problem_id, call: error if problem_id == "p2" else None
    with opened(tmp_path) as folder:
        figures = await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=2)
    assert (figures.done, figures.faults) == (10, 2)
    faults = [record for record in records(tmp_path) if record.ended is EndReason.ABORTED]
    assert [record.problem.id for record in faults] == ["p2", "p2"]
    assert all(str(error) in record.sample.fault for record in faults if record.sample)
    assert figures.accuracy == figures.correct / 10
    with opened(tmp_path) as folder:
        second = await run(PROBLEMS, Solver(codec), codec, sandbox, folder, CONFIG, n=2)
    assert (second.before, second.done, second.faults) == (10, 2, 0)
    assert len(set(names(tmp_path))) == len(names(tmp_path)) == 12


async def test_nothing_but_faults_ends_the_run(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    solver = Solver(codec)
    solver.fails = lambda problem_id, call: PolicyError("no such model") if call != 2 else None
    with opened(tmp_path) as folder, pytest.raises(TooManyFaultsError, match=r"4 attempts in a row.*no such model"):
        await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=9, concurrency=1, max_faults_in_a_row=4)
    assert len(names(tmp_path)) == 6


async def test_what_would_fail_every_attempt_ends_the_run_at_once(
    tmp_path: Path, codec: TokenCodec, sandbox: Sandbox
) -> None:
    solver = Solver(codec)
    solver.fails = lambda problem_id, call: ConfigurationError("template")
    with opened(tmp_path) as folder:
        with pytest.raises(ConfigurationError, match="template"):
            await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=9, concurrency=2)
        with pytest.raises(ConfigurationError, match="concurrency"):
            await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, concurrency=0)
        solver.fails = lambda problem_id, call: TurnLostError("gone")
        config = CONFIG.model_copy(update={"on_fault": "raise"})
        with pytest.raises(AttemptFaultError, match="gone"):
            await run(PROBLEMS, solver, codec, sandbox, folder, config, n=9, concurrency=2)
    assert names(tmp_path) == []


async def test_problems_are_taken_when_they_are_needed_and_the_balancer_forgets_attempts(
    tmp_path: Path, codec: TokenCodec, sandbox: Sandbox
) -> None:
    taken: list[int] = []

    class Endless(LazyProblems):
        def _make(self, index: int) -> Problem:
            taken.append(index)
            return Problem(id=f"p{index}", question="?", answer="1")

    problems = Endless(10**9)
    figures = RunFigures()
    balancer = Balancer([Solver(codec), Solver(codec)])
    with opened(tmp_path, problems) as folder:
        task = asyncio.create_task(
            run(problems, balancer, codec, sandbox, folder, CONFIG, n=2, concurrency=4, figures=figures)
        )
        while figures.done < 10:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await balancer.aclose()
    assert max(taken) <= (figures.done + 4) / 2
    assert balancer._homes == {}


async def test_memory_does_not_grow_with_the_attempts(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    class Talker:
        """Writes a long answer, without code."""

        async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
            text = "so " * 1000 + "<answer>\\boxed{1}</answer>"
            return await ScriptedEngine(codec, [text]).generate(prompt_ids, params)

        async def aclose(self) -> None:
            pass

    engine: Engine = Talker()
    held = []
    tracemalloc.start()
    try:
        for n in (10, 20, 40):
            with opened(tmp_path / str(n)) as folder:
                await run(PROBLEMS[:2], engine, codec, sandbox, folder, CONFIG, n=n, concurrency=4)
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    one = (tmp_path / "40" / TOKENS).stat().st_size / 80
    assert held[2] - held[1] < 4 * one  # 40 more attempts, not even the size of a few of them


async def test_the_display_says_how_it_goes(
    tmp_path: Path, codec: TokenCodec, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    solver = Solver(codec)
    solver.fails = lambda problem_id, call: PolicyError("no") if call == 3 else None
    figures = RunFigures()
    console = Console(force_terminal=False, width=200)
    with opened(tmp_path) as folder:
        display = Display(figures, sandbox, console, every_s=0.05)
        async with display.shown():
            await run(PROBLEMS, solver, codec, sandbox, folder, CONFIG, n=8, concurrency=2, figures=figures)
            await asyncio.sleep(0.2)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"47 of 48 attempts, accuracy {100 * figures.accuracy:.1f} %, ")
    for part in (" %, ETA 0:00:00, ", " tokens/s, sandbox ", " %, time-outs ", ", faults 1"):
        assert part in last
    told = run_figures(figures, sandbox)
    assert (told["attempts"], told["faults"], told["turns"]) == (47, 1, 94)
    assert 0 <= told["engine_wait_share"] <= 1
    json.dumps(told, allow_nan=False)

    terminal = Console(force_terminal=True, width=160)
    async with Display(figures, sandbox, terminal).shown():
        await asyncio.sleep(0.1)
    assert "47/48" in capsys.readouterr().out


async def test_parquet_has_records_and_tokens_together(tmp_path: Path, codec: TokenCodec, sandbox: Sandbox) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra `datasets`)")
    with opened(tmp_path) as folder:
        await run(PROBLEMS, Solver(codec), codec, sandbox, folder, CONFIG, n=20)
    table = parquet.read_table(write_parquet(tmp_path))
    made = records(tmp_path)
    assert [Trajectory.from_json(line) for line in table["trajectory"].to_pylist()] == made
    assert table["id"].to_pylist() == names(tmp_path)
    tokens = [json.loads(line) for line in (tmp_path / TOKENS).read_text().splitlines()]
    assert table["response_ids"].to_pylist() == [row["response_ids"] for row in tokens]
    assert table["correct"].to_pylist() == [record.outcome.correct for record in made if record.outcome]


def test_what_is_described_is_what_decides() -> None:
    config = AttemptConfig(temperature=0.7, seed=3, turn_timeout_s=5.0)
    described = describe(config)
    assert described["temperature"] == 0.7
    assert described["episode"]["protocol"] == "code_tags"
    assert described["episode"]["reward"] == "tool_aware"
    assert not described.keys() & {"seed", "turn_timeout_s", "on_fault"}
    json.dumps(described)
