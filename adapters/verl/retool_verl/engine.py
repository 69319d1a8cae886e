"""``ServerEngine``: verl's server manager as the engine of an attempt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from retool_env.errors import PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, TurnLostError, cut_at_stop
from retool_env.tokenizer import TokenCodec


class PromptTooLongError(PolicyError):
    """The prompt has more tokens than verl has room for (``rollout.prompt_length``)."""


@dataclasses.dataclass(slots=True)
class Served:
    """What the servers said beside the tokens.

    Attributes:
        prompt_ids: The prompt; empty before the first turn.
        preempted: How often the servers have put turns of this attempt aside; None where they do not say.
        min_steps: The oldest version of the weights that wrote a turn; None where the servers do not say.
        max_steps: The latest one.
    """

    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    preempted: int | None = None
    min_steps: int | None = None
    max_steps: int | None = None

    def note(self, output: Any) -> None:
        """Takes in what came with a turn."""
        if output.num_preempted is not None and output.num_preempted >= 0:
            self.preempted = (self.preempted or 0) + int(output.num_preempted)
        extra = output.extra_fields
        first = extra.get("min_global_steps", extra.get("global_steps"))
        last = extra.get("max_global_steps", extra.get("global_steps"))
        if first is not None:
            self.min_steps = first if self.min_steps is None else min(self.min_steps, first)
        if last is not None:
            self.max_steps = last if self.max_steps is None else max(self.max_steps, last)


class ServerEngine:
    """The servers of verl, for one attempt. Sampling is as verl asks for; stop strings are the protocol's."""

    def __init__(
        self,
        server_manager: Any,
        codec: TokenCodec,
        sampling_params: Mapping[str, Any],
        *,
        prompt_length: int,
        sglang: bool = False,
        request: Mapping[str, Any] | None = None,
    ):
        """Makes the engine.

        Args:
            server_manager: verl's ``LLMServerClient``, or what takes its place.
            codec: Of the model's tokenizer.
            sampling_params: As verl hands them to an agent loop: without ``max_tokens``.
            prompt_length: verl's ``rollout.prompt_length``.
            sglang: The servers are SGLang's, which have their own word for keeping a stop string.
            request: Further arguments of ``generate``, such as ``priority``.
        """
        self.served = Served()
        self._server = server_manager
        self._codec = codec
        self._sampling = dict(sampling_params)
        self._prompt_length = prompt_length
        self._keep_stop = "no_stop_trim" if sglang else "include_stop_str_in_output"
        self._request = dict(request or {})

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        verl's servers tell ids and no text, and neither which stop string ended a turn nor whether it was cut by
        length ("completed" stands for both): that is read off the ids.

        Raises:
            TurnLostError: A server failed or gave nothing.
            PolicyError: A server refuses the request, or its answer makes no sense.
            PromptTooLongError: The prompt does not fit.
        """
        if not self.served.prompt_ids:
            self.served.prompt_ids = list(prompt_ids)
            if len(prompt_ids) > self._prompt_length:
                raise PromptTooLongError(
                    f"the prompt has {len(prompt_ids)} tokens, more than rollout.prompt_length={self._prompt_length}; "
                    "raise data.max_prompt_length, which must hold the protocol's instructions, too"
                )
        asked = {**self._sampling, "max_tokens": params.max_tokens}
        if params.stop:
            asked |= {"stop": list(params.stop), self._keep_stop: True}
        try:
            output = await self._server.generate(
                request_id=params.trajectory_id, prompt_ids=list(prompt_ids), sampling_params=asked, **self._request
            )
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError | TypeError):
                raise PolicyError(f"the server refuses a turn: {type(cause).__name__}: {cause}") from error
            raise TurnLostError(f"the server failed: {type(error).__name__}: {error!s:.500}") from error
        except OSError as error:  # a client of one's own may reach its servers without Ray
            raise TurnLostError(f"the server cannot be reached: {type(error).__name__}: {error!s:.500}") from error
        self.served.note(output)
        return self._read(output, params)

    async def aclose(self) -> None:
        """Does nothing: the servers are verl's."""

    def _read(self, output: Any, params: GenerateParams) -> Generation:
        ids = list(output.token_ids)[: params.max_tokens]
        if output.stop_reason in ("aborted", "abort"):
            return Generation((), "", None, "abort")
        if not ids:
            raise TurnLostError("the server gave a turn without tokens")
        logprobs = output.log_probs if self._sampling.get("logprobs") else None
        if self._sampling.get("logprobs") and logprobs is None:
            raise TurnLostError("the server gave no logprobs, which rollout.calculate_log_probs asks for")
        if logprobs is not None:
            if len(logprobs) != len(output.token_ids):
                raise PolicyError(f"the server gave {len(logprobs)} logprobs for {len(output.token_ids)} tokens")
            logprobs = list(logprobs)[: len(ids)]
        if min(ids) < 0:
            raise PolicyError(f"the server gave {min(ids)} for the id of a token")
        whole = self._codec.decode(ids)
        text, stop = cut_at_stop(whole, params.stop)
        if stop is not None:
            # An engine that does not know stop strings has written on; what it wrote is not of this turn.
            n = self._codec.count_kept(ids, text)
            ids, logprobs = ids[:n], None if logprobs is None else logprobs[:n]
        ended = stop is not None or ids[-1] in self._codec.control
        cut = not ended and (output.stop_reason == "length" or len(ids) >= params.max_tokens)
        return Generation(ids, text, logprobs, "length" if cut else "stop", stop)
