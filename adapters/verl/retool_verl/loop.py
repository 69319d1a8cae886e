"""``RetoolAgentLoop``: ReTool's attempts as an agent loop of verl.

verl builds one for each attempt, awaits ``run`` and trains on what it returns. The attempt itself is the package's one
loop, ``retool_env.rollout.attempt``; this hands it verl's servers and turns its tokens into verl's ``AgentLoopOutput``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from retool_env.errors import ConfigurationError, PolicyError, SandboxError
from retool_env.rollout.attempt import AttemptResult, attempt, make_codec
from retool_env.rollout.measure import measure
from retool_env.shared_sandbox import shared_sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.trajectory import write_jsonl
from retool_verl.engine import ServerEngine
from retool_verl.options import OPTIONS, Settings, read_options
from retool_verl.rows import row_problem

_log = logging.getLogger(__name__)

_OF_VERL: Final = frozenset(inspect.signature(AgentLoopBase.__init__).parameters) | {"name", "tools"}
"""What verl hands to an agent loop's constructor beside the keys of its entry."""


class RetoolAgentLoop(AgentLoopBase):
    """One attempt at one problem, with code. See ``adapters/verl/README.md`` for the configuration.

    What ends an attempt through no fault of the policy (the sandbox, a server, the deadline) neither stops the batch
    nor is learned from: ``on_fault: mask`` returns it with a mask of zeros and a reward of 0.0. With ``score`` the mask
    stays; with ``raise`` the error is raised. verl's legacy trainer then ends with it; the default one goes on without
    that attempt where it trains in step with the rollouts, and without its whole group where it does not.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Takes what verl gives, and the keys of the entry in ``agent_loop_config_path`` (``retool_verl.options``).

        Raises:
            ConfigurationError: A key is unknown or has a value that cannot work here.
        """
        own = {key: _plain(value) for key, value in kwargs.items() if key in OPTIONS}
        rest = {key: value for key, value in kwargs.items() if key not in OPTIONS}
        for key, value in rest.items():
            # What a later version of verl may add are objects; a mistyped key of the entry is plain data.
            if key not in _OF_VERL and isinstance(value, str | int | float | DictConfig | ListConfig | None):
                raise ConfigurationError(f"agent loop: unknown key {key!r}; there are {', '.join(OPTIONS)}")
        super().__init__(*args, **rest)
        rollout = self.config.actor_rollout_ref.rollout
        self._sglang = rollout.get("name") == "sglang"
        template_options = _plain(self.config.data.get("apply_chat_template_kwargs")) or {}
        n_nodes = max(1, int((self.config.get("trainer") or {}).get("nnodes") or 1))
        limits = {
            "prompt_length": int(rollout.prompt_length),
            "response_length": int(rollout.response_length),
            "max_model_len": rollout.get("max_model_len"),
            "workers_per_node": math.ceil(int(rollout.agent.num_workers) / n_nodes),
            "template_options": template_options,
        }
        self._settings, self._codec = _set_up(self.tokenizer, json.dumps([own, limits], sort_keys=True))
        _check(rollout, self._settings)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Makes the attempt.

        Args:
            sampling_params: verl's, without a number of tokens.
            **kwargs: The fields of the row (``retool_verl.rows``).

        Raises:
            ProblemError: The row holds no problem.
            AttemptFaultError, PolicyError, SandboxError: A fault, and ``on_fault`` is ``"raise"``.
            SandboxUnavailableError: The sandbox cannot run here at all.
        """
        settings = self._settings
        engine = ServerEngine(
            self.server_manager,
            self._codec,
            sampling_params,
            prompt_length=settings.prompt_length,
            sglang=self._sglang,
            request={"priority": int(kwargs["priority"])} if kwargs.get("priority") is not None else None,
        )
        sandbox = shared_sandbox(settings.sandbox)
        problem = row_problem(kwargs, settings.attempt.episode.grader)
        try:
            result = await attempt(problem, engine, self._codec, sandbox, settings.attempt)
        except (PolicyError, SandboxError) as error:
            never_ran = isinstance(error, SandboxError) and sandbox.own is None
            if never_ran or settings.attempt.on_fault == "raise":
                raise  # a sandbox that cannot even start here is no fault of a moment
            _log.warning("problem %s: the attempt is lost: %s", problem.id, error)
            result = None
        else:
            if result.fault:
                _log.warning("problem %s: the attempt ended as %s: %s", problem.id, result.outcome.ended, result.fault)
            if settings.record is not None:
                file = settings.record / f"{socket.gethostname()}-{os.getpid()}.jsonl"
                try:
                    await asyncio.to_thread(write_jsonl, file, result.record)
                except OSError as error:  # a full disk is no reason to end a training
                    _log.error("problem %s: the attempt is not recorded: %s", problem.id, error)
        return self._output(result, engine, with_logprobs=bool(sampling_params.get("logprobs")))

    def _output(self, result: AttemptResult | None, engine: ServerEngine, *, with_logprobs: bool) -> AgentLoopOutput:
        served = engine.served
        prompt_ids = result.prompt_ids if result is not None else served.prompt_ids
        ids = result.response_ids if result is not None else []
        mask = result.response_mask if result is not None else []
        logprobs = result.response_logprobs if result is not None else []
        if not ids:  # verl's default trainer cannot hold an empty response
            ids, mask, logprobs = [_filler(self.tokenizer)], [0], [0.0]
        return AgentLoopOutput(
            prompt_ids=prompt_ids[-self._settings.prompt_length :],
            response_ids=ids,
            response_mask=mask,
            response_logprobs=logprobs if with_logprobs else None,
            reward_score=0.0 if result is None else result.reward,
            num_turns=1 if result is None else 1 + sum(1 + bool(turn.observation) for turn in result.record.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=0.0 if result is None else result.generate_s,
                tool_calls=0.0 if result is None else result.work_s,
                num_preempted=-1 if served.preempted is None else served.preempted,
            ),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": served.min_steps,
                "max_global_steps": served.max_steps,
                "reward_extra_info": measure(result),
            },
        )


@lru_cache(maxsize=8)
def _set_up(tokenizer: Any, said: str) -> tuple[Settings, TokenCodec]:
    """Reads the configuration and looks at the tokenizer once for all attempts of this process."""
    own, limits = json.loads(said)
    settings = read_options(own, **limits)
    return settings, make_codec(tokenizer, settings.attempt)


def _check(rollout: Any, settings: Settings) -> None:
    """Finds what would else go wrong without a word.

    Raises:
        ConfigurationError: Something in verl's configuration does not go with this loop.
    """
    if rollout.get("enable_rollout_routing_replay"):
        raise ConfigurationError("rollout.enable_rollout_routing_replay: not supported by this agent loop")
    stops = settings.attempt.episode.protocol != "tool_calls"
    if rollout.get("name") == "sglang" and rollout.get("skip_tokenizer_init") and stops:
        raise ConfigurationError(
            "rollout.skip_tokenizer_init: SGLang only knows stop strings with a tokenizer, and the protocol "
            f"{settings.attempt.episode.protocol!r} needs them; set it to False"
        )


def _filler(tokenizer: Any) -> int:
    for id in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        if id is not None:
            return int(id)
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, DictConfig | ListConfig):
        return OmegaConf.to_container(value, resolve=True)
    return dict(value) if isinstance(value, Mapping) else value
