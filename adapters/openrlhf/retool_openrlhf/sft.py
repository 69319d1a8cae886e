"""Supervised training with OpenRLHF on the tokens of attempts: ``train_sft`` with another data set, the same flags.

    deepspeed --module retool_openrlhf.sft --data.dataset data/sft.parquet --data.input_key messages ...

OpenRLHF's own data set learns all that stands in an assistant's message, so with ``code_tags`` the model would learn to
write outputs; it shows the chat template no tools; and it finds the assistant's turns by counting tokens of pieces,
which is off by some where a template writes earlier turns otherwise (Qwen3). Here the tokens are those of an attempt
that goes this way, and what an attempt samples is what is learned. ``template_options`` of ``retool_openrlhf.options``
count.
"""

from __future__ import annotations

import json
import logging
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openrlhf.datasets import SFTDataset

from retool_env.cold_start import split_shown
from retool_env.errors import ConfigurationError, ProblemError
from retool_env.protocol import get_protocol
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenTrajectory
from retool_openrlhf.options import read_environment

_log = logging.getLogger(__name__)


class ReToolSFTDataset(SFTDataset):
    """Conversations as ``retool data sft --for openrlhf`` writes them. What is longer than ``max_length`` is cut."""

    def __init__(self, dataset: Any, tokenizer: Any, max_length: int, strategy: Any, *args: Any, **kwargs: Any):
        """Encodes all rows.

        Args:
            dataset: The rows.
            tokenizer: The model's.
            max_length: Most tokens of a row.
            strategy: OpenRLHF's.
            *args: What else OpenRLHF says; all of it is about its own way to find the assistant's turns.
            **kwargs: The same.

        Raises:
            ConfigurationError: There is no row that can be learned from, or the column of conversations is missing.
            ProblemError: A row holds no conversation.
        """
        torch.utils.data.Dataset.__init__(self)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.pretrain_mode = False
        self.multiturn = True
        key = getattr(strategy.args.data, "input_key", "messages")
        if key not in dataset.column_names:
            raise ConfigurationError(
                f"--data.input_key: the data have no column {key!r}; they have {', '.join(dataset.column_names)}"
            )
        options = read_environment().attempt.template_options
        tags = {tag for name in ("code_tags", "tool_calls") for tag in get_protocol(name).tags}
        codec = TokenCodec(tokenizer, tags=sorted(tags), template_options=options)
        end = turn_end(codec)
        self.items: list[tuple[list[int], list[int]]] = []
        n_cut = 0
        for number, row in enumerate(dataset):
            try:
                ids, mask = conversation_tokens(codec, row[key], json.loads(row.get("tools") or "[]"), end)
            except (ConfigurationError, KeyError, TypeError, ValueError) as error:
                raise ProblemError(
                    f"row {number}: it is not as `retool data sft --for openrlhf` writes it: {error}"
                ) from error
            n_cut += len(ids) > max_length
            if any(mask[1:max_length]):
                self.items.append((ids[:max_length], mask[:max_length]))
        if not self.items:
            raise ConfigurationError(f"--data.max_len: no row has anything to learn within {max_length} tokens")
        if n_cut:
            _log.warning("%d of %d rows are longer than %d tokens and were cut", n_cut, len(dataset), max_length)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns ids, attention mask and loss mask, each of shape (1, n). The loss mask is of the next token."""
        ids, mask = self.items[idx]
        learned = torch.tensor([[*mask[1:], 0]], dtype=torch.float32)
        return torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long), learned


def turn_end(codec: TokenCodec) -> int | None:
    """Returns the token that ends a turn: the one that the chat template writes there, or else the end of texts."""
    if codec.has_template:
        asked = {"role": "user", "content": "?"}
        rest, _ = codec.continuation([asked, {"role": "assistant", "content": "!"}, asked], 1, (), "\0")
        if (ids := codec.encode(rest)) and ids[0] in codec.control:
            return ids[0]
    end = codec.tokenizer.eos_token_id
    return None if end is None else int(end)


def conversation_tokens(
    codec: TokenCodec, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], end: int | None
) -> tuple[list[int], list[int]]:
    """Returns the tokens of a conversation as an attempt would have them, and 1 for each that the policy writes.

    Args:
        codec: Of the model's tokenizer.
        messages: The conversation: what opens it, then turns of the assistant and of tools.
        tools: Schemas of the tools that the chat template shows.
        end: The token that ends a turn; None for none.
    """
    turns = [{"role": each["role"], "content": each["content"]} for each in messages]
    opening = next((n for n, each in enumerate(turns) if each["role"] == "assistant"), len(turns))
    tokens = TokenTrajectory.open(codec, turns[:opening], tools=tools)
    place = opening
    while place < len(turns):
        last = place == len(turns) - 1 or turns[place + 1]["role"] == "assistant"
        pieces = split_shown(turns[place]["content"])
        for number, (text, shown) in enumerate(pieces):
            if shown:
                tokens.add_text(text)
                continue
            ids = codec.encode(text)
            if number == len(pieces) - 1 and end is not None:
                ids.append(end)
            tokens.add_turn(ids, None, text)
        place += 1
        if last:
            continue
        n_new = next((n for n, each in enumerate(turns[place:]) if each["role"] == "assistant"), len(turns) - place)
        tokens.add_messages(turns[: place + n_new], n_new)
        place += n_new
    return tokens.ids, tokens.mask


def main() -> None:
    """Runs OpenRLHF's ``train_sft`` with this data set in place of its own."""
    import openrlhf.datasets

    openrlhf.datasets.SFTDataset = ReToolSFTDataset
    runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Under its own name, which is not that of the script: else there would be two of the class.
    from retool_openrlhf.sft import main as run

    run()
