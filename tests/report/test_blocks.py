"""What is shown of an attempt, and in what order."""

from collections.abc import Callable

from retool_env.protocol import EndReason
from retool_env.report.blocks import Block, blocks, seconds, verdict
from retool_env.report.fragment import fragment
from retool_env.report.terminal import plain
from retool_env.trajectory import Trajectory

Record = Callable[..., Trajectory]
ANSWER = "<answer>\\boxed{42}</answer>"


def code(source: str) -> str:
    return f"I run it.\n<code>\n```python\n{source}\n```\n</code>"


def named(trajectory: Trajectory, kind: str) -> Block:
    return next(block for block in blocks(trajectory) if block.kind == kind)


def test_the_order_is_that_of_the_attempt(record: Record) -> None:
    shown = list(blocks(record(code("print(6 * 7)"), "<code></code>", ANSWER)))
    assert [(block.kind, block.title) for block in shown] == [
        ("problem", "problem p"),
        ("turn", "turn 1: run_code"),
        ("result", "interpreter: ok"),
        ("observation", "observation"),
        ("turn", "turn 2: feedback"),
        ("observation", "observation"),
        ("turn", "turn 3: answer"),
        ("grade", "grade: correct"),
        ("end", "end: answered"),
    ]


def test_the_end_says_what_was_paid_and_for_what(record: Record) -> None:
    end = named(record(code("print(6 * 7)"), ANSWER), "end")
    assert end.facts == (
        ("answer", "42"),
        ("gold", "42"),
        ("verdict", "correct"),
        ("reward", "1.05 = base +1, tool_bonus +0.05"),
    )
    assert end.notes == ("2 turns", "1 tool call", "1.00 s", "sandbox landlock")


def test_an_attempt_that_goes_on_has_no_end(record: Record) -> None:
    trajectory = record(code("print(1)"), over=False)
    assert "end" not in {block.kind for block in blocks(trajectory)}
    assert verdict(trajectory.outcome) == "unfinished"


def test_a_fault_is_not_a_wrong_answer(record: Record) -> None:
    assert verdict(record(end=EndReason.SANDBOX_UNAVAILABLE).outcome) == "fault"
    assert verdict(record("<answer>\\boxed{41}</answer>").outcome) == "wrong"


def test_code_is_set_apart_where_it_stands(record: Record) -> None:
    turn = named(record("x is unknown. " + code("x"), ANSWER), "turn")
    assert [(part.kind, part.text) for part in turn.parts] == [
        ("text", "x is unknown. I run it.\n<code>\n```python\n"),
        ("code", "x"),
        ("text", "\n```\n</code>"),
    ]


def test_code_that_is_quoted_follows_the_text(record: Record) -> None:
    text = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(1)\\nprint(2)"}}</tool_call>'
    turn = named(record(text, protocol="tool_calls"), "turn")
    assert [(part.kind, part.label, part.text) for part in turn.parts] == [
        ("text", "", text),
        ("code", "the code it calls", "print(1)\nprint(2)"),
    ]


def test_several_calls_of_the_same_code(record: Record) -> None:
    call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(1)"}}</tool_call>'
    turn = named(record(f"{call}\n{call}", protocol="tool_calls"), "turn")
    assert [part.text for part in turn.parts if part.kind == "code"] == ["print(1)", "print(1)"]
    assert "".join(part.text for part in turn.parts) == f"{call}\n{call}"


def test_what_was_written_past_the_turn_is_shown_as_dropped(record: Record) -> None:
    turn = named(record(code("print(1)") + "\n<interpreter>\n7\n</interpreter>"), "turn")
    assert "invents tool output" in turn.notes
    assert turn.parts[-1].label == "written past the turn, dropped"
    assert "<interpreter>\n7" in turn.parts[-1].text


def test_output_is_shown_again_only_where_the_policy_was_not_shown_it_all(record: Record) -> None:
    assert named(record(code("print(42)")), "result").parts == ()
    result = named(record(code("print('x' * 5000)"), stdout="x" * 5000 + "\n"), "result")
    assert [(part.label, part.text) for part in result.parts] == [("standard output", "x" * 5000 + "\n")]
    coloured = named(record(code("print('x')"), stdout="\x1b[31mx\x1b[0m"), "result")
    assert coloured.parts[0].text == "\x1b[31mx\x1b[0m"


def test_a_result_says_how_the_code_ended(record: Record) -> None:
    fields = {"error_class": "SystemExit", "exit_code": 3, "queue_s": 0.5, "truncated": True}
    result = named(record(code("exit(3)"), status="error", result=fields), "result")
    assert (result.title, result.look) == ("interpreter: error", "bad")
    assert result.notes == (
        "250 ms",
        "cpu 125 ms",
        "waited 500 ms",
        "SystemExit",
        "exit code 3",
        "output beyond the limit dropped",
    )


def test_names_from_the_code_are_as_untrusted_as_its_output(record: Record) -> None:
    fields = {"error_class": "<script>\x1b]0;"}
    trajectory = record(code("raise"), status="error", result=fields, id="<i>\u202e")
    assert r"<script>\x1b]0;" in plain(blocks(trajectory))
    assert "problem <i>[U+202E RLO]" in plain(blocks(trajectory))
    shown = fragment(blocks(trajectory))
    assert "<script>" not in shown
    assert "<i>" not in shown
    assert "\x1b" not in shown


def test_times_are_for_people() -> None:
    assert [seconds(value) for value in (0.0, 0.00042, 0.0123, 3.2149)] == ["0.0 ms", "0.4 ms", "12 ms", "3.21 s"]
