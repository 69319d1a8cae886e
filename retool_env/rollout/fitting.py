"""``FittedEpisode``: an episode whose observations are made to fit what is left of a budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from retool_env.episode import Episode
from retool_env.protocol import get_protocol
from retool_env.protocol.base import Action, Finish, Observation, RunCode
from retool_env.protocol.observation import MIN_CLIP_CHARS, render
from retool_env.sandbox.api import ExecutionResult, ExecutionStatus
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
    _calls_read: tuple[ToolCall, ...] = ()

    def read(self, text: str, finish: Finish = "stop", stop_reason: object = None) -> Action:
        """Reads a turn; see ``Episode.read``."""
        action = super().read(text, finish, stop_reason)
        self._calls_read = action.calls if isinstance(action, RunCode) else ()
        return action

    def observe(
        self, results: Sequence[ExecutionResult | ToolResult] = (), *, restarted: Collection[int] = ()
    ) -> Observation:
        """Takes the results, shortens them if need be, and returns what the policy sees; see ``Episode.observe``."""
        if results and self.fits is not None:
            fitted = self._fitted(results, restarted, self.fits)
            if fitted is not None:
                return super().observe(fitted)
        return super().observe(results, restarted=restarted)

    def _fitted(
        self, results: Sequence[ExecutionResult | ToolResult], restarted: Collection[int], fits: Fits
    ) -> list[ExecutionResult | ToolResult] | None:
        """Returns results that show what fits; None if they do as they are."""
        protocol = get_protocol(self.config.protocol)
        markers = (*protocol.tags, *self.config.special_tokens)

        def shown(max_chars: int) -> list[str]:
            limits = replace(self.config.limits, max_observation_chars=max_chars)
            return [
                render(result, limits, markers, restarted=number in restarted) for number, result in enumerate(results)
            ]

        high = self.config.max_observation_chars
        if fits(protocol.observe(shown(high), self._calls_read)):
            return None
        self.n_shortened += 1
        low = MIN_CLIP_CHARS  # not known to fit, but nothing shorter is to be had
        while high - low > 1:
            middle = (low + high) // 2
            if fits(protocol.observe(shown(middle), self._calls_read)):
                low = middle
            else:
                high = middle
        return [_showing(result, text) for result, text in zip(results, shown(low), strict=True)]


def _showing(result: ExecutionResult | ToolResult, text: str) -> ExecutionResult | ToolResult:
    """A result that is shown as a text that has been rendered already; rendering that again changes nothing."""
    if isinstance(result, ToolResult):
        return ToolResult(text)
    return replace(result, status=ExecutionStatus.OK, stdout=text, stderr="", truncated=False)
