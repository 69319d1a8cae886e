"""``RetoolExecutor``: ReTool's attempts as an agent executor of OpenRLHF.

OpenRLHF makes one in each of its vLLM actors and awaits ``execute`` for every sample, many at a time, in vLLM's own
event loop. The attempt itself is the package's one loop, ``retool_env.rollout.attempt``; this hands it the vLLM engine
and turns its tokens into the dict that OpenRLHF trains on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from itertools import groupby
from pathlib import Path
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from retool_env.errors import ConfigurationError, PolicyError, ProblemError, SandboxError
from retool_env.plain import plain_text
from retool_env.protocol.base import EndReason
from retool_env.rollout.attempt import AttemptConfig, AttemptResult, attempt, make_codec
from retool_env.rollout.measure import measure
from retool_env.shared_sandbox import shared_sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget
from retool_env.trajectory import write_jsonl
from retool_openrlhf.engine import RolloutEngine
from retool_openrlhf.options import Settings, read_environment
from retool_openrlhf.rows import read_label

_log = logging.getLogger(__name__)


class RetoolExecutor(AgentExecutorBase):
    """Makes attempts with code. See ``adapters/openrlhf/README.md`` for the configuration.

    What ends an attempt through no fault of the policy (a row that is wrong, the sandbox, the engine, the deadline)
    does not end the batch, and with ``on_fault: mask`` is not learned from: it has no action range and a reward of 0.0.
    With ``score`` the ranges stay; with ``raise`` the error is raised, and OpenRLHF's whole step with it.
    """

    def __init__(self, settings: Settings | None = None):
        """Starts nothing.

        Args:
            settings: How attempts are made; what the environment says if None.

        Raises:
            ConfigurationError: As ``read_environment``.
        """
        self._settings = read_environment() if settings is None else settings
        self._codecs: dict[tuple[Any, ...], tuple[TokenCodec, list[str]]] = {}
        self._configs: dict[tuple[Any, ...], AttemptConfig] = {}
        self._some_row_was_right = False

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Makes an attempt.

        Args:
            prompt: The bare question.
            label: The gold answer (``retool_openrlhf.rows.read_label``).
            sampling_params: vLLM's. ``max_tokens`` bounds the response where it is not None.
            max_length: ``--data.max_len``: tokens of prompt and response, outputs of code included.
            hf_tokenizer: The model's.
            llm_engine: OpenRLHF's rollout actor.
            images: None: an attempt is text.

        Returns:
            What ``SamplesGenerator`` makes an ``Experience`` of.

        Raises:
            ConfigurationError: The run is set up in a way that cannot work.
            AttemptFaultError, PolicyError, ProblemError, SandboxError: A fault, and ``on_fault`` is ``"raise"``.
            RewardError: A reward of the user's own returned something that is not a finite number.
            SandboxUnavailableError: The sandbox cannot run here at all.
        """
        codec, control = self._look_at(getattr(hf_tokenizer, "tokenizer", hf_tokenizer))
        engine = RolloutEngine(llm_engine, codec, sampling_params)
        result: AttemptResult | None = None
        try:
            self._check(prompt, label, images, control)
            problem, evaluation = read_label(prompt, label, self._settings.attempt.episode.grader)
            config = self._config(max_length, sampling_params.max_tokens, evaluation=evaluation)
            sandbox = shared_sandbox(self._settings.sandbox)
            result = await attempt(problem, engine, codec, sandbox, config)
            if result.outcome.ended is EndReason.MAX_LENGTH and not result.response_ids:
                engine.prompt_ids, result = result.prompt_ids, None
                raise PolicyError(
                    f"the prompt has {len(engine.prompt_ids)} tokens, which leaves no turn within {max_length}; raise "
                    "--data.max_len, which must hold the protocol's instructions, too"
                )
        except (PolicyError, ProblemError, SandboxError) as error:
            never_ran = isinstance(error, SandboxError) and sandbox.own is None
            if never_ran or self._settings.attempt.on_fault == "raise":
                raise  # a sandbox that cannot even start here is no fault of a moment
            _log.warning("%.100r: the attempt is lost: %s", prompt, error)
        else:
            if result.fault:
                _log.warning("problem %s: the attempt ended as %s: %s", problem.id, result.outcome.ended, result.fault)
            if self._settings.record is not None:
                await _record(result, self._settings.record)
        ids = engine.prompt_ids or codec.encode(plain_text(str(prompt)))
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": None,
            **_tokens(result, ids[:max_length], hf_tokenizer.eos_token_id, sampling_params.logprobs is not None),
            **_figures(result),
        }

    def _check(self, prompt: object, label: object, images: object, control: list[str]) -> None:
        """Finds what is wrong with the first row, and then with the whole run; or else with a row.

        Raises:
            ConfigurationError: A flag does not go with this executor.
            ProblemError: Other rows were right.
        """
        try:
            _check(prompt, label, images, control)
        except ConfigurationError as error:
            if self._some_row_was_right:
                raise ProblemError(str(error)) from error
            raise
        self._some_row_was_right = True

    def _look_at(self, tokenizer: Any) -> tuple[TokenCodec, list[str]]:
        """Returns the codec of a tokenizer and its control tokens.

        Looks at it once: OpenRLHF sends a new copy of the same one with every prompt. (What tells them apart must be
        cheap: ``len(tokenizer)`` makes a dict of the whole vocabulary, and vLLM would wait for it in every attempt.)
        """
        n_tokens = (tokenizer.vocab_size, len(tokenizer.added_tokens_decoder))
        key = (type(tokenizer), tokenizer.name_or_path, n_tokens, str(tokenizer.chat_template))
        if key not in self._codecs:
            codec = make_codec(tokenizer, self._settings.attempt)
            tokens = [codec.decode([id], with_control=True) for id in sorted(codec.control)]
            self._codecs[key] = codec, list(filter(None, tokens))
        return self._codecs[key]

    def _config(self, max_length: int, max_tokens: int | None, *, evaluation: bool) -> AttemptConfig:
        key = (max_length, max_tokens, evaluation)
        if key not in self._configs:
            config = self._settings.evaluation if evaluation else self._settings.attempt
            response = max_length if max_tokens is None else max_tokens
            rules = config.budget.model_dump() | {"context": max_length, "response": response}
            rules["min_turn"] = min(rules["min_turn"], response, max_length)
            self._configs[key] = config.model_copy(update={"budget": TokenBudget(**rules)})
        return self._configs[key]


