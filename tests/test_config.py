"""The limits that are stated are the ones that are enforced: what a prompt promises, an attempt keeps."""

import json
import re

import pytest

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.problems import Problem
from retool_env.protocol import Answer, Ended, EndReason, RunCode
from retool_env.sandbox import ExecutionResult, ExecutionStatus

OK = ExecutionResult(ExecutionStatus.OK, stdout="42\n")
CODE = {
    "code_tags": "<code>\nprint(42)\n</code>",
    "markdown": "```python\nprint(42)\n```",
    "tool_calls": "<tool_call>\n"
    + json.dumps({"name": "code_interpreter", "arguments": {"code": "print(42)"}})
    + "\n</tool_call>\n",
}
BUDGETS = [(16, 16), (1, 16), (2, 16), (16, 3), (4, 3), (3, 4), (5, 0), (1, 0)]


def episode(protocol: str, max_turns: int, max_tool_calls: int) -> Episode:
    config = EpisodeConfig(protocol=protocol, max_turns=max_turns, max_tool_calls=max_tool_calls)
    return Episode(Problem(id="p", question="What is six times seven?", answer="42"), config)


def stated(attempt: Episode) -> tuple[int, int]:
    """The turns and the calls that the prompt allows."""
    found = re.search(r"Turns: at most (\d+), and .+?: at most (\d+)\.", attempt.prompt())
    assert found is not None
    return int(found[1]), int(found[2])


def run_until_refused(attempt: Episode, code: str) -> int:
    """Has code run, one call a turn, until the attempt is over; returns how often it ran."""
    while not isinstance(attempt.read(code), Ended):
        attempt.observe([OK])
    return attempt.interpreter_calls


@pytest.mark.parametrize(("max_turns", "max_tool_calls"), BUDGETS)
@pytest.mark.parametrize("protocol", CODE)
class TestThePromptStatesWhatIsEnforced:
    def test_turns(self, protocol: str, max_turns: int, max_tool_calls: int) -> None:
        attempt = episode(protocol, max_turns, max_tool_calls)
        turns, calls = stated(attempt)
        assert turns == max_turns
        # Calls in all turns but the last, as long as they are allowed, and the last one gives the answer.
        for _ in range(min(turns - 1, calls)):
            assert isinstance(attempt.read(CODE[protocol]), RunCode)
            attempt.observe([OK])
        assert isinstance(attempt.read("\\boxed{42}"), Answer)
        # Without it, the attempt ends with the last turn at the latest.
        late = episode(protocol, max_turns, max_tool_calls)
        run_until_refused(late, CODE[protocol])
        assert late.ended in (EndReason.MAX_TURNS, EndReason.MAX_TOOL_CALLS)
        assert late.turns <= turns

    def test_calls(self, protocol: str, max_turns: int, max_tool_calls: int) -> None:
        _, calls = stated(episode(protocol, max_turns, max_tool_calls))
        if protocol != "tool_calls":
            assert run_until_refused(episode(protocol, max_turns, max_tool_calls), CODE[protocol]) == calls
            return
        # Here one turn may make all of them.
        attempt = episode(protocol, max_turns, max_tool_calls)
        if calls:
            assert isinstance(attempt.read(CODE[protocol] * calls), RunCode)
            attempt.observe([OK] * calls)
        assert isinstance(attempt.read(CODE[protocol]), Ended)
        assert attempt.interpreter_calls == calls

    def test_the_tools_description_says_the_same(self, protocol: str, max_turns: int, max_tool_calls: int) -> None:
        attempt = episode(protocol, max_turns, max_tool_calls)
        (tool,) = attempt.tools
        assert f" {stated(attempt)[1]} calls in all" in tool["function"]["description"]


def test_a_template_of_ones_own_gets_the_same_numbers() -> None:
    template = "{question} {max_turns} {max_tool_calls}"
    assert EpisodeConfig(max_turns=4, prompt_template=template).limits.max_tool_calls == 3
    problem = Problem(id="p", question="Q", answer="1")
    assert Episode(problem, EpisodeConfig(max_turns=4, prompt_template=template)).prompt() == "Q 4 3"
