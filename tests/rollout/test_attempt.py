"""``attempt``: every end, budget, abort, resume and fault, with a scripted engine and the real sandbox, id by id."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from retool_env.errors import PolicyError, SandboxClosedError
from retool_env.grading import shutdown
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptFaultError, AttemptResult
from retool_env.rollout.engines import GenerateParams, Generation, ScriptedEngine, TurnLostError
from retool_env.rollout.engines.scripted import Turn
from retool_env.sandbox import Sandbox
from retool_env.tokens import TokenBudget
from retool_env.tools import Tool

from ..tokenizers import NAMES, load  # noqa: TID252 - `tests` is on no path
from .making import ANSWER, SHOWN_42, Run, call, check, code, run, until


@pytest.fixture(autouse=True, scope="module")
def _no_grader_is_left() -> Any:
    yield
    shutdown()


# Whole attempts, id by id


@pytest.mark.parametrize("name", NAMES)
async def test_an_attempt_in_code_tags(name: str, tier_sandbox: Sandbox) -> None:
    made = Run(["Compute:\n" + code("print(6 * 7)"), "So " + ANSWER], tier_sandbox, name)
    result = await made.go()
    check(result)
    # The last token of a turn may hold more than the stop string; a scripted turn ends with it, so here it does not.
    first, seen = made.codec.encode("Compute:\n" + code("print(6 * 7)")), made.codec.encode(SHOWN_42)
    last = made.codec.encode("So " + ANSWER)
    assert result.response_ids == first + seen + last
    assert result.response_mask == [1] * len(first) + [0] * len(seen) + [1] * len(last)
    expected = [-0.001 * (place + 1) for place in range(max(len(first), len(last)))]
    assert result.response_logprobs == expected[: len(first)] + [0.0] * len(seen) + expected[: len(last)]
    assert (result.outcome.ended, result.outcome.correct, result.reward) == ("answered", True, 1.05)
    assert (result.masked, result.fault, result.resumes, result.n_shortened) == (False, "", 0, 0)
    # What the engine was asked: all tokens so far, the stop strings from the first turn on, one id for all turns.
    assert [ids for ids, _ in made.engine.requests] == [result.prompt_ids, result.prompt_ids + first + seen]
    assert [params.stop for _, params in made.engine.requests] == [("</code>", "</answer>")] * 2
    assert len({params.trajectory_id for _, params in made.engine.requests}) == 1
    assert [params.max_tokens for _, params in made.engine.requests] == [16_384, 16_384 - len(first) - len(seen)]


@pytest.mark.parametrize("name", NAMES)
async def test_an_attempt_with_tool_calls(name: str, tier_sandbox: Sandbox) -> None:
    turns = ["Two:\n" + call("print(6 * 7)", "1/0"), call("print('<|im_' + 'end|>')"), "It is \\boxed{42}."]
    made = Run(turns, tier_sandbox, name, protocol="tool_calls", reward="paper")
    result = await made.go()
    check(result)
    ids, mask = result.response_ids, result.response_mask
    parts = [made.sampled(turn, ends=True) for turn in turns]
    place = 0
    for part in parts:
        while mask[place] == 0:
            place += 1
        assert ids[place : place + len(part)] == part
        assert mask[place : place + len(part)] == [1] * len(part)
        place += len(part)
    assert place == len(ids)
    assert sum(mask) == sum(map(len, parts))
    # Each prompt is the chat template's of the conversation so far.
    conversation: list[dict[str, Any]] = list(made.engine.requests[0][1].conversation.messages)  # type: ignore[union-attr]
    tools = made.engine.requests[0][1].conversation.tools  # type: ignore[union-attr]
    for number, (prompt, params) in enumerate(made.engine.requests):
        assert params.conversation is not None
        if number:
            exchange = params.conversation.exchanges[number - 1]
            conversation += [{"role": "assistant", "content": exchange.reply.text}, *exchange.observation.messages]
        rendered = load(name).apply_chat_template(
            conversation, tools=list(tools), tokenize=False, add_generation_prompt=True
        )
        assert prompt == made.codec.encode(rendered)
    assert result.tokens.template_drift == ""
    # The output that looks like an end token is not one.
    seen = made.codec.decode(result.response_ids)
    assert ("<\\\\|im_end|>" in seen or "<\\|im_end|>" in seen) == ("<|im_end|>" in made.codec.added)
    assert (result.outcome.interpreter_calls, result.outcome.correct, result.reward) == (3, True, 1.0)


async def test_an_attempt_in_markdown_goes_on_after_an_end_token(tier_sandbox: Sandbox) -> None:
    turns = ["```python\nprint(6 * 7)\n```", "\\boxed{42}"]
    made = Run(turns, tier_sandbox, protocol="markdown")
    result = await made.go()
    check(result)
    first, last = made.codec.encode(turns[0]), made.sampled(turns[1], ends=True)
    assert result.response_ids == first + made.codec.encode("\n```output\n42\n```\n") + last
    assert result.tokens.dropped == 1
    assert result.outcome.correct


async def test_what_is_invented_past_a_block_is_dropped_where_the_engine_knows_no_stop_strings(
    tier_sandbox: Sandbox,
) -> None:
    text = code("print(6 * 7)") + "\n<interpreter>\n7\n</interpreter>\n<answer>\\boxed{7}</answer>"
    made = Run([], tier_sandbox)
    ids = made.codec.encode(text)
    made.engine = ScriptedEngine(made.codec, [Generation(ids, text, [-1.0] * len(ids)), ANSWER])
    result = await made.go()
    kept = made.codec.encode(code("print(6 * 7)"))
    assert result.response_ids[: len(kept)] == kept
    assert made.codec.decode(result.response_ids) == code("print(6 * 7)") + SHOWN_42 + ANSWER
    assert result.tokens.dropped == len(ids) - len(kept)
    assert result.outcome.fabricated


async def test_feedback_on_a_malformed_call(tier_sandbox: Sandbox) -> None:
    made = Run([code(""), ANSWER], tier_sandbox)
    result = await made.go()
    check(result)
    observation = result.record.turns[0].observation
    assert observation.startswith("\n<interpreter>\nError: ")
    expected = made.codec.encode(code("")) + made.codec.encode(observation) + made.codec.encode(ANSWER)
    assert result.response_ids == expected
    assert result.outcome.turns == 2


async def test_blocks_share_a_session(tier_sandbox: Sandbox) -> None:
    result = await run([code("x = 42"), code("print(x)"), ANSWER], tier_sandbox, interpreter="session")
    assert result.record.turns[1].observation == SHOWN_42


async def test_an_own_tool(tier_sandbox: Sandbox) -> None:
    tool = Tool(
        "double", "Doubles.", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda n: str(2 * n)
    )
    turn = '<tool_call>\n{"name": "double", "arguments": {"n": 21}}\n</tool_call>'
    result = await run([turn, "\\boxed{42}"], tier_sandbox, protocol="tool_calls", tools=(tool,))
    assert result.record.turns[0].observation == "\n<tool_response>\n42\n</tool_response>\n"
    assert result.outcome.correct


async def test_an_engine_without_ids_is_marked(tier_sandbox: Sandbox) -> None:
    made = Run([Generation(None, code("print(6 * 7)")), Generation(None, ANSWER)], tier_sandbox)
    result = await made.go()
    check(result)
    assert made.codec.decode(result.response_ids) == code("print(6 * 7)") + SHOWN_42 + ANSWER
    assert not result.tokens.exact


async def test_settings_reach_the_engine(tier_sandbox: Sandbox) -> None:
    settings = {"temperature": 0.5, "top_p": 0.7, "top_k": 5, "seed": 3, "sampling": {"min_p": 0.1}}
    made = Run([ANSWER], tier_sandbox, attempt=settings)
    await made.go()
    [(_, params)] = made.engine.requests
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.7, 5, 3)
    assert params.extra == {"min_p": 0.1}


# Every end reason


@pytest.mark.parametrize(
    ("turns", "rules", "ended", "reward"),
    [
        ([ANSWER], {}, "answered", 1.0),
        (["<answer>\\boxed{43}</answer>"], {}, "answered", 0.0),
        (["I give up."], {}, "no_action", 0.0),
        (["I give up.", "Really."], {"on_no_action": "feedback", "max_no_action": 1}, "no_action", 0.0),
        (["<code>\nprint("], {}, "incomplete", 0.0),
        ([code("1"), code("2")], {"max_turns": 2}, "max_turns", 0.02),
        ([code("1"), code("2")], {"max_tool_calls": 1}, "max_tool_calls", 0.02),
        (["word " * 100], {"budget": TokenBudget(turn=20)}, "max_length", 0.0),
        (["word " * 100], {"max_action_chars": 20}, "max_length", 0.0),
    ],
)
async def test_ends(turns: list[str], rules: dict[str, Any], ended: str, reward: float, tier_sandbox: Sandbox) -> None:
    made = Run(turns, tier_sandbox, **rules)
    result = await made.go()
    check(result)
    assert (result.outcome.ended, result.reward, result.masked, result.fault) == (ended, reward, False, "")
    # The sampled tokens of the last turn are the last of all: nothing is appended after the end.
    assert result.response_mask[-1] == 1
    # And they begin with what the script had the policy write in its first turn.
    first = made.codec.encode(turns[0])
    n = len(result.tokens.segments()[1].ids) if ended == "max_length" else len(first)
    assert result.response_ids[:n] == first[:n]
    assert n == 20 or "budget" not in rules


async def test_an_end_token_stays_at_the_end(tier_sandbox: Sandbox) -> None:
    made = Run(["I give up."], tier_sandbox)
    assert (await made.go()).response_ids == made.sampled("I give up.", ends=True)


async def test_a_grade_that_times_out_may_be_a_fault(tier_sandbox: Sandbox) -> None:
    rules = {"grade_limit_s": 0.1, "on_grade_timeout": "fault"}
    made = Run(["<answer>\\boxed{(1+x)^{5000000}}</answer>"], tier_sandbox, **rules)
    result = await made.go(Problem(id="p", question="?", answer="x"))
    check(result)
    assert (result.outcome.ended, result.masked, result.reward) == ("grade_timeout", True, 0.0)
    assert "grade" in result.fault


# Faults of the sandbox


async def lose_the_session(tier: str, make_sandbox: Any, **options: Any) -> AttemptResult:
    """An attempt whose session is evicted, with what it holds, while the engine writes the second turn."""
    sandbox = make_sandbox(tier=tier, preload=(), session_idle_s=0.05)
    turns = iter([code("x = 42"), code("print(x)")])

    def write(ids: Sequence[int], params: GenerateParams) -> Turn:
        limit = time.monotonic() + 60
        while params.conversation and params.conversation.exchanges and sandbox.metrics().sessions:
            assert time.monotonic() < limit, "the session was not evicted"
        return next(turns)

    return await run(write, sandbox, interpreter="session", reward="paper", **options)


@pytest.mark.parametrize("on_fault", ["mask", "score"])
async def test_a_fault_of_the_sandbox_is_masked_or_scored(tier: str, make_sandbox: Any, on_fault: str) -> None:
    result = await lose_the_session(tier, make_sandbox, attempt={"on_fault": on_fault})
    check(result)
    assert (result.outcome.ended, result.reward, result.masked) == ("sandbox_unavailable", 0.0, on_fault == "mask")
    assert "sandbox was not available" in result.fault
    assert "evicted" in result.fault
    assert sum(result.tokens.response_mask) > 0
    assert (sum(result.response_mask) > 0) == (on_fault == "score")
    # Nothing that the sandbox says is ever shown to the policy.
    assert "evicted" not in result.record.text


async def test_or_it_is_raised_with_the_attempt(tier: str, make_sandbox: Any) -> None:
    with pytest.raises(AttemptFaultError, match=r"problem 'p'.*sandbox_unavailable.*evicted") as caught:
        await lose_the_session(tier, make_sandbox, attempt={"on_fault": "raise"})
    assert caught.value.result.outcome.turns == 2


async def test_a_closed_sandbox_is_the_callers_fault(tier: str, make_sandbox: Any) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    sandbox.close()
    with pytest.raises(SandboxClosedError):
        await run([code("1")], sandbox)


# Turns that are lost


LOST = TurnLostError("the connection broke")
ABORTED = Generation([5, 6], "ab", [-1.0, -1.0], "abort")


@pytest.mark.parametrize("lost", [LOST, ABORTED, TimeoutError()], ids=["lost", "aborted", "timeout"])
async def test_a_lost_turn_is_generated_again_from_the_last_whole_one(lost: Turn, tier_sandbox: Sandbox) -> None:
    made = Run([lost, code("print(6 * 7)"), lost, lost, ANSWER], tier_sandbox)
    result = await made.go()
    check(result)
    assert (result.outcome.ended, result.resumes, result.fault) == ("answered", 3, "")
    first, seen = made.codec.encode(code("print(6 * 7)")), made.codec.encode(SHOWN_42)
    assert result.response_ids == first + seen + made.codec.encode(ANSWER)  # no token lost, none twice
    prompts = [ids for ids, _ in made.engine.requests]
    assert prompts == [result.prompt_ids] * 2 + [result.prompt_ids + first + seen] * 3
    assert len({params.trajectory_id for _, params in made.engine.requests}) == 1


async def test_after_too_many_lost_turns_the_attempt_is_aborted(tier_sandbox: Sandbox) -> None:
    made = Run([code("print(6 * 7)"), LOST, LOST, LOST], tier_sandbox, attempt={"max_resumes": 2})
    result = await made.go()
    check(result)
    assert (result.outcome.ended, result.masked, result.resumes) == ("aborted", True, 2)
    assert result.fault == "a turn was lost 3 times, the last time: the connection broke"
    # The whole turns stay.
    assert result.response_ids == made.codec.encode(code("print(6 * 7)")) + made.codec.encode(SHOWN_42)
    with pytest.raises(AttemptFaultError, match="aborted: a turn was lost 1 times"):
        await run([LOST], tier_sandbox, attempt={"max_resumes": 0, "on_fault": "raise"})


async def test_a_turn_that_takes_too_long_is_lost(tier_sandbox: Sandbox) -> None:
    made = Run([], tier_sandbox, attempt={"turn_timeout_s": 0.05})
    waits = iter([60.0, 0.0])
    made.engine = ScriptedEngine(made.codec, [ANSWER, ANSWER], delay_s=lambda n: next(waits))
    result = await made.go()
    assert (result.outcome.ended, result.resumes) == ("answered", 1)


async def test_what_the_engine_refuses_is_raised_at_once(tier_sandbox: Sandbox) -> None:
    made = Run([PolicyError("no such model")], tier_sandbox)
    with pytest.raises(PolicyError, match="no such model"):
        await made.go()
    assert len(made.engine.requests) == 1


def test_an_answer_of_the_engine_that_makes_no_sense_is_its_fault() -> None:
    with pytest.raises(PolicyError, match="2 ids and 1 logprobs"):
        Generation([1, 2], "ab", [-1.0])
    with pytest.raises(PolicyError, match="no ids and 1 logprobs"):
        Generation(None, "ab", [-1.0])
    with pytest.raises(PolicyError, match="not a finite number"):
        Generation([1], "a", [float("-inf")])
    with pytest.raises(PolicyError, match="unknown finish_reason 'done'"):
        Generation([1], "a", finish_reason="done")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="must be a str"):
        Generation([1], None)  # type: ignore[arg-type]


# The clock


async def test_a_deadline_aborts_the_engine(tier_sandbox: Sandbox) -> None:
    made = Run([], tier_sandbox, attempt={"deadline_s": 1.5})
    waits = iter([0.0, 60.0])
    made.engine = ScriptedEngine(made.codec, [code("print(6 * 7)"), ANSWER], delay_s=lambda n: next(waits))
    result = await made.go()
    check(result)
    assert (result.outcome.ended, result.masked) == ("aborted", True)
    assert "deadline of 1.5 s" in result.fault
    assert result.outcome.turns == 1


async def test_a_deadline_stops_code_that_runs(tier: str, make_sandbox: Any) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), timeout_s=60.0)
    result = await run([code("while True: pass")], sandbox, attempt={"deadline_s": 1.5})
    check(result)
    assert (result.outcome.ended, result.outcome.turns) == ("aborted", 1)
    assert (await sandbox.arun("print(1)")).stdout == "1\n"


@pytest.mark.parametrize("during", ["engine", "sandbox"])
async def test_a_cancelled_attempt_leaves_nothing_behind(tier: str, make_sandbox: Any, during: str) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), timeout_s=60.0)
    made = Run([], sandbox, interpreter="session")
    turns = [code("x = 1"), code("while True: pass")]
    reached = asyncio.Event()

    def wait_s(n: int) -> float:
        if len(made.engine.requests) < 2:
            return 0.0
        reached.set()
        return 60.0 if during == "engine" else 0.0

    made.engine = ScriptedEngine(made.codec, turns, delay_s=wait_s)
    task = asyncio.create_task(made.go())
    await reached.wait()
    if during == "sandbox":
        await until(lambda: sandbox.metrics().running > 0, "the code runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: sandbox.metrics().sessions == 0, "no session is open")
    assert (await sandbox.arun("print(1)")).stdout == "1\n"


async def test_many_attempts_at_once(tier_sandbox: Sandbox) -> None:
    made = [Run([code(f"print({n})"), f"<answer>\\boxed{{{n}}}</answer>"], tier_sandbox) for n in range(20)]
    results = await asyncio.gather(*(each.go() for each in made))
    assert [result.outcome.answer for result in results] == [str(n) for n in range(20)]
    assert [result.record.turns[0].results[0].stdout for result in results] == [f"{n}\n" for n in range(20)]  # type: ignore[union-attr]
