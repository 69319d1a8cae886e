"""The space of texts: what an action and an observation of ``ReToolEnv`` are."""

from __future__ import annotations

import string
from typing import Any, Final, NoReturn

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

_SAMPLE_CHARSET: Final = string.ascii_letters + string.digits + string.punctuation + " \n"
_SAMPLE_LENGTH: Final = 256


class UnicodeText(Text):
    """Any Unicode text up to a length, the empty one included.

    gymnasium's ``Text`` holds only strings over a charset. A policy writes any Unicode, so here the charset (printable
    ASCII and the newline) serves only to sample; ``contains`` asks for a string of at most ``max_length`` characters.
    Samples are short (at most 256 characters): noise of the full length would only cost time.

    It has no place in shared memory: ``AsyncVectorEnv`` wants ``shared_memory=False``, and says so.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None):
        """Makes the space.

        Args:
            max_length: Longest text, in characters; at least 0.
            seed: For sampling.
        """
        super().__init__(max_length, min_length=0, charset=_SAMPLE_CHARSET, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns a random text of printable ASCII, of at most 256 characters unless the mask asks for a length.

        Args:
            mask: As for ``gymnasium.spaces.Text.sample``.
            probability: As for ``gymnasium.spaces.Text.sample``.
        """
        given = mask if mask is not None else probability
        length, weights = (None, None) if given is None else given
        if length is None:
            length = int(self.np_random.integers(0, min(self.max_length, _SAMPLE_LENGTH) + 1))
        if probability is not None:
            return super().sample(mask=mask, probability=(length, weights))
        return super().sample(mask=(length, weights))

    def contains(self, x: Any) -> bool:
        """Returns whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length


@create_shared_memory.register(UnicodeText)
def _refuse_shared_memory(space: UnicodeText, n: int = 1, ctx: Any = None) -> NoReturn:
    """Keeps ``Text``'s shared memory away, which drops every character outside the charset without a word.

    Raises:
        CustomSpaceError: Always. gymnasium's ``AsyncVectorEnv`` (1.1 to 1.4) turns it into advice to the user.
    """
    raise CustomSpaceError(
        f"{space} holds any Unicode text and cannot be put into shared memory: pass shared_memory=False "
        "(gymnasium.make_vec: vector_kwargs={'shared_memory': False})"
    )
