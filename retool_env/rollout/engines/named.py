"""Engines by name, for the command line: what runs where, and what a server says about its model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from retool_env.errors import ConfigurationError, MissingDependencyError, PolicyError
from retool_env.rollout.engines.base import Engine, GenerateParams, Generation
from retool_env.rollout.engines.chat import ChatEngine
from retool_env.rollout.engines.scripted import ScriptedEngine
from retool_env.rollout.engines.sglang import SglangEngine
from retool_env.rollout.engines.vllm import VllmEngine
from retool_env.tokenizer import TokenCodec

if TYPE_CHECKING:
    from retool_env.rollout.policy import TextPolicy
    from retool_env.tokenizer import Tokenizer

SERVERS: Final = ("vllm", "vllm-generate", "sglang", "openai")
"""Engines that are servers behind HTTP."""

NAMES: Final = (*SERVERS, "transformers", "scripted")

_TIMEOUT_S: Final = 30.0
_NO_LIST: Final = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine, and what it is told.

    Attributes:
        name: One of ``NAMES``.
        base_urls: Addresses of the servers, with or without ``/v1``.
        model: The model's name on the server, or its folder for ``"transformers"``; None to ask the server.
        tokenizer: Folder or name of the tokenizer; None for the model's.
        api_key: The servers' key.
        timeout_s: Seconds that a server may take for a turn.
        temperature: For ``"openai"``, which is told when it is made.
        top_p: The same.
        max_turn_tokens: The same: most tokens of a turn.
        seed: Of ``"scripted"``.
    """

    name: str
    base_urls: tuple[str, ...] = ()
    model: str | None = None
    tokenizer: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    temperature: float = 1.0
    top_p: float = 1.0
    max_turn_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigurationError(f"engine: must be one of {', '.join(NAMES)}, got {self.name!r}")
        is_server = self.name in SERVERS
        if is_server and not self.base_urls:
            raise ConfigurationError(f"base_url: engine {self.name!r} needs the address of a server at least")
        if not is_server and self.base_urls:
            raise ConfigurationError(f"base_url: engine {self.name!r} has no server")
        if len(set(map(_root, self.base_urls))) < len(self.base_urls):
            raise ConfigurationError("base_url: an address is there twice")
        if self.name == "transformers" and not self.model:
            raise ConfigurationError("model: engine 'transformers' needs the folder or the name of a model")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the servers say about their model.

    Attributes:
        name: Its name there.
        root: What it was loaded from, where they say.
        max_len: Tokens it can hold, where they say: the least of all servers.
    """

    name: str
    root: str | None = None
    max_len: int | None = None


def ask_servers(choice: EngineChoice) -> ServedModel:
    """Asks every server which models it has (``GET /v1/models``). One that does not know the question is believed.

    Raises:
        PolicyError: A server cannot be reached, or its answer makes no sense.
        ConfigurationError: The model is not there; or several are, and none was named.
        MissingDependencyError: The httpx package is not installed.
    """
    found = [_served(url, choice) for url in choice.base_urls]
    if len({model.name for model in found}) > 1:
        told = ", ".join(f"{model.name} at {url}" for model, url in zip(found, choice.base_urls, strict=True))
        raise ConfigurationError(f"base_url: the servers have different models: {told}")
    lengths = [model.max_len for model in found if model.max_len is not None]
    return ServedModel(found[0].name, found[0].root, min(lengths, default=None))


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Keeps transformers from saying, as it is imported, that there is no PyTorch: a tokenizer needs none."""
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_no_advice)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")


def load_tokenizer(choice: EngineChoice, served: ServedModel | None) -> Tokenizer:
    """Loads the tokenizer that was named, or else the model's.

    Raises:
        ConfigurationError: There is none there.
        MissingDependencyError: The transformers package is not installed.
    """
    name = choice.tokenizer
    if name is None and choice.name == "scripted":
        from retool_env.rollout.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    if name is None:
        root = served.root if served is not None else None
        name = root if root is not None and Path(root).exists() else served.name if served is not None else choice.model
    assert name is not None
    try:
        with _without_advice():
            from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError(
            'a tokenizer needs the transformers package: pip install "retool-env[transformers]" '
            '(in a clone: pip install -e ".[transformers]")'
        ) from error
    try:
        return cast("Tokenizer", AutoTokenizer.from_pretrained(name))
    except Exception as error:  # of many kinds, from many packages
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigurationError(f"tokenizer: {name!r} cannot be loaded ({why:.300}); name its folder") from error


