"""``ChatEngine``: any OpenAI-compatible chat server. Text only: it takes and gives no token ids."""

from __future__ import annotations

from collections.abc import Sequence

from retool_env.errors import PolicyError
from retool_env.rollout.engines.base import GenerateParams, Generation, TurnLostError
from retool_env.rollout.policy import TextPolicy


class ChatEngine:
    """Asks a chat server for the turns, through a ``ChatPolicy``. For evaluation, not for training.

    Such servers show text only. The attempt's ids are that text encoded again, marked so (``TokenTrajectory.exact`` is
    False), and its token budgets are counted with them; they are only as good as the tokenizer is the model's. What the
    policy was made with (temperature, most tokens of a turn) counts, not the attempt's settings.
    """

    def __init__(self, policy: TextPolicy):
        """Makes the engine.

        Args:
            policy: Such as ``ChatPolicy(base_url, model)``. It is closed with the engine.
        """
        self._policy = policy
        self.base_url = str(getattr(policy, "base_url", "chat"))

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn.

        Raises:
            TurnLostError: The server cannot be reached, takes too long, or fails.
            PolicyError: It refuses the request; or the attempt at text level was not given (``params.conversation``).
        """
        if params.conversation is None:
            raise PolicyError("chat engine: it needs the attempt at text level (GenerateParams.conversation)")
        try:
            reply = await self._policy.act(params.conversation)
        except PolicyError as error:
            if _may_work_again(error.__cause__):
                raise TurnLostError(str(error)) from error
            raise
        return Generation(
            None, reply.text, finish_reason=reply.finish, stop_reason=reply.stop_reason, message=reply.message
        )

    async def aclose(self) -> None:
        """Closes the policy."""
        await self._policy.aclose()


def _may_work_again(error: BaseException | None) -> bool:
    """Whether what the openai client raised is about the way to the server, or the server, and not the request."""
    try:
        from openai import APIConnectionError, InternalServerError, RateLimitError
    except ImportError:
        return False
    return isinstance(error, APIConnectionError | InternalServerError | RateLimitError)
