"""Protocols by name."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from retool_env.errors import ConfigurationError
from retool_env.protocol.base import Protocol
from retool_env.protocol.code_tags import CodeTags
from retool_env.protocol.markdown import Markdown
from retool_env.protocol.tool_calls import ToolCalls

_PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (CodeTags(), ToolCalls(), Markdown())}

ProtocolT = TypeVar("ProtocolT", bound=Protocol | type[Protocol])


def register_protocol(protocol: ProtocolT) -> ProtocolT:
    """Adds a protocol under its own ``name``, so that an environment finds it; usable as a class decorator.

    Args:
        protocol: A ``Protocol`` (it must be stateless: one instance serves every episode) or a class of one that is
            built without arguments.

    Returns:
        What it was given.

    Raises:
        ConfigurationError: It is not a complete ``Protocol``, an attribute is missing, or the name is taken.
    """
    candidate: Any = protocol
    if inspect.isclass(candidate) and issubclass(candidate, Protocol):
        if inspect.isabstract(candidate):
            missing = ", ".join(sorted(candidate.__abstractmethods__))
            raise ConfigurationError(f"protocol: {candidate.__name__} does not define {missing}")
        try:
            candidate = candidate()
        except TypeError as error:
            raise ConfigurationError(f"protocol: {candidate.__name__} needs arguments; register an instance") from error
    if not isinstance(candidate, Protocol):
        raise ConfigurationError(f"protocol: expected a Protocol or a class of one, got {candidate!r}")
    name = getattr(candidate, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"protocol: {type(candidate).__name__}.name must be a non-empty string, got {name!r}")
    for attribute in ("stop", "tags"):
        value = getattr(candidate, attribute, None)
        if not isinstance(value, tuple) or not all(isinstance(item, str) and item for item in value):
            raise ConfigurationError(
                f"protocol: {type(candidate).__name__}.{attribute} must be a tuple of non-empty strings, got {value!r}"
            )
    if _PROTOCOLS.setdefault(name, candidate) is not candidate:
        raise ConfigurationError(f"protocol: there is already one called {name!r}; choose another name")
    return protocol


def get_protocol(name: str) -> Protocol:
    """Returns the shared instance of a protocol.

    Raises:
        ConfigurationError: There is none of that name; the message lists those there are.
    """
    protocol = _PROTOCOLS.get(name) if isinstance(name, str) else None
    if protocol is None:
        raise ConfigurationError(f"protocol: unknown name {name!r}; known are {', '.join(protocol_names())}")
    return protocol


def protocol_names() -> tuple[str, ...]:
    """Returns the names of all protocols, the built-in ones first."""
    return tuple(_PROTOCOLS)
