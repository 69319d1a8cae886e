"""The rules of an attempt, with real protocols. Results of executions are written out: an episode runs nothing."""

import copy
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError, EpisodeError
from retool_env.problems import Problem
from retool_env.protocol import Answer, Ended, EndReason, Feedback, RunCode, protocol_names
from retool_env.sandbox import ExecutionResult, ExecutionStatus
from retool_env.tools import Tool, ToolResult

PROBLEM = Problem(id="p", question="What is {6} * 7?", answer="42")
CODE = "Let me see.\n<code>\n```python\nprint(6 * 7)\n```\n</code>"
ANSWER = "<answer>\\boxed{42}</answer>"
OK = ExecutionResult(ExecutionStatus.OK, stdout="42\n")


@dataclass
class Graded:
    correct: bool


def episode(**options: Any) -> Episode:
    return Episode(PROBLEM, EpisodeConfig(**options))


def run_code(attempt: Episode, n: int = 1, result: ExecutionResult = OK) -> None:
    for _ in range(n):
        assert isinstance(attempt.read(CODE), RunCode)
        attempt.observe([result])


def call(code: str = "1", name: str = "code_interpreter", **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments or {"code": code}}) + "\n</tool_call>"


# The course of an attempt


def test_code_then_a_right_answer() -> None:
    attempt = episode()
    assert "What is {6} * 7?" in attempt.prompt()
    action = attempt.read(CODE)
    assert isinstance(action, RunCode)
    assert action.codes == ("print(6 * 7)",)
    assert "42" in attempt.observe([OK]).text
    action = attempt.read(ANSWER)
    assert isinstance(action, Answer)
    assert action.text == "42"
    assert not attempt.over
    attempt.finish(Graded(True))
    outcome = attempt.outcome()
    assert (outcome.reward, outcome.correct, outcome.answer) == (1.05, True, "42")
    assert (outcome.tool_calls, outcome.interpreter_calls, outcome.turns) == (1, 1, 2)
    assert outcome.ended is EndReason.ANSWERED
    assert outcome.breakdown == {"base": 1.0, "tool_bonus": 0.05}
    assert not outcome.fault


def test_a_wrong_answer_keeps_the_bonus_for_calls() -> None:
    attempt = episode()
    run_code(attempt, 2)
    attempt.read(ANSWER)
    attempt.finish(Graded(False))
    assert attempt.outcome().reward == 0.04
    assert attempt.outcome().breakdown == {"base": 0.0, "tool_bonus": 0.04}


def test_code_beats_an_answer_in_the_same_turn() -> None:
    attempt = episode()
    action = attempt.read(ANSWER + CODE + ANSWER)
    assert isinstance(action, RunCode)
    assert action.kept == ANSWER + CODE


@pytest.mark.parametrize("status", [status for status in ExecutionStatus if status.ran])
def test_every_execution_that_ran_counts_whatever_came_of_it(status: ExecutionStatus) -> None:
    attempt = episode()
    run_code(attempt, result=ExecutionResult(status))
    assert (attempt.tool_calls, attempt.interpreter_calls) == (1, 1)


def test_a_malformed_call_costs_a_turn_but_is_no_call() -> None:
    attempt = episode()
    action = attempt.read("<code></code>")
    assert isinstance(action, Feedback)
    assert action.message in attempt.observe().text
    assert (attempt.turns, attempt.tool_calls) == (1, 0)
    attempt.read(ANSWER)
    attempt.finish(Graded(True))
    assert attempt.outcome().reward == 1.0


# Budgets


def test_in_the_last_turn_code_is_not_run() -> None:
    attempt = episode(max_turns=2)
    run_code(attempt)
    action = attempt.read(CODE)
    assert action == Ended(EndReason.MAX_TURNS, CODE)
    outcome = attempt.outcome()
    assert (outcome.reward, outcome.correct, outcome.interpreter_calls) == (0.02, False, 1)
    assert outcome.ended.truncated


def test_in_the_last_turn_an_answer_counts_and_a_malformed_call_does_not() -> None:
    attempt = episode(max_turns=1)
    assert isinstance(attempt.read(ANSWER), Answer)
    attempt = episode(max_turns=1)
    assert attempt.read("<code></code>") == Ended(EndReason.MAX_TURNS, "<code></code>")


def test_beyond_max_tool_calls_code_is_not_run() -> None:
    attempt = episode(max_tool_calls=2)
    run_code(attempt, 2)
    assert attempt.read(CODE) == Ended(EndReason.MAX_TOOL_CALLS, CODE)
    assert attempt.outcome().interpreter_calls == 2


