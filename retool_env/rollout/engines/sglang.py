"""``SglangEngine``: an SGLang server's ``/generate``, token ids in and token ids out."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

from retool_env.errors import PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, cut_at_stop
from retool_env.rollout.engines.http import HttpEngine, read_finish

_GENERATE: Final = "/generate"
_ABORT_TIMEOUT_S: Final = 5.0


class SglangEngine(HttpEngine):
    """An SGLang server, or a router in front of several. It must know the tokenizer (no ``--skip-tokenizer-init``).

    A call that is cancelled is also aborted by its id, because the server looks for closed connections only now and
    then. The options are those of ``HttpEngine``.
    """

    def __init__(self, base_url: str, **options: Any):
        """Makes the engine; nothing is sent yet. See ``HttpEngine``."""
        super().__init__(base_url, **options)
        self._aborting: set[asyncio.Task[None]] = set()

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        Raises:
            TurnLostError: As ``HttpEngine``.
            PolicyError: The server refuses the request.
        """
        request_id = uuid.uuid4().hex
        body = {
            "rid": request_id,
            "input_ids": list(prompt_ids),
            "return_logprob": True,
            "sampling_params": _sampling(params),
        }
        try:
            answer = await self._post(_GENERATE, body, params.trajectory_id)
        except asyncio.CancelledError:
            task = asyncio.get_running_loop().create_task(self._abort(request_id))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)
            raise
        try:
            text, meta = answer["text"], answer["meta_info"]
            finish, matched = meta["finish_reason"]["type"], meta["finish_reason"].get("matched")
            pairs = [(entry[1], entry[0]) for entry in meta["output_token_logprobs"]]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._refused(_GENERATE, f"an answer without {error}") from error
        if isinstance(matched, str) and isinstance(
            text, str
        ):  # the text goes on to the end of the token that completed the stop string
            text, _ = cut_at_stop(text, params.stop)
        ids, logprobs = [id for id, _ in pairs], [logprob for _, logprob in pairs]
        return Generation(ids, text, logprobs, read_finish(finish), matched)

    async def aclose(self) -> None:
        """Waits for aborts under way, and closes the connections."""
        if self._aborting:
            await asyncio.wait(self._aborting)
        await super().aclose()

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(PolicyError, TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._post("/abort_request", {"rid": request_id})


def _sampling(params: GenerateParams) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_new_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        **params.extra,
    }
    if params.top_k is not None:
        sampling["top_k"] = params.top_k
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    if params.stop:
        sampling |= {"stop": list(params.stop), "no_stop_trim": True}
    return sampling
