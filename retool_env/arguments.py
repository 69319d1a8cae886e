r"""The arguments of a tool call against the tool's JSON schema (draft 2020-12). No I/O: a ``$ref`` is never fetched.

The arguments are a model's, the schema is the user's. What a model writes can take long only where the schema lets it:
strings that a ``pattern`` is tried on, and names, have a greatest length, because a harmless pattern such as ``\s+$``
already takes quadratic time. A pattern that takes exponential time (``^(a+)+$``), or a schema that branches
exponentially, is the user's own to avoid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from retool_env.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]
    from jsonschema.protocols import Validator  # type: ignore[import-untyped]

MAX_PATTERN_CHARS: Final = 10_000
"""The longest string that is tried on a ``pattern``; a longer one is refused."""

MAX_NAME_CHARS: Final = 1_000
"""The longest name in an object; ``patternProperties`` are tried on names."""

_REFERENCES: Final = ("$ref", "$dynamicRef")


def check_schema(parameters: object, place: str) -> None:
    """Checks the schema of a tool's arguments, with all that it refers to.

    Args:
        parameters: The schema.
        place: Names the tool in the message of an error.

    Raises:
        ConfigurationError: It is not a valid JSON schema of an object, or refers to something that is not in it.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(f"{place} must be a mapping, got {type(parameters).__name__}")
    schema = _without_dialect(parameters)
    _check_valid(schema, place)
    if schema.get("type") != "object":
        raise ConfigurationError(f'{place} must have "type": "object"')
    _check_references(schema, place)


def make_validator(parameters: Mapping[str, Any]) -> Validator:
    """Returns what ``find_fault`` needs for a schema. It cannot fetch anything."""
    from referencing.jsonschema import EMPTY_REGISTRY

    return _validator_class()(_without_dialect(parameters), registry=EMPTY_REGISTRY)


def find_fault(validator: Validator, arguments: object) -> str | None:
    """Returns what is wrong with arguments, in words for the policy, or None. Never raises, whatever the arguments."""
    if not isinstance(arguments, dict):
        return "arguments must be a JSON object"
    try:
        if _has_long_name(arguments):
            return f"a name in the arguments is longer than {MAX_NAME_CHARS} characters"
        error = next(validator.iter_errors(arguments), None)
        return None if error is None else _explain(error)
    except RecursionError:
        return "arguments are nested too deeply"
    except (ValueError, ArithmeticError) as failure:  # a number that the schema's arithmetic cannot handle
        return f"arguments cannot be checked: {str(failure)[:160]}"


def _explain(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.path)
    if error.validator == "required":
        missing = next((name for name in error.validator_value if name not in error.instance), "?")
        return f"missing argument: {where + '.' if where else ''}{missing}"
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, str) else " or ".join(error.validator_value)
        return f"argument {where} must be a {kinds}"
    return f"argument {where}: {error.message[:200]}" if where else str(error.message[:200])


def _without_dialect(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out ``$schema``: the dialect is always 2020-12, and jsonschema would switch validators in mid-course."""
    return {key: value for key, value in parameters.items() if key != "$schema"}


def _check_valid(schema: object, place: str) -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigurationError(f"{place} is not valid: {error.message}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{place} is not valid: it is nested too deeply") from error


def _check_references(schema: dict[str, Any], place: str) -> None:
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    root = DRAFT202012.create_resource(schema)
    todo = [(root, EMPTY_REGISTRY.resolver_with_root(root))]
    seen: set[int] = set()
    while todo:
        resource, resolver = todo.pop()
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in seen:
            continue
        seen.add(id(contents))
        for keyword in _REFERENCES:
            if keyword in contents:
                try:
                    target = resolver.lookup(contents[keyword])
                except Exception as error:  # the registry's own errors, and those of parsing the reference
                    message = f"{place} refers to {contents[keyword]!r}, which is not in it; nothing is fetched"
                    raise ConfigurationError(message) from error
                _check_valid(target.contents, f"{place}, at {contents[keyword]!r},")
                todo.append((DRAFT202012.create_resource(target.contents), target.resolver))
        todo.extend((part, resolver.in_subresource(part)) for part in resource.subresources())


@cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator, validators

    return validators.extend(Draft202012Validator, {"pattern": _pattern, "uniqueItems": _unique_items})


def _pattern(validator: Validator, pattern: str, instance: object, schema: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, str):
        return
    if len(instance) > MAX_PATTERN_CHARS:
        yield ValidationError(f"must have at most {MAX_PATTERN_CHARS} characters")
    elif not re.search(pattern, instance):
        yield ValidationError(f"{instance!r:.100} does not match {pattern!r}")


def _unique_items(validator: Validator, wanted: bool, instance: object, schema: object) -> Iterator[ValidationError]:
    # In place of jsonschema's, which compares every two items where they cannot be sorted.
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(instance, list) and len({_hashable(item) for item in instance}) < len(instance):
        yield ValidationError(f"{instance!r:.100} has non-unique elements")


def _hashable(value: Any) -> object:
    """Returns something that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return dict, frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return list, tuple(_hashable(item) for item in value)
    return (bool, value) if isinstance(value, bool) else value


def _has_long_name(value: Any) -> bool:
    if isinstance(value, dict):
        return any(len(name) > MAX_NAME_CHARS or _has_long_name(item) for name, item in value.items())
    return isinstance(value, list) and any(map(_has_long_name, value))
