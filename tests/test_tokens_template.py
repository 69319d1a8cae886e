"""``TokenTrajectory`` and chat templates: ids are those of the whole conversation, or it says why not."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError
from retool_env.problems import Problem
from retool_env.protocol import get_protocol
from retool_env.protocol.observation import render
from retool_env.tokenizer import TokenCodec
from retool_env.tools import ToolResult

from .token_texts import CALL, QUESTION, TAGS, end_id, opened, slow_start, texts
from .tokenizers import NAMES, load


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.fixture
def codec(tokenizer: Any) -> TokenCodec:
    return TokenCodec(tokenizer, tags=TAGS)


@pytest.fixture
def small() -> Any:
    """A copy of the small tokenizer that a test may change."""
    return copy.deepcopy(load("small"))


def chat(*turns: tuple[str, Sequence[str]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [dict(message) for message in QUESTION]
    for text, outputs in turns:
        messages.append({"role": "assistant", "content": text})
        messages += [{"role": "tool", "content": output, "name": "code_interpreter"} for output in outputs]
    return messages


def from_template(codec: TokenCodec, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    made = codec.tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
    return list(made["input_ids"] if hasattr(made, "keys") else made)


TOOLS = Episode(Problem(id="p", question="?", answer="1"), EpisodeConfig(protocol="tool_calls")).tools


@pytest.mark.parametrize("ends", ["sampled", "cut", "other"])
def test_ids_are_those_of_the_chat_template(codec: TokenCodec, ends: str) -> None:
    turns = [("Let me see.\n" + CALL, ["42"]), (CALL, ["1\n2", "漢字 😀"]), ("Again: " + CALL, ["Error: no"])]
    tokens = opened(codec, tools=TOOLS)
    other = next(id for id in sorted(codec.control) if id != end_id(codec))
    done: list[tuple[str, Sequence[str]]] = []
    assert tokens.ids == from_template(codec, chat(), tools=TOOLS)
    for text, outputs in turns:
        ids = codec.encode(text) + {"sampled": [end_id(codec)], "cut": [], "other": [other]}[ends]
        tokens.add_turn(ids, [-1.0] * len(ids), text)
        done.append((text, outputs))
        tokens.add_messages(chat(*done), len(outputs))
        assert tokens.ids == from_template(codec, chat(*done), tools=TOOLS)
        assert codec.decode(tokens.ids, with_control=True) == codec.tokenizer.apply_chat_template(
            chat(*done), tools=TOOLS, tokenize=False, add_generation_prompt=True
        )
    assert tokens.template_drift == ""
    assert tokens.dropped == (3 if ends == "other" else 0)
    # An end token that the policy sampled is its own; one that it did not is the template's.
    n_ends = sum(bit for id, bit in zip(tokens.response_ids, tokens.response_mask, strict=True) if id == end_id(codec))
    assert n_ends == (3 if ends == "sampled" else 0)


@slow_start
@given(
    turns=st.lists(
        st.tuples(texts.map(lambda text: f"a{text}z"), st.lists(texts, min_size=1, max_size=2), st.booleans()),
        max_size=3,
    )
)
def test_ids_are_those_of_the_chat_template_for_any_text_without_thinking(
    codec: TokenCodec, turns: list[tuple[str, list[str], bool]]
) -> None:
    """The tool's outputs are as an episode shows them; the turns hold no tag that a template looks for."""
    config = EpisodeConfig(protocol="tool_calls", special_tokens=codec.added, max_observation_chars=10_000)
    tokens = opened(codec)
    done: list[tuple[str, list[str]]] = []
    for text, outputs, ended in turns:
        said = codec.decode(codec.encode_neutral(text.replace("think", "")))
        ids = codec.encode(said)
        tokens.add_turn([*ids, end_id(codec)] if ended else ids, None, said)
        done.append((said, [shown(config, output) for output in outputs]))
        tokens.add_messages(chat(*done), len(outputs))
    assert tokens.template_drift == ""
    assert tokens.ids == from_template(codec, chat(*done))


def shown(config: EpisodeConfig, output: str) -> str:
    """What an episode shows of a tool's output."""
    return render(ToolResult(output), config.limits, (*get_protocol(config.protocol).tags, *config.special_tokens))


