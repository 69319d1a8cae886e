"""The model of ``retool demo --engine transformers``: loaded into this process, as a policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retool_env.errors import ConfigurationError

if TYPE_CHECKING:
    from retool_env.rollout.token_policy import TokenPolicy


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model that takes the scripted policy's place.

    Attributes:
        folder: Where it is: weights, tokenizer and chat template, as transformers saves them.
        temperature: Sampling temperature.
        max_tokens: Most tokens of one turn.
        seed: Fixes the sampling.
    """

    folder: Path
    temperature: float
    max_tokens: int
    seed: int


def load_policy(options: ModelOptions) -> TokenPolicy:
    """Loads the model.

    Raises:
        ConfigurationError: There is no model in the folder, or it cannot be loaded.
        MissingDependencyError: torch or transformers is not installed.
    """
    from retool_env.rollout.attempt import AttemptConfig, make_codec
    from retool_env.rollout.engines.local import TransformersEngine, import_torch
    from retool_env.rollout.engines.named import EngineChoice, load_tokenizer, make_engines
    from retool_env.rollout.token_policy import TokenPolicy
    from retool_env.tokens import TokenBudget

    import_torch()
    if not (options.folder / "config.json").is_file():
        raise ConfigurationError(
            f"--model {options.folder}: there is no model in it; scripts/fetch_smollm2.sh makes a small one"
        )
    choice = EngineChoice("transformers", model=str(options.folder))
    config = AttemptConfig(temperature=options.temperature, seed=options.seed)
    codec = make_codec(load_tokenizer(choice, None), config)
    [engine] = make_engines(choice, None, codec)
    assert isinstance(engine, TransformersEngine)
    budget = TokenBudget(context=engine.context, turn=options.max_tokens)
    name = f"{options.folder} in this process, temperature {options.temperature:g}"
    return TokenPolicy(engine, codec, config.model_copy(update={"budget": budget}), name)