async def _record(result: AttemptResult, folder: Path) -> None:
    """Adds an attempt to this process's file. A disk that is full costs the record, not the step."""
    try:
        await asyncio.to_thread(write_jsonl, folder / f"{socket.gethostname()}-{os.getpid()}.jsonl", result.record)
    except OSError as error:
        _log.warning("problem %s: the attempt is not recorded: %s", result.record.problem.id, error)


def _check(prompt: object, label: object, images: object, control: list[str]) -> None:
    """Finds what a flag that is wrong does to a row.

    Raises:
        ConfigurationError: A flag does not go with this executor.
    """
    if images:
        raise ConfigurationError(
            "images: attempts are text; leave out --data.max_images_per_prompt, and the column of images"
        )
    if label == "":
        raise ConfigurationError("label: it is empty; name the column of the gold answers with --data.label_key label")
    if not isinstance(prompt, str):
        raise ConfigurationError(
            f"prompt: must be the question as text, got {prompt!r:.100}; --data.input_key names another column"
        )
    if found := next((token for token in control if token in prompt), None):
        raise ConfigurationError(
            f"prompt: it holds {found!r}, so it has been through a chat template; leave out "
            "--data.apply_chat_template: the executor itself puts instructions and template around the question"
        )


def _tokens(
    result: AttemptResult | None, prompt_ids: list[int], end: int | None, with_logprobs: bool
) -> dict[str, Any]:
    """Returns the fields that are tokens."""
    ids = prompt_ids if result is None else [*result.prompt_ids, *result.response_ids]
    mask = [] if result is None else result.response_mask
    logprobs = [] if result is None else result.response_logprobs
    n_prompt = len(ids) - len(mask)
    while len(ids) < 2:  # OpenRLHF shifts its masks by one
        ids = [*ids, end or 0]
    ranges, at = [], n_prompt
    for sampled, run in groupby(mask):
        n = len(list(run))
        if sampled:
            ranges.append((at, at + n))
        at += n
    return {
        "observation_tokens": ids,
        "action_ranges": ranges,
        "rollout_log_probs": [0.0] * (len(ids) - len(logprobs)) + logprobs if with_logprobs else None,
    }


def _figures(result: AttemptResult | None) -> dict[str, Any]:
    """Returns the fields that are figures of the attempt."""
    if result is None:
        return {"reward": 0.0, "scores": 0.0, "truncated": False, "extra_logs": measure(None)}
    outcome = result.outcome
    return {
        "reward": float(result.reward),
        "scores": float(outcome.correct),
        "truncated": outcome.ended.truncated and not outcome.fault,
        "extra_logs": measure(result),
    }
