"""What holds for every attempt with a real engine: each turn is there whole, once, and as the model sampled it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from retool_env.rollout.attempt import AttemptResult


def check_tokens(result: AttemptResult) -> None:
    """The tokens are the prompt, and then each turn and each observation once, in order."""
    tokens, codec = result.tokens, result.tokens.codec
    kinds = [segment.kind for segment in tokens.segments()]
    turns = result.record.turns
    wanted = ["prompt"] + ["sampled", "appended"] * len(turns)
    assert kinds in (wanted, wanted[:-1])
    shown = [text for turn in turns for text in (turn.kept, turn.observation)]
    assert codec.decode(result.response_ids).strip() == "".join(shown).strip()
    sampled = [len(segment.ids) for segment in tokens.segments() if segment.kind == "sampled"]
    assert sum(result.response_mask) == sum(sampled)
    assert tokens.exact
    assert tokens.has_logprobs


def check_replay(result: AttemptResult, replay: Callable[[Sequence[int]], Sequence[float]], tolerance: float) -> int:
    """A forward pass over the whole text gives each sampled token the logprob it was sampled with.

    Args:
        result: The attempt.
        replay: Returns the logprob of each id but the first.
        tolerance: Most that one may differ.

    Returns:
        How many tokens were compared.
    """
    tokens = result.tokens
    replayed = [0.0, *replay(tokens.ids)]
    at = [place for place, sampled in enumerate(tokens.mask) if sampled]
    recorded = [tokens.logprobs[place] for place in at]
    assert recorded == pytest.approx([replayed[place] for place in at], abs=tolerance)
    return len(at)
