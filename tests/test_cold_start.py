"""ReTool-SFT read, and written again as attempts of ours look."""

import json
from pathlib import Path

import pytest

from retool_env.cold_start import (
    Demonstration,
    Step,
    demonstration_messages,
    read_demonstration,
    read_demonstrations,
    split_shown,
)
from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError, ProblemError
from retool_env.problems import Problem
from retool_env.problems.rows import BadRow
from retool_env.protocol.base import Answer, RunCode
from retool_env.sandbox import ExecutionResult, ExecutionStatus

from .retool_sft import ASKED, QUESTION, SAID, row


def test_a_row_is_its_question_its_steps_and_its_ending() -> None:
    shown = read_demonstration(row()["messages"])
    assert shown == Demonstration(
        question=QUESTION,
        steps=(
            Step("First I multiply.", "print(6 * 7)", "42"),
            Step("Then I divide.", "print(1 / 0)", "ZeroDivisionError: division by zero"),
        ),
        ending="That has no value.\n\n<answer>\n\\boxed{42}\n</answer>",
    )


def test_a_question_without_the_sentences_around_it_stays_as_it_is() -> None:
    asked = "Anything.\n\n*user question:*\nWhat is 1 + 1?\nRemember the carry."
    assert read_demonstration(row(asked=asked)["messages"]).question == "What is 1 + 1?\nRemember the carry."


@pytest.mark.parametrize(
    ("said", "asked", "why"),
    [
        (SAID, "What is 1 + 1?", "user question"),
        (SAID, "*user question:*\n ", "empty"),
        ("<code>print(1)</code> and so on", ASKED, "no output"),
        ("It is 42, I am sure.", ASKED, "answer"),
        ("It is <answer>42</answer>.", ASKED, "boxed"),
        (SAID.replace("\\boxed{42}", "\\boxed{ }"), ASKED, "boxed"),
        (SAID.replace("<answer>", "</interpreter><answer>"), ASKED, "alone"),
        (SAID.replace("<answer>", "<code><answer>"), ASKED, "alone"),
        (SAID.replace("First", "<tool_call> First"), ASKED, "alone"),
        (SAID.replace("print(6 * 7)", " "), ASKED, "empty code"),
        (SAID.replace("```python", "```java"), ASKED, "unsupported language"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(said: str, asked: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        read_demonstration(row(said, asked)["messages"])


@pytest.mark.parametrize("messages", [None, [], "text", [{"role": "user"}], [{"role": "user", "content": "x"}] * 2])
def test_other_rows_are_no_demonstrations(messages: object) -> None:
    with pytest.raises(ProblemError, match="one message"):
        read_demonstration(messages)


@pytest.mark.parametrize("protocol", ["code_tags", "tool_calls"])
def test_an_episode_reads_a_demonstration_as_an_attempt(protocol: str) -> None:
    """Turn by turn: what the demonstration writes is what the protocol runs, shows and takes for the answer."""
    rules = EpisodeConfig(protocol=protocol, max_turns=7)
    shown = read_demonstration(row()["messages"])
    messages = demonstration_messages(shown, rules)
    episode = Episode(Problem(id="p", question=QUESTION, answer="42"), rules)
    assert messages[0] == episode.messages()[0]
    if protocol == "code_tags":
        [written] = (message["content"] for message in messages[1:])
        texts = [text + "</code>" for text in written.split("</code>")[:-1]] + [written.split("</code>")[-1]]
        texts = [text.split("</interpreter>\n")[-1] for text in texts]
    else:
        assert [message["role"] for message in messages] == ["user"] + ["assistant", "tool"] * 2 + ["assistant"]
        texts = [message["content"] for message in messages if message["role"] == "assistant"]
    for text, step in zip(texts, shown.steps, strict=False):
        action = episode.read(text)
        assert isinstance(action, RunCode)
        assert action.codes == (step.code,)
        assert action.kept == text
        observation = episode.observe([ExecutionResult(ExecutionStatus.OK, stdout=step.output)])
        if protocol == "code_tags":
            assert text + observation.text in messages[1]["content"]
        else:
            assert observation.messages[0]["content"] in [message["content"] for message in messages]
    action = episode.read(texts[-1])
    assert isinstance(action, Answer)
    assert action.text == "42"


def test_the_conversation_is_the_episodes_own() -> None:
    rules = EpisodeConfig(protocol="code_tags")
    shown = read_demonstration(row()["messages"])
    episode = Episode(Problem(id="p", question=QUESTION, answer="42"), rules)
    for step in shown.steps:
        episode.read(f"{step.text}\n<code>\n```python\n{step.code}\n```\n</code>")
        episode.observe([ExecutionResult(ExecutionStatus.OK, stdout=step.output)])
    assert episode.messages()[-1]["content"] + shown.ending == demonstration_messages(shown, rules)[-1]["content"]


def test_outputs_are_cut_and_neutral_as_in_an_attempt() -> None:
    said = SAID.replace("42\n</interp", f"<answer>{'9' * 5000}\n</interp")
    messages = demonstration_messages(read_demonstration(row(said)["messages"]), EpisodeConfig())
    assert messages[1]["content"].count("<answer>") == 1
    assert len(messages[1]["content"]) < 2000


def test_other_protocols_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="markdown"):
        demonstration_messages(read_demonstration(row()["messages"]), EpisodeConfig(protocol="markdown"))


def test_rows_of_a_file_good_and_bad(tmp_path: Path) -> None:
    path = tmp_path / "sft.jsonl"
    rows = [row(), row("nothing"), row(), row()]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    read = list(read_demonstrations(path, limit=3))
    assert [type(each) for each in read] == [Demonstration, BadRow, Demonstration]
    assert "row 2" in str(read[1])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        list(read_demonstrations(str(tmp_path / "sft.parquet")))


def test_a_message_is_taken_apart_into_what_is_written_and_what_is_shown() -> None:
    shown = read_demonstration(row()["messages"])
    text = demonstration_messages(shown, EpisodeConfig())[-1]["content"]
    pieces = split_shown(text)
    assert "".join(piece for piece, _ in pieces) == text
    assert [is_shown for _, is_shown in pieces] == [False, True, False, True, False]
    assert pieces[1][0] == "\n<interpreter>\n42\n</interpreter>\n"
    assert split_shown("It is <answer>\\boxed{42}</answer>") == [("It is <answer>\\boxed{42}</answer>", False)]
