"""``ByteTokenizer``: a token for each byte. For scripted engines where no model's tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_END: Final = 256


@dataclass(frozen=True, slots=True)
class _AddedToken:
    content: str
    special: bool = True


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end token. It has no chat template."""

    def __init__(self) -> None:
        self.chat_template: Any = None
        self.eos_token_id: Any = _END
        self.added_tokens_decoder: Any = {_END: _AddedToken("<|end|>")}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the bytes of a text. There are no tokens to be put around it; ``<|end|>`` is an end token."""
        ids: list[int] = []
        for number, part in enumerate(text.split("<|end|>")):
            ids += [*([_END] if number else []), *part.encode()]
        return ids

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Returns the text of ids; a character that is not complete is U+FFFD."""
        parts: list[bytearray] = [bytearray()]
        for id in ids:
            if id == _END:
                parts.append(bytearray())
            else:
                parts[-1].append(id)
        between = "" if skip_special_tokens else "<|end|>"
        return between.join(part.decode(errors="replace") for part in parts)

    def apply_chat_template(self, *args: object, **kwargs: object) -> str:
        """There is none."""
        raise NotImplementedError("a ByteTokenizer has no chat template")
