"""``TransformersEngine``: a model of transformers in this process, for small models and tests.

Its own loop over the model's steps, and not ``model.generate``: that one gives no logprobs of the model itself without
keeping the logits of all steps, looks at stop strings only for the text, and cannot be stopped.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from retool_env.errors import ConfigurationError, MissingDependencyError
from retool_env.rollout.engines.base import GenerateParams, Generation, cut_at_stop
from retool_env.tokenizer import TokenCodec

_BYTES_A_CHAR: Final = 4
"""At most so many tokens make one character."""


class TransformersEngine:
    """Generates with a causal language model of transformers, one turn at a time, in a thread of its own.

    The logprobs are the model's own, before temperature, top-k and top-p. A seed fixes a turn whatever else runs.
    A call that is cancelled ends after the step under way; one that waits for its turn never starts.

    Attributes:
        context: Tokens that the model can hold, prompt included; None if its configuration does not say.
    """

    def __init__(self, model: Any, codec: TokenCodec):
        """Makes the engine.

        Args:
            model: A causal language model, on its device.
            codec: Of its tokenizer.

        Raises:
            MissingDependencyError: torch is not installed.
        """
        self._torch = import_torch()
        self._model = model.eval()
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        self._codec = codec
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        if codec.tokenizer.eos_token_id is not None:
            ends.append(codec.tokenizer.eos_token_id)
        self._ends = frozenset(ends)
        known = inspect.signature(model.forward).parameters
        # transformers 5.24 calls the cache of keys and values `cache`, and drops the older name in 5.40.
        self._cache = "cache" if "cache" in known else "past_key_values"
        # Else the logits of a whole prompt are made, of which only the last are wanted.
        self._options: dict[str, Any] = {
            "use_cache": True,
            **({"logits_to_keep": 1} if "logits_to_keep" in known else {}),
        }
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retool-model")

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        Raises:
            ConfigurationError: There are ``extra`` parameters, which this engine does not know.
        """
        if params.extra:
            raise ConfigurationError(f"sampling: this engine knows none of {', '.join(sorted(params.extra))}")
        cancelled = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, self._generate, list(prompt_ids), params, cancelled
        )
        try:
            return await future
        finally:
            cancelled.set()

    async def aclose(self) -> None:
        """Ends the thread, once what runs in it has ended."""
        await asyncio.to_thread(self._executor.shutdown)

    def _generate(self, prompt_ids: list[int], params: GenerateParams, cancelled: threading.Event) -> Generation:
        torch, model = self._torch, self._model
        window = _BYTES_A_CHAR * max(map(len, params.stop), default=0) + 1
        generator = torch.Generator(device=model.device)
        if params.seed is None:
            generator.seed()
        else:
            generator.manual_seed(params.seed)
        ids: list[int] = []
        logprobs: list[float] = []
        cache, step = None, prompt_ids
        with torch.inference_mode():
            while len(ids) < params.max_tokens:
                if cancelled.is_set():
                    return Generation(ids, self._codec.decode(ids), logprobs, "abort")
                inputs = torch.tensor([step], device=model.device)
                output = model(input_ids=inputs, **{self._cache: cache}, **self._options)
                cache, logits = getattr(output, self._cache), output.logits[0, -1].float()
                id = self._sample(logits, params, generator)
                ids.append(id)
                logprobs.append(float(torch.log_softmax(logits, dim=-1)[id]))
                step = [id]
                if id in self._ends:
                    return Generation(ids, self._codec.decode(ids), logprobs, "stop", id)
                if params.stop and any(stop in self._codec.decode(ids[-window:]) for stop in params.stop):
                    text, stop = cut_at_stop(self._codec.decode(ids), params.stop)
                    return Generation(ids, text, logprobs, "stop", stop)
        return Generation(ids, self._codec.decode(ids), logprobs, "length")

    def _sample(self, logits: Any, params: GenerateParams, generator: Any) -> int:
        torch = self._torch
        if params.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / params.temperature, dim=-1)
        if params.top_k is None and params.top_p == 1:
            return int(torch.multinomial(probabilities, 1, generator=generator))
        ordered, order = probabilities.sort(descending=True)
        if params.top_k is not None:
            ordered = ordered[: params.top_k]
        # A token stays while those before it have not reached top_p; the likeliest always does.
        total = ordered.sum()
        ordered = ordered[ordered.cumsum(0) - ordered < params.top_p * total]
        return int(order[torch.multinomial(ordered, 1, generator=generator)])


def import_torch() -> Any:
    """Returns torch.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependencyError(
            "a model in this process needs torch and transformers: install torch for this machine (pytorch.org), "
            'then pip install "retool-env[transformers]"'
        ) from error
