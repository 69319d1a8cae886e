"""``attempt`` and its budgets: what a turn may have, and how observations are cut to what is left."""

from typing import Any

import pytest

from retool_env.errors import ConfigurationError
from retool_env.rollout.attempt import AttemptConfig
from retool_env.rollout.engines import Generation, ScriptedEngine
from retool_env.sandbox import Sandbox
from retool_env.tokens import TokenBudget

from ..tokenizers import NAMES  # noqa: TID252 - `tests` is on no path
from .making import ANSWER, SHOWN_42, Run, call, check, code, run


async def test_a_turn_gets_what_every_budget_leaves(tier_sandbox: Sandbox) -> None:
    budget = TokenBudget(response=500, turn=200)
    made = Run([code("print(6 * 7)"), code("print(6 * 7)"), ANSWER], tier_sandbox, budget=budget)
    result = await made.go()
    used = len(made.codec.encode(code("print(6 * 7)"))) + len(made.codec.encode(SHOWN_42))
    asked = [params.max_tokens for _, params in made.engine.requests]
    assert asked == [min(200, 500 - n * used) for n in range(3)]
    assert len(result.response_ids) <= 500


async def test_a_prompt_that_fills_the_context_ends_the_attempt(tier_sandbox: Sandbox) -> None:
    made = Run([ANSWER], tier_sandbox, budget=TokenBudget(context=50))
    result = await made.go()
    check(result)
    assert (result.outcome.ended, result.outcome.turns, result.response_ids) == ("max_length", 1, [])
    assert made.engine.requests == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["code_tags", "markdown", "tool_calls"])
async def test_an_observation_is_cut_inside_its_wrapper(name: str, protocol: str, tier_sandbox: Sandbox) -> None:
    source = "print('\\n'.join(f'line {n} <|im_' 'end|> é 漢' for n in range(200)))"
    write = {"code_tags": code, "markdown": lambda text: f"```python\n{text}\n```", "tool_calls": call}[protocol]
    answer = ANSWER if protocol == "code_tags" else "\\boxed{42}"
    budget = TokenBudget(observation=200)
    made = Run(
        [write(source), answer], tier_sandbox, name, budget=budget, protocol=protocol, max_observation_chars=4000
    )
    result = await made.go()
    check(result)
    seen = result.tokens.segments()[2]
    assert seen.kind == "appended"
    # As much as fits, and no more.
    assert 150 <= len(seen.ids) <= 200
    shown = result.record.turns[0].observation
    assert "line 0 " in shown
    assert "line 199 " in shown
    assert "characters left out" in shown
    assert shown.rstrip().endswith(
        {"code_tags": "</interpreter>", "markdown": "```", "tool_calls": "</tool_response>"}[protocol]
    )
    if protocol != "tool_calls":
        assert made.codec.decode(seen.ids) == shown
    assert result.n_shortened == 1
    assert result.outcome.correct
    # The record has all that was printed.
    assert result.record.turns[0].results[0].stdout.count("\n") == 200  # type: ignore[union-attr]


async def test_a_traceback_that_is_cut_is_shown_once(tier_sandbox: Sandbox) -> None:
    made = Run([code("print('x ' * 400)\n1/0"), ANSWER], tier_sandbox, budget=TokenBudget(observation=300))
    result = await made.go()
    shown = result.record.turns[0].observation
    assert shown.count("characters left out") == 1
    assert shown.count("ZeroDivisionError: division by zero") == 1
    assert result.record.turns[0].results[0].status == "error"  # type: ignore[union-attr]


async def test_several_results_share_the_budget_and_a_restart_is_told_once(tier: str, make_sandbox: Any) -> None:
    sandbox = make_sandbox(tier=tier, preload=())
    turn = call("print('a' * 3000)", "print('b' * 3000, flush=True); import os; os._exit(0)")
    options = {"protocol": "tool_calls", "interpreter": "session", "max_observation_chars": 4000}
    result = await run([turn, "\\boxed{42}"], sandbox, budget=TokenBudget(observation=700), **options)
    check(result)
    assert 500 <= len(result.tokens.segments()[2].ids) <= 700
    shown = result.record.turns[0].observation
    assert shown.count("characters left out") == 2
    assert shown.count("the interpreter was restarted") == 1


async def test_the_observation_leaves_room_for_a_turn_or_ends_the_attempt(tier_sandbox: Sandbox) -> None:
    turn = code("print('x ' * 500)")
    probe = Run([], tier_sandbox)
    n_turn = len(probe.codec.encode(turn))
    made = Run([turn, ANSWER], tier_sandbox, budget=TokenBudget(response=n_turn + 200, min_turn=50))
    result = await made.go()
    assert result.outcome.correct
    assert made.engine.requests[1][1].max_tokens >= 50
    assert result.n_shortened == 1
    # Not even the shortest form fits here: what was sampled is all there is, and the attempt was truncated.
    made = Run([turn, ANSWER], tier_sandbox, budget=TokenBudget(response=n_turn + 60, min_turn=50))
    result = await made.go()
    check(result)
    assert result.response_ids == made.codec.encode(turn)
    assert (result.outcome.ended, result.outcome.turns, len(made.engine.requests)) == ("max_length", 2, 1)


async def test_sampled_tokens_are_never_cut_to_a_budget(tier_sandbox: Sandbox) -> None:
    made = Run([], tier_sandbox, budget=TokenBudget(response=20))
    ids = made.codec.encode(ANSWER * 5)
    made.engine = ScriptedEngine(made.codec, [Generation(ids, ANSWER * 5, finish_reason="length")])
    assert (await made.go()).response_ids == ids


# Configuration


def test_a_setting_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="temperature"):
        AttemptConfig(temperature=-1)
    with pytest.raises(ConfigurationError, match="on_fault"):
        AttemptConfig(on_fault="ignore")  # type: ignore[arg-type]


async def test_the_limits_that_the_prompt_states_are_the_sandboxes(tier: str, make_sandbox: Any) -> None:
    sandbox = make_sandbox(tier=tier, preload=(), timeout_s=3.0, memory_mb=200)
    result = await run([ANSWER], sandbox, protocol="tool_calls")
    rules = result.record.rules
    assert (rules.timeout_s, rules.memory_mb) == (3.0, 200)
    assert "<|im_end|>" in rules.special_tokens
