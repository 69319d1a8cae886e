"""What models really write: every case of ``tests/cases/protocol.jsonl`` has the outcome it asks for."""

import json
from collections import Counter
from pathlib import Path

import pytest

from retool_env.protocol import Answer, Ended, EndReason, Feedback, Limits, RunCode, get_protocol, protocol_names
from retool_env.protocol.observation import NO_OUTPUT, clean, render
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolRegistry

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "protocol.jsonl").read_text(encoding="utf-8").splitlines()
]
PROTOCOLS = {"retool_xml": "code_tags", "hermes_json": "tool_calls", "qwen3_coder": "tool_calls"}
TURNS = [case for case in CASES if case["dialect"] in PROTOCOLS]
OUTPUTS = {case["id"]: case for case in CASES if case["dialect"] == "tool_output"}
LIMITS = Limits(timeout_s=5, memory_mb=256, max_turns=8, max_tool_calls=8, max_observation_chars=2000)
FABRICATED = {"p035", "p071"}


def test_every_case_is_accounted_for():
    assert len(CASES) == len({case["id"] for case in CASES}) == 71
    dialects = Counter(case["dialect"] for case in CASES)
    assert dialects == {"retool_xml": 37, "hermes_json": 18, "qwen3_coder": 4, "tool_output": 8, "tokens": 4}
    # The four about token ids need a tokenizer; they belong to the token trajectory.
    assert {case["id"] for case in CASES if case["dialect"] == "tokens"} == {"p087", "p088", "p089", "p090"}
    assert {case["id"] for case in OUTPUTS.values()} == {"p078", "p080", "p081", "p082", "p083", "p084", "p085", "p086"}


@pytest.mark.parametrize("case", TURNS, ids=lambda case: case["id"])
def test_turn(case):
    action = get_protocol(PROTOCOLS[case["dialect"]]).parse(case["text"], ToolRegistry())
    payload = case["expected_payload"]
    match case["expected_action"]:
        case "run_code":
            assert isinstance(action, RunCode)
            assert action.codes == (payload,)
        case "run_code_many":
            assert isinstance(action, RunCode)
            assert list(action.codes) == payload
        case "error_feedback":
            assert isinstance(action, Feedback)
            assert payload in action.message
        case "final_answer":
            assert isinstance(action, Answer)
            assert (action.text, action.boxed) == (payload, True)
        case "final_answer_no_box":
            assert isinstance(action, Answer)
            assert (action.text, action.boxed) == (payload, False)
        case "truncated":
            assert action == Ended(EndReason.INCOMPLETE, case["text"])
        case "no_action":
            assert action == Ended(EndReason.NO_ACTION, case["text"])
        case other:
            pytest.fail(f"unknown expectation {other}")
    assert case["text"].startswith(action.kept)
    assert action.fabricated == (case["id"] in FABRICATED)


def test_what_follows_the_first_block_is_dropped():
    for case_id in ("p016", "p031"):
        text = next(case["text"] for case in CASES if case["id"] == case_id)
        kept = get_protocol("code_tags").parse(text, ToolRegistry()).kept
        assert kept.endswith("</code>")
        assert kept.count("</code>") == 1


def shown(case_id: str, protocol: str = "code_tags", **fields) -> str:
    text = fields.pop("stdout", OUTPUTS[case_id]["text"])
    result = ExecutionResult(fields.pop("status", ExecutionStatus.OK), stdout=text, **fields)
    return render(result, LIMITS, get_protocol(protocol).tags)


@pytest.mark.parametrize("name", ["code_tags", "tool_calls", "markdown"])
@pytest.mark.parametrize("case_id", ["p078", "p080"])
def test_output_is_never_an_action(name, case_id):
    protocol = get_protocol(name)
    text = protocol.observe([shown(case_id, name)], []).text
    assert protocol.parse(text, ToolRegistry()) == Ended(EndReason.NO_ACTION, text, fabricated=True)


def test_p080_stays_readable():
    assert shown("p080") == r"<\code>print(1)<\/code>"


def test_p081_long_output_keeps_head_and_tail():
    text = shown("p081")
    # The case asks for a limit in tokens; that budget is the token loop's. Here the limit is in characters, and a
    # digit is one of each.
    assert len(text) == 2000
    assert text.startswith("999999")
    assert text.endswith("999999")
    head, note, tail = text.split("\n")
    assert note == f"... [{len(OUTPUTS['p081']['text']) - len(head) - len(tail)} characters left out] ..."


def test_p082_is_text_that_utf8_can_hold():
    # Bytes become text in the sandbox (U+FFFD for invalid ones); here only lone surrogates can be left.
    assert shown("p082") == OUTPUTS["p082"]["text"]
    assert shown("p082", stdout="caf\udce9") == "caf\ufffd"


def test_p083_and_p084_control_characters():
    assert clean(OUTPUTS["p083"]["text"]) == "red"
    assert clean(OUTPUTS["p084"]["text"]) == "progress 100%\n"
    assert shown("p084") == "progress 100%"


def test_p085_no_output_is_said():
    assert shown("p085") == NO_OUTPUT == OUTPUTS["p085"]["expected_payload"]


def test_p086_traceback_is_kept():
    # The neutral path that the case asks for is the sandbox's doing: it compiles the code under a neutral name. To
    # rewrite paths in the text here would also change what the code itself prints.
    trace = OUTPUTS["p086"]["text"]
    text = shown("p086", stdout="", stderr=trace, status=ExecutionStatus.ERROR, error_class="NameError", exit_code=1)
    assert text == trace.rstrip()


def test_the_built_in_protocols_come_first():
    assert protocol_names()[:3] == ("code_tags", "tool_calls", "markdown")
