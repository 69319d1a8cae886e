"""``ScriptedEngine``: turns that a test has written, ended as an engine would end them."""

import pytest

from retool_env.errors import PolicyError
from retool_env.rollout.attempt import AttemptConfig, make_codec
from retool_env.rollout.engines import (
    GenerateParams,
    Generation,
    ScriptedEngine,
)

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path


async def test_a_scripted_turn_ends_as_an_engine_would_end_it() -> None:
    codec = make_codec(load("small"), AttemptConfig())
    end = int(codec.tokenizer.eos_token_id)
    turns = ["a</code>b", "abc", "abc", [*codec.encode("ab"), end, 5], Generation([1], "x"), PolicyError("no")]
    engine = ScriptedEngine(codec, turns)
    stop = GenerateParams(max_tokens=100, stop=("</code>",))
    generation = await engine.generate([1], stop)
    assert (generation.ids, generation.text, generation.stop_reason) == (
        codec.encode("a</code>"),
        "a</code>",
        "</code>",
    )
    generation = await engine.generate([1], stop)
    assert (generation.ids, generation.text) == ([*codec.encode("abc"), end], "abc")
    generation = await engine.generate([1], GenerateParams(max_tokens=1))
    assert (generation.ids, generation.finish_reason) == (codec.encode("abc")[:1], "length")
    assert (await engine.generate([1], stop)).ids == [*codec.encode("ab"), end]
    assert await engine.generate([1], stop) == Generation([1], "x")
    with pytest.raises(PolicyError, match="no"):
        await engine.generate([1], stop)
    with pytest.raises(PolicyError, match="no turn for call 7"):
        await engine.generate([1], stop)
