"""``FittedEpisode``: an episode whose observations are made to fit what is left of a budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from retool_env.episode import Episode
from retool_env.protocol.base import Observation
from retool_env.protocol.observation import MIN_CLIP_CHARS
from retool_env.sandbox.api import ExecutionResult
from retool_env.tools import ToolCall, ToolResult

Fits = Callable[[Observation], bool]


class FittedEpisode(Episode):
    """An episode that shortens results until their observation fits: what they show, never the protocol's wrapper.

    A result keeps its head and its tail around a note of how much is left out, as with ``max_observation_chars``. All
    results of a turn are shortened to the same length. Below ``MIN_CLIP_CHARS`` each nothing can be done: the
    observation is made all the same, and the driver must see that it does not fit.

    Attributes:
        fits: Says whether an observation fits; set by the driver. None if everything does.
        n_shortened: Observations that were shortened.
    """

    fits: Fits | None = None
    n_shortened: int = 0

    def _shown(
        self, calls: Sequence[ToolCall], results: Sequence[ExecutionResult | ToolResult], restarted: Collection[int]
    ) -> Observation:
        """Returns what the policy sees of results, shortened if need be."""
        observation = super()._shown(calls, results, restarted)
        if self.fits is None or self.fits(observation):
            return observation
        self.n_shortened += 1

        def shortened(max_chars: int) -> Observation:
            limits = replace(self.config.limits, max_observation_chars=max_chars)
            return self._rendered(calls, results, restarted, limits)

        low, high = MIN_CLIP_CHARS, self.config.max_observation_chars
        shortest = shortened(low)  # not known to fit, but nothing shorter is to be had
        while high - low > 1:
            middle = (low + high) // 2
            tried = shortened(middle)
            if self.fits(tried):
                low, shortest = middle, tried
            else:
                high = middle
        return shortest
