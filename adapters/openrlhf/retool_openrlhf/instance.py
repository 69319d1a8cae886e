"""``RetoolInstance``: an attempt for OpenRLHF's own ``MultiTurnAgentExecutor``, for those who stay with that loop.

It gives less than ``retool_openrlhf.executor``, because the loop gives an instance neither the tokenizer nor the end of
a turn, and has no hook for the attempt's end:

- stop strings hold from the second turn on; what the policy wrote past its first block stays in the tokens;
- outputs are shortened by characters (``max_observation_chars``), not to what is left of ``max_len``;
- a turn that was cut by length is read as if it had ended by itself;
- a fault (the sandbox, the grader) pays 0.0, and is learned from;
- no ``tool_calls``, whose messages need the chat template, and no ``interpreter: session``, which needs an end.

Rows hold the whole prompt: ``retool data rl --for openrlhf --loop agent_instance``, and ``--data.apply_chat_template``.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any, Final

import torch
from openrlhf.utils.agent import AgentInstanceBase

from retool_env.driver import adrive
from retool_env.episode import Episode
from retool_env.errors import ProblemError, SandboxError
from retool_env.interpreter import make_interpreter
from retool_env.outcome import Outcome
from retool_env.problems import Problem
from retool_env.protocol.base import EndReason
from retool_env.shared_sandbox import shared_sandbox
from retool_openrlhf.options import Settings, check_instance, read_environment
from retool_openrlhf.rows import read_label

_log = logging.getLogger(__name__)

_CONTROL: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<think>", "</think>")
"""What output must not write beside the protocol's tags, and what ends a turn's text. An instance is not told its
tokenizer; these are the usual ones."""


class RetoolInstance(AgentInstanceBase):
    """One attempt. Whatever the policy writes and whatever fails, a step does not raise."""

    def __init__(self, settings: Settings | None = None):
        """Starts nothing.

        Args:
            settings: How attempts are made; what the environment says if None.

        Raises:
            ConfigurationError: As ``check_instance``, and as ``read_environment``.
        """
        self._settings = read_environment() if settings is None else settings
        check_instance(self._settings)
        self._episode: Episode | None = None

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Opens the attempt; the prompt stays as it is."""
        try:
            grader = self._settings.attempt.episode.grader
            problem, evaluation = read_label(states["observation"], states["label"], grader)
        except ProblemError as error:
            _log.warning("the attempt is lost: %s", error)
            problem, evaluation = Problem(id="row", question="?", answer="?"), False
            self._lost = True
        else:
            self._lost = False
        config = self._settings.evaluation if evaluation else self._settings.attempt
        rules = config.episode.model_copy(update={"special_tokens": _CONTROL})
        self._episode = Episode(problem, rules)
        self._interpreter = make_interpreter("fresh", shared_sandbox(self._settings.sandbox))
        return {"observation": states["observation"]}

    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Reads a turn, does what it asks for, and says what the policy sees next."""
        episode = self._episode
        assert episode is not None, "reset comes first"
        if self._lost:
            episode.fail(EndReason.ABORTED)
            return self._said("", None, state_dict)
        text = state_dict["action_text"]
        while ends := next((each for each in _CONTROL[1:4] if text.endswith(each)), None):
            text = text.removesuffix(ends)
        action = episode.read(text)
        try:
            done = await adrive(episode, action, self._interpreter)
        except SandboxError as error:
            if shared_sandbox(self._settings.sandbox).own is None:
                raise  # a sandbox that cannot even start here is no fault of a moment
            _log.warning("the attempt is lost: %s", error)
            episode.fail(EndReason.ABORTED)
            return self._said("", None, state_dict)
        shown = "" if done.observation is None or episode.over else done.observation.text
        return self._said(shown, episode, state_dict)

    def _said(self, shown: str, episode: Episode | None, state_dict: dict[str, Any]) -> dict[str, Any]:
        assert self._episode is not None
        outcome: Outcome | None = self._episode.outcome() if self._episode.over else None
        sampling = deepcopy(state_dict.get("sampling_params"))
        if sampling is not None:
            sampling.stop = self._episode.stop
            sampling.include_stop_str_in_output = True
        correct = outcome is not None and outcome.correct
        return {
            # OpenRLHF calls .item() of the rewards, and wants text, never None, as feedback.
            "rewards": torch.tensor(0.0 if outcome is None else float(outcome.reward)),
            "scores": float(correct),
            "environment_feedback": shown,
            "done": outcome is not None,
            "sampling_params": sampling,
            "extra_logs": {
                "acc": float(correct),
                "turns": float(self._episode.turns),
                "tool_calls": float(self._episode.tool_calls),
                "fault": float(outcome is not None and outcome.fault),
            },
        }
