"""``ReToolSFTDataset``: verl's multi-turn data set, without a loss on what the interpreter wrote.

With ``code_tags`` an attempt is one message of the assistant, the outputs of code in it, and verl's own data set would
teach the model to write them. This one leaves them out, as the agent loop does. Conversations with ``tool_calls`` come
through unchanged.

    data.custom_cls.path=pkg://retool_verl.sft
    data.custom_cls.name=ReToolSFTDataset
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from retool_env.cold_start import split_shown


class ReToolSFTDataset(MultiTurnSFTDataset):
    """verl's data set with a mask for outputs inside a message."""

    def _process_single_message(self, index: int, message: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        made = super()._process_single_message(index, message, *args, **kwargs)
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, str):
            return made
        input_ids, loss_mask, *rest = made
        for place in shown_tokens(self.tokenizer, input_ids.tolist()):
            loss_mask[place] = 0
        return (input_ids, loss_mask, *rest)


def shown_tokens(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns the places of the tokens that lie wholly in what the policy was shown.

    A token that also holds the end of the policy's ``</code>`` is the policy's: it is what it samples.
    """
    ends = _ends(tokenizer, ids)
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    spans = []
    at = 0
    for piece, shown in split_shown(text):
        if shown:
            spans.append((at, at + len(piece)))
        at += len(piece)
    places = []
    start = 0
    for place, end in enumerate(ends):
        if any(first <= start and end <= last for first, last in spans) and end > start:
            places.append(place)
        start = end
    return places


def _ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns where the text of each token ends. Of a character in several tokens, only the last one has it."""
    ends: list[int] = []
    length, waiting = 0, 0
    for n in range(1, len(ids) + 1):
        piece = tokenizer.decode(ids[waiting:n], clean_up_tokenization_spaces=False)
        if piece.endswith("\ufffd"):  # not complete yet
            ends.append(length)
            continue
        length += len(piece)
        ends.append(length)
        waiting = n
    return ends