def make_engines(choice: EngineChoice, served: ServedModel | None, codec: TokenCodec) -> list[Engine]:
    """Makes an engine for each server, or one that runs here.

    Requests are not sent again to the same server: that is the balancer's to decide.

    Raises:
        ConfigurationError: An address or a number is not good, or the model cannot be loaded.
        MissingDependencyError: A package is not installed.
    """
    if choice.name == "transformers":
        return [_transformers(choice, codec)]
    if choice.name == "scripted":
        return [_SolverEngine(codec, choice.seed)]
    assert served is not None
    return [_server(choice, url, served.name, codec) for url in choice.base_urls]


def _server(choice: EngineChoice, url: str, model: str, codec: TokenCodec) -> Engine:
    options: dict[str, Any] = {"api_key": choice.api_key, "timeout_s": choice.timeout_s, "max_retries": 0}
    if choice.name == "openai":
        from retool_env.rollout.chat import ChatPolicy

        return ChatEngine(
            ChatPolicy(
                f"{_root(url)}/v1",
                model,
                temperature=choice.temperature,
                max_tokens=choice.max_turn_tokens,
                extra_body={"top_p": choice.top_p},
                **options,
            )
        )
    if choice.name == "sglang":
        return SglangEngine(url, **options)
    if choice.name == "vllm-generate":
        return VllmEngine(url, model, api="generate", codec=codec, **options)
    return VllmEngine(url, model, **options)


def _transformers(choice: EngineChoice, codec: TokenCodec) -> Engine:
    from retool_env.rollout.engines.local import TransformersEngine, import_torch

    assert choice.model is not None
    import_torch()  # without it, transformers can be imported and loads nothing
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingDependencyError(
            "a model in this process needs torch and transformers: install torch for this machine (pytorch.org), "
            'then pip install "retool-env[transformers]"'
        ) from error
    try:
        model = AutoModelForCausalLM.from_pretrained(choice.model)
    except Exception as error:  # of many kinds, from many packages
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigurationError(f"model: {choice.model!r} cannot be loaded ({why:.300})") from error
    return TransformersEngine(model, codec)


class _SolverEngine:
    """The scripted policy of the demo, with tokens."""

    def __init__(self, codec: TokenCodec, seed: int):
        from retool_env.rollout.scripted import ScriptedSolver

        self._codec = codec
        self._policy: TextPolicy = ScriptedSolver(seed)

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        assert params.conversation is not None
        reply = await self._policy.act(params.conversation)
        return await ScriptedEngine(self._codec, [reply.text]).generate(prompt_ids, params)

    async def aclose(self) -> None:
        await self._policy.aclose()


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _models(url: str, api_key: str | None) -> list[Any] | None:
    """Returns the models that a server lists; None if it lists none to anybody."""
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            'an engine behind HTTP needs the httpx package: pip install "retool-env[rollout]" '
            '(in a clone: pip install -e ".[rollout]")'
        ) from error
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"base_url: must start with http:// or https://, got {url!r}")
    place = f"{_root(url)}/v1/models"
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        response = httpx.get(place, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        if response.status_code in _NO_LIST:
            return None
        if response.status_code != 200:
            raise PolicyError(f"{place}: status {response.status_code}: {response.text[:500]}")
        return list(response.json()["data"])
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"base_url: {url!r} is no address: {error}") from error
    except httpx.TransportError as error:
        raise PolicyError(f"{place}: cannot be reached ({type(error).__name__}: {error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{place}: an answer that is no list of models; is this the address of a server?") from error


def _served(url: str, choice: EngineChoice) -> ServedModel:
    models, wanted = _models(url, choice.api_key), choice.model
    if models is None:
        if wanted is None:
            raise ConfigurationError(f"model: {url} does not say which it has; name it")
        return ServedModel(wanted)
    known = {str(model["id"]): model for model in models if isinstance(model, dict) and "id" in model}
    if wanted is None and len(known) != 1:
        raise ConfigurationError(f"model: {url} has {len(known)}: {', '.join(known)}; say which")
    name = next(iter(known)) if wanted is None else wanted
    if name not in known:
        raise ConfigurationError(f"model: {url} has no {name!r}; it has {', '.join(known) or 'none'}")
    length, root = known[name].get("max_model_len"), known[name].get("root")
    return ServedModel(name, root if isinstance(root, str) else None, length if isinstance(length, int) else None)
