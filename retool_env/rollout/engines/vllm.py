"""``VllmEngine``: a vLLM server, token ids in and token ids out, by either of its two APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from retool_env.errors import ConfigurationError
from retool_env.rollout.engines.base import GenerateParams, Generation, check_ids, cut_at_stop
from retool_env.rollout.engines.http import HttpEngine, read_finish
from retool_env.tokenizer import TokenCodec

_COMPLETIONS: Final = "/v1/completions"
_GENERATE: Final = "/inference/v1/generate"


class VllmEngine(HttpEngine):
    """A vLLM server. The logprobs are the model's own, before temperature and top-p (vLLM's ``raw_logprobs``).

    ``api="completions"`` is what every server has (``return_token_ids`` since vLLM 0.10.2). ``api="generate"`` is
    ``/inference/v1/generate``, which a server has that was started with ``--enable-scale-out``; it answers ids only, so
    the codec is needed for the text.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api: Literal["completions", "generate"] = "completions",
        codec: TokenCodec | None = None,
        **options: Any,
    ):
        """Makes the engine; nothing is sent yet.

        Args:
            base_url: The server's address, with or without ``/v1``.
            model: The model's name there.
            api: Which API to use.
            codec: Of the model's tokenizer; needed for ``api="generate"``.
            **options: Those of ``HttpEngine``.

        Raises:
            ConfigurationError: As ``HttpEngine``; an empty model name, an unknown API, or no codec where one is needed.
            MissingDependencyError: The httpx package is not installed.
        """
        if not model:
            raise ConfigurationError("model: must be the name of a model on the server, got an empty one")
        if api not in ("completions", "generate"):
            raise ConfigurationError(f"api: must be 'completions' or 'generate', got {api!r}")
        if api == "generate" and codec is None:
            raise ConfigurationError("codec: api='generate' answers ids only; give the codec of the model's tokenizer")
        super().__init__(base_url, **options)
        self.model = model
        self._api = api
        self._codec = codec

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        Raises:
            TurnLostError: As ``HttpEngine``.
            PolicyError: The server refuses the request; also where the prompt and ``max_tokens`` exceed its
                ``max_model_len``: give the attempts a ``TokenBudget`` with that as its ``context``.
        """
        if self._api == "completions":
            return await self._complete(prompt_ids, params)
        return await self._generate(prompt_ids, params)

    async def _complete(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        body = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "return_token_ids": True,
            "logprobs": 0,  # of the sampled token alone
            **sampling(params),
        }
        answer = await self._post(_COMPLETIONS, body, params.trajectory_id)
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            text, finish, stop = choice["text"], choice["finish_reason"], choice.get("stop_reason")
        except (KeyError, IndexError, TypeError) as error:
            raise self._refused(
                _COMPLETIONS, f"an answer without {error}; token_ids need vLLM 0.10.2 or later"
            ) from error
        return Generation(ids, text, logprobs, read_finish(finish), stop)

    async def _generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        body = {
            "model": self.model,
            "token_ids": list(prompt_ids),
            "sampling_params": {"logprobs": 0, **sampling(params)},
        }
        answer = await self._post(_GENERATE, body, params.trajectory_id)
        try:
            choice = answer["choices"][0]
            ids, finish = choice["token_ids"], read_finish(choice["finish_reason"])
            logprobs = [item["logprob"] for item in choice["logprobs"]["content"]]
        except (KeyError, IndexError, TypeError) as error:
            raise self._refused(_GENERATE, f"an answer without {error}") from error
        check_ids(ids)
        assert self._codec is not None
        text, stop = self._codec.decode(ids), None
        if finish == "stop":
            text, stop = cut_at_stop(text, params.stop)
        return Generation(ids, text, logprobs, finish, stop)


def sampling(params: GenerateParams) -> dict[str, Any]:
    """Returns the sampling parameters of a turn in vLLM's words.

    All that shape the distribution are said, not left out: for what is missing a server takes the model's
    ``generation_config.json`` (a ``top_k``, a ``repetition_penalty``), and the tokens would come from another
    distribution than their logprobs.
    """
    said: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": 0 if params.top_k is None else params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        **params.extra,
    }
    if params.seed is not None:
        said["seed"] = params.seed
    if params.stop:
        said |= {"stop": list(params.stop), "include_stop_str_in_output": True}
    return said