def test_without_any_tool_call_allowed_answers_still_count() -> None:
    attempt = episode(max_tool_calls=0)
    assert isinstance(attempt.read(ANSWER), Answer)
    assert isinstance(episode(max_tool_calls=0).read(CODE), Ended)


def test_a_batch_runs_whole_or_not_at_all() -> None:
    attempt = episode(protocol="tool_calls", max_tool_calls=3)
    action = attempt.read(call("1") + call("2"))
    assert isinstance(action, RunCode)
    assert action.codes == ("1", "2")
    attempt.observe([OK, OK])
    action = attempt.read(call("3") + call("4"))
    assert isinstance(action, Ended)
    assert action.reason is EndReason.MAX_TOOL_CALLS
    assert attempt.outcome().tool_calls == 2


@pytest.mark.parametrize("text", [CODE, ANSWER, "nothing"])
def test_a_turn_cut_by_length_is_neither_run_nor_graded(text: str) -> None:
    attempt = episode()
    assert attempt.read(text, "length") == Ended(EndReason.MAX_LENGTH, text)
    assert attempt.outcome().answer is None
    assert attempt.outcome().ended.truncated


def test_a_turn_that_is_too_long_is_cut_and_counts_as_cut() -> None:
    attempt = episode(max_action_chars=len(ANSWER))
    assert isinstance(attempt.read(ANSWER), Answer)
    attempt = episode(max_action_chars=len(ANSWER))
    assert attempt.read(ANSWER + "\n") == Ended(EndReason.MAX_LENGTH, ANSWER)


def test_a_long_result_is_shortened_in_the_middle() -> None:
    attempt = episode(max_observation_chars=100)
    attempt.read(CODE)
    text = attempt.observe([ExecutionResult(ExecutionStatus.OK, stdout="a" * 500 + "b" * 500)]).text
    assert "aaa" in text
    assert "bbb" in text
    assert len(text) < 200


# Ends


def test_a_turn_without_action_ends_the_attempt() -> None:
    attempt = episode()
    assert attempt.read("I give up.") == Ended(EndReason.NO_ACTION, "I give up.")
    assert not attempt.outcome().ended.truncated


def test_or_is_answered_with_feedback_a_limited_number_of_times() -> None:
    attempt = episode(on_no_action="feedback", max_no_action=2)
    for _ in range(2):
        action = attempt.read("hm")
        assert isinstance(action, Feedback)
        assert action.message in attempt.observe().text
    assert attempt.read("hm") == Ended(EndReason.NO_ACTION, "hm")
    assert (attempt.outcome().turns, attempt.outcome().tool_calls) == (3, 0)


def test_feedback_is_not_given_where_no_turn_is_left_to_read_it() -> None:
    attempt = episode(on_no_action="feedback", max_turns=1)
    assert attempt.read("hm") == Ended(EndReason.NO_ACTION, "hm")


def test_an_open_block_is_incomplete() -> None:
    action = episode().read("<code>\nprint(1)")
    assert isinstance(action, Ended)
    assert action.reason is EndReason.INCOMPLETE


@pytest.mark.parametrize("reward", ["tool_aware", "paper", "verl"])
@pytest.mark.parametrize("reason", [EndReason.ABORTED, EndReason.SANDBOX_UNAVAILABLE, EndReason.GRADE_TIMEOUT])
def test_a_fault_pays_nothing_and_is_marked(reason: EndReason, reward: str) -> None:
    attempt = episode(reward=reward)
    run_code(attempt)
    attempt.read(CODE)
    attempt.fail(reason)
    outcome = attempt.outcome()
    assert (outcome.reward, outcome.breakdown, outcome.fault, outcome.ended) == (0.0, {}, True, reason)
    assert outcome.interpreter_calls == 1


@dataclass
class TimedOut:
    correct: bool = False
    timed_out: bool = True


@pytest.mark.parametrize("reward", ["tool_aware", "paper", "verl"])
def test_a_grade_that_timed_out_is_wrong_unless_it_is_to_be_a_fault(reward: str) -> None:
    wrong, fault = episode(reward=reward), episode(reward=reward, on_grade_timeout="fault")
    for attempt in (wrong, fault):
        attempt.read(ANSWER)
        attempt.finish(TimedOut())
    plain = episode(reward=reward)
    plain.read(ANSWER)
    plain.finish(Graded(False))
    assert wrong.outcome() == plain.outcome()
    outcome = fault.outcome()
    assert (outcome.ended, outcome.fault, outcome.reward) == (EndReason.GRADE_TIMEOUT, True, 0.0)
    assert (outcome.answer, outcome.correct, outcome.ended.truncated) == ("42", False, True)


