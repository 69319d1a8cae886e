"""Texts, and trajectories of them: what the tests of tokens share."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from retool_env.protocol import get_protocol
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenTrajectory

QUESTION = ({"role": "user", "content": "What is 6 * 7?"},)
TAGS = get_protocol("code_tags").tags
CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'
PIECES = (
    *(
        "a",
        "x = 1",
        " the",
        "\n",
        "\n\n",
        "  ",
        "</",
        "code",
        ">",
        "</code>",
        "<code>",
        ">\n",
        "é",
        "e\u0301",
        "漢字",
        "😀",
    ),
    *(
        "👩‍👩‍👧",
        "🇩🇪",
        "\u200b",
        "\ufffd",
        "\\boxed{",
        "}",
        "```",
        "123456",
        "\t",
        "<|im_end|>",
        "<tool_call>",
        "</think>",
        "İ",
        "ﷺ",
    ),
)
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=12).map("".join)
slow_start = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def opened(codec: TokenCodec, **options: Any) -> TokenTrajectory:
    return TokenTrajectory.open(codec, QUESTION, **options)


def sample(codec: TokenCodec, text: str) -> tuple[list[int], list[float]]:
    """The ids of a text as a policy would sample them, with a logprob that tells each place apart."""
    ids = codec.encode(text)
    return ids, [-0.5 - place for place in range(len(ids))]


def end_id(codec: TokenCodec) -> int:
    return int(codec.tokenizer.eos_token_id)