def test_thinking_that_the_template_keeps_is_no_drift() -> None:
    codec = TokenCodec(load("qwen3"))
    turns = [("<think>\nhm\n</think>\n\n" + CALL, ["42"]), ("<think>\nso\n</think>\n\nNow " + CALL, ["43"])]
    tokens = opened(codec)
    for n, (text, outputs) in enumerate(turns, start=1):
        tokens.add_turn([*codec.encode(text), end_id(codec)], None, text)
        tokens.add_messages(chat(*turns[:n]), len(outputs))
        assert tokens.ids == from_template(codec, chat(*turns[:n]))
    assert tokens.template_drift == ""


def test_where_the_template_writes_earlier_turns_anew_the_sampled_ones_stay_and_it_says_so() -> None:
    codec = TokenCodec(load("qwen3"))
    text = "<think>hm</think>" + CALL  # the template would put line feeds around it
    ids = [*codec.encode(text), end_id(codec)]
    tokens = opened(codec)
    tokens.add_turn(ids, None, text)
    tokens.add_messages(chat((text, ["42"])), 1)
    assert tokens.response_ids[: len(ids)] == ids
    rest = "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert tokens.response_ids[len(ids) :] == codec.encode(rest)
    assert "the policy had" in tokens.template_drift
    assert "<think>hm</think>" in tokens.template_drift
    assert "<think>\\nhm\\n</think>" in tokens.template_drift


def test_thinking_that_the_template_strips_from_earlier_turns_stays(small: Any) -> None:
    small.chat_template = small.chat_template.replace("message.content", "message.content.split('</think>')[-1]")
    codec = TokenCodec(small)
    turns = [("<think>one</think>" + CALL, ["1"]), ("<think>two</think>" + CALL, ["2"])]
    tokens = opened(codec)
    for n, (text, outputs) in enumerate(turns, start=1):
        tokens.add_turn([*codec.encode(text), end_id(codec)], None, text)
        tokens.add_messages(chat(*turns[:n]), len(outputs))
    rest = "\n<|im_start|>tool\n{}<|im_end|>\n<|im_start|>assistant\n"
    expected = "".join(text + "<|im_end|>" + rest.format(outputs[0]) for text, outputs in turns)
    assert tokens.response_ids == codec.encode(expected)
    assert "<think>one</think>" in tokens.template_drift


def test_an_opening_that_the_template_does_not_repeat_is_drift() -> None:
    codec = TokenCodec(load("qwen3"), template_options={"enable_thinking": False})
    tokens = opened(codec)
    tokens.add_turn([*codec.encode(CALL), end_id(codec)], None, CALL)
    tokens.add_messages(chat((CALL, ["42"])), 1)
    assert codec.decode(tokens.ids).endswith("</tool_response>\nassistant\n<think>\n\n</think>\n\n")
    assert tokens.template_drift != ""


def test_a_token_that_reaches_past_a_call_stays_and_is_said() -> None:
    codec = TokenCodec(load("llama3_2"))
    ids = [*codec.encode(CALL[:-1]), *codec.encode(">\n")]
    assert len(codec.encode(">\n")) == 1
    tokens = opened(codec)
    tokens.add_turn(ids, None, CALL + "\n", CALL)
    tokens.add_messages(chat((CALL, ["42"])), 1)
    assert tokens.response_ids[: len(ids)] == ids
    assert "past the end" in tokens.template_drift


def test_a_template_that_refuses_the_conversation_is_named(small: Any) -> None:
    small.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    )
    tokens = opened(TokenCodec(small))
    with pytest.raises(ConfigurationError, match=r"refuses messages of user, assistant, tool: no tools"):
        tokens.add_messages(chat((CALL, ["42"])), 1)
    small.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    tokens = opened(TokenCodec(small))
    tokens.add_turn([1], None, "a")
    with pytest.raises(ConfigurationError, match="leaves out the last turn"):
        tokens.add_messages(chat(("a", ["42"])), 1)


def test_without_a_chat_template_the_prompt_is_plain_and_tools_are_refused(small: Any) -> None:
    small.chat_template = None
    codec = TokenCodec(small)
    assert opened(codec).ids == codec.encode("What is 6 * 7?")
    with pytest.raises(ConfigurationError, match="no chat template"):
        opened(codec, tools=TOOLS)
