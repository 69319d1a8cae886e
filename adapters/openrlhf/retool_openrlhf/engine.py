"""``RolloutEngine``: OpenRLHF's rollout actor, which holds a vLLM engine, as the engine of an attempt."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from retool_env.errors import PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, TurnLostError, cut_at_stop
from retool_env.tokenizer import TokenCodec


class RolloutEngine:
    """The engine of one attempt. Sampling is as OpenRLHF asks for; stop strings are the protocol's, from turn 1 on.

    OpenRLHF shares one ``SamplingParams`` between the attempts at a prompt: it is copied for every turn, never changed.

    Attributes:
        prompt_ids: The prompt; empty before the first turn.
    """

    def __init__(self, llm_engine: Any, codec: TokenCodec, sampling_params: Any):
        """Makes the engine.

        Args:
            llm_engine: OpenRLHF's ``RolloutRayActor``, or what takes its place.
            codec: Of the model's tokenizer.
            sampling_params: vLLM's, as OpenRLHF hands them to an executor.
        """
        self.prompt_ids: list[int] = []
        self._llm = llm_engine
        self._codec = codec
        self._sampling = sampling_params

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn. A call that is cancelled aborts its request in vLLM.

        Raises:
            TurnLostError: The engine failed at this request.
            PolicyError: It refuses the request.
            EngineDeadError: vLLM's: the engine is gone, and with it all of a step.
        """
        self.prompt_ids = self.prompt_ids or list(prompt_ids)
        asked = deepcopy(self._sampling)
        asked.max_tokens = params.max_tokens
        if params.stop:
            asked.stop = list(params.stop)
            asked.include_stop_str_in_output = True
        try:
            output = await self._llm.generate(list(prompt_ids), asked)
        except _failures() as error:
            if not isinstance(error.__cause__, ValueError | TypeError):  # else vLLM only wrapped what was wrong with it
                raise TurnLostError(f"vLLM failed: {type(error).__name__}: {error!s:.500}") from error
            raise PolicyError(f"vLLM refuses a turn: {error.__cause__}") from error
        except (ValueError, TypeError, *_refusals()) as error:
            raise PolicyError(f"vLLM refuses a turn: {type(error).__name__}: {error}") from error
        if output is None or not output.outputs:
            raise TurnLostError("vLLM gave no output")
        return self._read(output.outputs[0], params)

    async def aclose(self) -> None:
        """Does nothing: the engine is OpenRLHF's."""

    def _read(self, turn: Any, params: GenerateParams) -> Generation:
        if turn.finish_reason not in ("stop", "length"):
            return Generation((), "", None, "abort")
        ids = list(turn.token_ids)[: params.max_tokens]
        if not ids:
            raise TurnLostError("vLLM gave a turn without tokens")
        logprobs = None
        if self._sampling.logprobs is not None:
            try:
                logprobs = [float(each[id].logprob) for id, each in zip(ids, turn.logprobs, strict=False)]
            except (TypeError, KeyError) as error:
                raise TurnLostError("vLLM gave no logprobs, which is_correction_level asks for") from error
        whole = self._codec.decode(ids)  # OpenRLHF has vLLM write control tokens into its text
        text, stop = cut_at_stop(whole, params.stop)
        if stop is not None:
            # An engine that does not know stop strings has written on; what it wrote is not of this turn.
            n = self._codec.count_kept(ids, text)
            ids, logprobs = ids[:n], None if logprobs is None else logprobs[:n]
        cut = stop is None and turn.finish_reason == "length"
        return Generation(ids, text, logprobs, "length" if cut else "stop", stop)


@cache
def _refusals() -> tuple[type[BaseException], ...]:
    """What vLLM raises for a request that it does not take, where that is no ``ValueError`` (from 0.29 on)."""
    try:
        return (importlib.import_module("vllm.exceptions").VLLMClientError,)
    except (ImportError, AttributeError):
        return ()


@cache
def _failures() -> tuple[type[BaseException], ...]:
    """What vLLM raises for a request that failed in an engine that goes on."""
    try:
        return (importlib.import_module("vllm.v1.engine.exceptions").EngineGenerateError,)
    except ImportError:
        return ()
