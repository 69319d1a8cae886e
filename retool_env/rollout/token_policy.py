"""``TokenPolicy``: a policy that writes tokens: an engine, and how attempts are made with it."""

from __future__ import annotations

from dataclasses import dataclass

from retool_env.config import EpisodeConfig
from retool_env.problems.problem import Problem
from retool_env.rollout.attempt import AttemptConfig, attempt
from retool_env.rollout.engines.base import Engine
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """An engine in the place of a ``TextPolicy`` (``run_demo``).

    Attributes:
        engine: Writes the turns.
        codec: Of the model's tokenizer.
        config: How attempts are made; the rules in it are those of the run.
        name: What the policy is, for reports.
    """

    engine: Engine
    codec: TokenCodec
    config: AttemptConfig
    name: str

    def describe(self) -> str:
        """Returns one line that says what this policy is."""
        return self.name

    async def attempt(self, problem: Problem, sandbox: Sandbox, rules: EpisodeConfig, number: int) -> Trajectory:
        """Makes one attempt at a problem; as ``attempt``, which says what it raises."""
        config = self.config.model_copy(update={"episode": rules})
        return (await attempt(problem, self.engine, self.codec, sandbox, config, number=number)).record

    async def aclose(self) -> None:
        """Closes the engine."""
        await self.engine.aclose()
