"""``AsyncVllmEngine``: vLLM's own asynchronous engine in this process, as trainers such as OpenRLHF hold it."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Sequence
from typing import Any

from retool_env.errors import MissingDependencyError, PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, TurnLostError
from retool_env.rollout.engines.http import read_finish
from retool_env.rollout.engines.vllm import sampling


class AsyncVllmEngine:
    """A vLLM ``AsyncLLM`` (its older name: ``AsyncLLMEngine``). The logprobs are the model's own, as ``VllmEngine``'s.

    A call that is cancelled aborts its request. The ``AsyncLLM`` belongs to the caller, who also shuts it down.
    """

    def __init__(self, llm: Any):
        """Makes the engine.

        Args:
            llm: The ``AsyncLLM``; it is bound to the event loop that uses it first.

        Raises:
            MissingDependencyError: vLLM is not installed.
        """
        self._llm = llm
        self._sampling = _vllm("sampling_params")
        faults = _vllm("v1.engine.exceptions")
        self._failures = (faults.EngineDeadError, faults.EngineGenerateError)
        # Recent versions have a class of their own for what is wrong with a request.
        own = getattr(_vllm("exceptions"), "VLLMClientError", ValueError)
        self._refusals = (own, ValueError, TypeError)

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        Raises:
            TurnLostError: The engine failed, or is dead.
            PolicyError: It refuses the request; also where the prompt alone fills its ``max_model_len``: give the
                attempts a ``TokenBudget`` with that as its ``context``.
        """
        prompt = {"prompt_token_ids": list(prompt_ids)}
        output = None
        try:
            async for each in self._llm.generate(prompt, self._ask_for(params), uuid.uuid4().hex):
                output = each  # there is one: the whole turn
        except self._failures as error:
            if not isinstance(error.__cause__, ValueError | TypeError):  # else vLLM only wrapped what was wrong with it
                raise TurnLostError(f"AsyncLLM: {type(error).__name__}: {error}") from error
            raise PolicyError(f"AsyncLLM: it refuses the request: {error.__cause__}") from error
        except self._refusals as error:
            raise PolicyError(f"AsyncLLM: it refuses the request: {error}") from error
        if output is None or not output.finished:
            raise TurnLostError("AsyncLLM: it ended a request without a finished output")
        [turn] = output.outputs
        ids = list(turn.token_ids)
        logprobs = [found[id].logprob for id, found in zip(ids, turn.logprobs, strict=True)]
        return Generation(ids, turn.text, logprobs, read_finish(turn.finish_reason), turn.stop_reason)

    async def aclose(self) -> None:
        """Does nothing: the ``AsyncLLM`` is the caller's."""

    def _ask_for(self, params: GenerateParams) -> Any:
        return self._sampling.SamplingParams(
            logprobs=0,  # of the sampled token alone
            output_kind=self._sampling.RequestOutputKind.FINAL_ONLY,
            **sampling(params),
        )


def _vllm(module: str) -> Any:
    try:
        return importlib.import_module(f"vllm.{module}")
    except ImportError as error:
        raise MissingDependencyError(
            "an AsyncLLM in this process needs vLLM: install it as its own documentation says for this machine"
        ) from error
