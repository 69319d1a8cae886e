"""The scripted policy: every style, in every protocol, from real outputs."""

import contextlib
import io
import json
import re
import traceback
from collections import Counter

import pytest

from retool_env.errors import ConfigurationError
from retool_env.problems import Problem, builtin_problems
from retool_env.protocol.base import Observation
from retool_env.rollout import Conversation, Exchange, Reply, ScriptedSolver
from retool_env.rollout.scripted import PROTOCOLS, Style


def conversation(problem: Problem, protocol: str, attempt: int) -> Conversation:
    return Conversation(problem, protocol, messages=({"role": "user", "content": problem.question},), attempt=attempt)


def codes(protocol: str, text: str) -> list[str]:
    """The programs of a turn, cut out by hand: these tests need no parser of ours."""
    if protocol == "tool_calls":
        calls = re.findall(r"<tool_call>\n(\{.*\})\n</tool_call>", text)
        found = []
        for call in calls:
            with contextlib.suppress(ValueError):
                found.append(json.loads(call)["arguments"]["code"])
        return found
    if protocol == "markdown":
        blocks = re.findall(r"```python\n(.*?)\n?```", text, re.DOTALL)
    else:
        blocks = re.findall(r"<code>\n(?:```python\n)?(.*?)\n?(?:```\n)?</code>", text, re.DOTALL)
    return [block for block in blocks if block.strip()]


def execute(code: str) -> str:
    """Runs one of the script's own programs here; a loop of it that never ends is not entered."""
    if "guess += 0" in code:
        return "Error: timed out"
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(code, "<block>", "exec"), {})
    except Exception:
        return output.getvalue() + traceback.format_exc()
    return output.getvalue()


async def play(policy: ScriptedSolver, talk: Conversation) -> list[str]:
    """Plays an attempt to its end; returns its turns."""
    turns = []
    for _ in range(6):
        reply = await policy.act(talk)
        turns.append(reply.text)
        found = codes(talk.protocol, reply.text)
        if not found and not ("<code>" in reply.text or "<tool_call>" in reply.text or "```" in reply.text):
            return turns
        output = "\n".join(map(execute, found)) if found else "Error: not a call"
        talk.exchanges.append(Exchange(reply, Observation(f"\n<interpreter>\n{output}\n</interpreter>\n")))
    pytest.fail(f"the script does not come to an end: {turns}")


def boxed(text: str) -> str | None:
    match = re.search(r"\\boxed\{(.*)\}", text)
    return match[1] if match else None


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_sixteen_attempts_hold_every_style_and_each_does_what_it_says(protocol: str) -> None:
    policy = ScriptedSolver(seed=1)
    styles = Counter()
    for attempt, problem in enumerate(builtin_problems(32, seed=2)):
        talk = conversation(problem, protocol, attempt)
        style = policy.style(talk)
        styles[style] += 1
        turns = await play(policy, talk)
        answer = boxed(turns[-1])
        outputs = [exchange.observation.text for exchange in talk.exchanges]
        match style:
            case Style.NO_ANSWER:
                assert len(turns) == 1
                assert answer is None
            case Style.REASONING:
                assert (len(turns), answer) == (1, problem.answer)
            case Style.WRONG:
                assert answer not in (None, problem.answer)
                assert len(turns) == 2
            case Style.ONE_BLOCK:
                assert (len(turns), answer) == (2, problem.answer)
            case Style.ERROR:
                error = re.findall(r"(\w+Error)", outputs[0])[-1]
                assert error in turns[1], "it has not read the traceback"
                assert (len(turns), answer) == (3, problem.answer)
            case Style.TIMEOUT:
                assert "timed out" in outputs[0]
                assert (len(turns), answer) == (3, problem.answer)
            case Style.MALFORMED:
                assert "not a call" in outputs[0]
                assert (len(turns), answer) == (3, problem.answer)
            case Style.SEVERAL_BLOCKS:
                assert sum(len(codes(protocol, turn)) for turn in turns) == 2
                assert answer == problem.answer
    assert set(styles) == set(Style)
    assert styles[Style.TIMEOUT] == 2


async def test_the_same_seed_writes_the_same_and_another_seed_does_not() -> None:
    problems = builtin_problems(16)

    async def first_turns(seed: int) -> list[str]:
        policy = ScriptedSolver(seed)
        return [(await policy.act(conversation(p, "code_tags", i))).text for i, p in enumerate(problems)]

    assert await first_turns(0) == await first_turns(0)
    assert await first_turns(0) != await first_turns(1)


async def test_the_answer_comes_from_the_output_not_from_the_gold() -> None:
    policy = ScriptedSolver()
    problem = builtin_problems(1, families=["products"])[0]
    talk = next(
        talk for i in range(16) if policy.style(talk := conversation(problem, "code_tags", i)) is Style.ONE_BLOCK
    )
    talk.exchanges.append(Exchange(await policy.act(talk), Observation("<interpreter>\nanswer = 12\n</interpreter>")))
    assert boxed((await policy.act(talk)).text) == "12"


async def test_without_any_result_it_gives_up_instead_of_inventing_one() -> None:
    policy = ScriptedSolver()
    problem = builtin_problems(1, families=["lcm"])[0]
    talk = next(
        talk for i in range(16) if policy.style(talk := conversation(problem, "markdown", i)) is Style.ONE_BLOCK
    )
    for _ in range(3):
        talk.exchanges.append(Exchange(await policy.act(talk), Observation("MemoryError")))
    reply = await policy.act(talk)
    assert boxed(reply.text) is None
    assert "no answer" in reply.text


async def test_problems_of_other_kinds_get_no_code() -> None:
    policy = ScriptedSolver()
    problem = Problem(id="own", question="What is 6 times 7?", answer="42")
    for attempt in range(16):
        talk = conversation(problem, "code_tags", attempt)
        reply = await policy.act(talk)
        assert "<code>" not in reply.text
        expected = {Style.REASONING: "42", Style.WRONG: "43", Style.NO_ANSWER: None}
        assert boxed(reply.text) == expected[policy.style(talk)]


async def test_the_stop_string_is_part_of_the_text_and_named() -> None:
    policy = ScriptedSolver()
    problem = builtin_problems(1)[0]
    for attempt in range(16):
        talk = conversation(problem, "code_tags", attempt)
        talk.stop = ("</code>", "</answer>")
        reply = await policy.act(talk)
        if "<code>" in reply.text:
            assert reply == Reply(reply.text, stop_reason="</code>")
            assert reply.text.endswith("</code>")


async def test_it_says_that_it_is_scripted_and_refuses_protocols_it_cannot_write() -> None:
    policy = ScriptedSolver()
    assert "script" in policy.describe()
    assert "no model" in policy.describe()
    with pytest.raises(ConfigurationError, match=r"code_tags, tool_calls, markdown, not 'mine'"):
        await policy.act(conversation(builtin_problems(1)[0], "mine", 0))