def test_where_a_timed_out_grade_is_a_fault_other_grades_are_as_before() -> None:
    attempt = episode(on_grade_timeout="fault")
    attempt.read(ANSWER)
    attempt.finish(Graded(True))
    assert attempt.outcome().correct


def test_an_aborted_turn_is_a_fault() -> None:
    attempt = episode()
    assert attempt.read(CODE, "abort") == Ended(EndReason.ABORTED, CODE)
    assert attempt.outcome().fault


def test_an_answer_without_a_box_is_wrong_by_its_format() -> None:
    attempt = episode()
    action = attempt.read("<answer>42</answer>")
    assert isinstance(action, Answer)
    assert not action.boxed
    assert not attempt.needs_grade
    attempt.finish(Graded(True))
    assert not attempt.outcome().correct
    assert attempt.outcome().answer == "42"


def test_unless_the_box_is_not_required() -> None:
    attempt = episode(require_box=False)
    attempt.read("<answer>42</answer>")
    assert attempt.needs_grade
    attempt.finish(Graded(True))
    assert attempt.outcome().correct


def test_an_answer_that_was_not_graded_is_wrong() -> None:
    attempt = episode()
    attempt.read(ANSWER)
    attempt.finish(None)
    assert not attempt.outcome().correct


def test_an_invented_observation_is_flagged() -> None:
    attempt = episode()
    action = attempt.read(CODE + "\n<interpreter>\n41\n</interpreter>\n" + ANSWER)
    assert isinstance(action, RunCode)
    assert action.fabricated
    assert action.kept == CODE
    attempt.observe([OK])
    attempt.read(ANSWER)
    attempt.finish(Graded(True))
    assert attempt.outcome().fabricated


# Wrong use


def test_calls_out_of_order_are_errors_and_change_nothing() -> None:
    attempt = episode()
    for wrong in (lambda: attempt.observe([OK]), lambda: attempt.finish(Graded(True)), attempt.outcome):
        with pytest.raises(EpisodeError, match="read"):
            wrong()
    attempt.read(CODE)
    for wrong in (lambda: attempt.read(CODE), lambda: attempt.finish(Graded(True)), attempt.outcome):
        with pytest.raises(EpisodeError, match="observe"):
            wrong()
    attempt.observe([OK])
    attempt.read(ANSWER)
    for wrong in (lambda: attempt.read(CODE), lambda: attempt.observe([OK]), attempt.outcome):
        with pytest.raises(EpisodeError, match="finish"):
            wrong()
    attempt.finish(Graded(True))
    for wrong in (
        lambda: attempt.read(CODE),
        lambda: attempt.observe([OK]),
        lambda: attempt.finish(Graded(True)),
        lambda: attempt.fail(EndReason.ABORTED),
    ):
        with pytest.raises(EpisodeError, match="over"):
            wrong()
    assert attempt.outcome().correct


def test_results_must_fit_the_calls() -> None:
    attempt = episode()
    attempt.read(CODE)
    for results in ([], [OK, OK], [ToolResult("42")], [ExecutionResult(ExecutionStatus.UNAVAILABLE)]):
        with pytest.raises(EpisodeError):
            attempt.observe(results)
    attempt.observe([OK])
    attempt.read("<code></code>")
    with pytest.raises(EpisodeError, match="no call"):
        attempt.observe([OK])


def test_only_a_shared_interpreter_can_be_restarted_and_only_by_its_code() -> None:
    attempt = episode()
    attempt.read(CODE)
    with pytest.raises(EpisodeError, match="own"):
        attempt.observe([OK], restarted=[0])
    tool = Tool("look_up", "Looks up.", {"type": "object"}, lambda: "found")
    attempt = episode(interpreter="session", protocol="tool_calls", tools=(tool,))
    attempt.read(call() + '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>')
    for wrong in ([1], [2], [-1], [0, 1]):
        with pytest.raises(EpisodeError, match=r"restarted: \["):
            attempt.observe([OK, ToolResult("found")], restarted=wrong)
    text = attempt.observe([OK, ToolResult("found")], restarted=[0]).text
    assert text.index("42") < text.index("everything defined before is lost") < text.index("found")
    attempt.read("<tool_call>{}</tool_call>")
    with pytest.raises(EpisodeError, match="no call"):
        attempt.observe((), restarted=[0])


def test_only_faults_can_be_failed_with() -> None:
    with pytest.raises(EpisodeError, match="not a fault"):
        episode().fail(EndReason.MAX_TURNS)


@pytest.mark.parametrize("text", [None, b"text", 3, ["text"]])
def test_a_text_must_be_a_string(text: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        episode().read(text)


def test_a_finish_must_be_one_of_the_three_words() -> None:
    with pytest.raises(ConfigurationError, match="stop, length, abort"):
        episode().read("", "eos")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"protocol": "xml"}, "code_tags"),
        ({"reward": "generous"}, "tool_aware"),
        ({"max_turns": 0}, "max_turns: .*got 0"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"on_no_action": "panic"}, "on_no_action"),
        ({"grader": "generous"}, "grader.*'strict', 'default' or 'lenient'"),
        ({"grade_limit_s": 0}, "grade_limit_s"),
        ({"grade_limit_s": float("inf")}, "grade_limit_s"),
        ({"on_grade_timeout": "ignore"}, "on_grade_timeout"),
        ({"max_turn": 3}, "max_turn: "),
        ({"special_tokens": ("",)}, "special_tokens"),
        ({"prompt_template": "no field"}, "question"),
        ({"prompt_template": Path("/nonexistent/template.txt")}, "template"),
        (
            {"tools": (Tool("double", "Doubles.", {"type": "object"}, str),), "protocol": "code_tags"},
            "tool_calls",
        ),
    ],
)
def test_an_option_that_cannot_work_is_an_error_at_once(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        EpisodeConfig(**options)


# Robustness

FRAGMENTS = st.sampled_from(
    [CODE, ANSWER, call("1"), "<code>", "</code>", "<answer>", "\\boxed{", "}", "```python\n", "```", "<think>"]
)
ODD = st.sampled_from(["</think>", "<tool_call>", "</tool_call>", "<interpreter>", "</interpreter>", "\ud800", "\x00"])
TEXTS = st.lists(FRAGMENTS | ODD | st.text(alphabet=st.characters(), max_size=10), max_size=8).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(
        st.tuples(
            TEXTS,
            st.sampled_from(["stop", "stop", "stop", "length", "abort"]),
            st.sampled_from([None, "</code>", "</answer>", 7]),
        ),
        max_size=6,
    ),
    protocol=st.sampled_from(protocol_names()),
    on_no_action=st.sampled_from(["end", "feedback"]),
    output=st.text(alphabet=st.characters(), max_size=20),
)
def test_no_text_raises_and_every_attempt_comes_to_an_end(
    turns: list[tuple[str, Any, Any]], protocol: str, on_no_action: Any, output: str
) -> None:
    attempt = Episode(
        PROBLEM, EpisodeConfig(protocol=protocol, on_no_action=on_no_action, max_turns=4, max_tool_calls=3)
    )
    for text, finish, stop_reason in turns:
        if attempt.over:
            break
        action = attempt.read(text, finish, stop_reason)
        json.dumps(attempt.messages(), ensure_ascii=False).encode("utf-8")
        match action:
            case RunCode():
                observed = attempt.observe([ExecutionResult(ExecutionStatus.OK, stdout=output) for _ in action.calls])
                observed.text.encode("utf-8")
            case Feedback():
                attempt.observe()
            case Answer():
                attempt.finish(Graded(False))
            case Ended():
                assert attempt.over
    if not attempt.over:
        attempt.fail(EndReason.ABORTED)
    outcome = attempt.outcome()
    assert outcome.turns <= 4
    assert outcome.tool_calls <= 3
    assert not outcome.correct


def test_arguments_nested_deeper_than_python_can_recurse_do_not_raise() -> None:
    deep = "[" * 900 + "]" * 900
    text = f'<tool_call>{{"name": "code_interpreter", "arguments": {{"code": "1", "x": {deep}}}}}</tool_call>'
    assert isinstance(episode(protocol="tool_calls").read(text), RunCode | Feedback)
    deeper = text.replace(deep, "[" * 200_000 + "]" * 200_000)
    assert isinstance(episode(protocol="tool_calls", max_action_chars=1 << 20).read(deeper), RunCode | Feedback)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda attempt: pickle.loads(pickle.dumps(attempt))])
def test_a_copy_goes_its_own_way(copied: Any) -> None:
    attempt = episode()
    attempt.read(CODE)
    other = copied(attempt)
    attempt.fail(EndReason.ABORTED)
    other.observe([OK])
    other.read(ANSWER)
    other.finish(Graded(True))
    assert other.outcome().correct
    assert not attempt.outcome().correct
