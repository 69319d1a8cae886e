"""Tools a policy can call: a registry from a name to a JSON schema and, for a user's tool, a callable.

The first entry is always ``code_interpreter``. It has no callable here: the driver of an episode (an environment, a
rollout) runs its code in the sandbox. Other tools are plain Python callables that run in the driver's own process, so
they are the user's responsibility.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from retool_env.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator  # type: ignore[import-untyped]

CODE_INTERPRETER: Final = "code_interpreter"

CODE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python source to run."}},
    "required": ["code"],
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asked for: a tool's name and its arguments, already checked against the tool's schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a user's tool gave back.

    Attributes:
        text: Shown to the policy, after cleaning and clipping.
        is_error: The tool failed; the text says how.
    """

    text: str
    is_error: bool = False


ToolFunction = Callable[..., str | ToolResult | Awaitable[str | ToolResult]]


@dataclass(frozen=True)
class Tool:
    """A tool of the user's.

    Attributes:
        name: What the policy calls it.
        description: Shown to the policy in the tool schema.
        parameters: JSON schema (an object) of the arguments.
        function: Called with the arguments as keywords; sync or async; returns text or a ``ToolResult``. An exception
            it raises becomes an error result for the policy. None only for ``code_interpreter``.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: ToolFunction | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Tool:
        """A tool is fixed: copies share it, whatever its callable holds on to (a client, a lock)."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without the validator, which is made again where it is needed."""
        return Tool, (self.name, self.description, self.parameters, self.function)

    @cached_property
    def _validator(self) -> Validator:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

        return Draft202012Validator(self.parameters)

    def schema(self) -> dict[str, Any]:
        """Returns the tool in the form chat templates take (OpenAI's ``{"type": "function", ...}``)."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def check(self, arguments: object) -> str | None:
        """Returns what is wrong with the arguments, in words for the policy, or None."""
        if not isinstance(arguments, dict):
            return "arguments must be a JSON object"
        error = next(self._validator.iter_errors(arguments), None)
        if error is None:
            return None
        where = ".".join(str(part) for part in error.path)
        if error.validator == "required":
            missing = next((name for name in error.validator_value if name not in error.instance), "?")
            return f"missing argument: {where + '.' if where else ''}{missing}"
        if error.validator == "type":
            kinds = (
                error.validator_value if isinstance(error.validator_value, str) else " or ".join(error.validator_value)
            )
            return f"argument {where} must be a {kinds}"
        return f"argument {where}: {error.message[:200]}" if where else error.message[:200]


class ToolRegistry:
    """The tools of an episode, by name; iterates in order of registration, ``code_interpreter`` first."""

    def __init__(
        self, tools: Iterable[Tool] = (), *, code_description: str = "Runs Python code and returns its output."
    ):
        """Makes a registry.

        Args:
            tools: The user's tools.
            code_description: Description of ``code_interpreter`` in the schema; an episode states its limits here.

        Raises:
            ConfigurationError: Two tools share a name, or a schema is not a valid JSON schema of an object.
        """
        self._tools: dict[str, Tool] = {
            CODE_INTERPRETER: Tool(CODE_INTERPRETER, code_description, CODE_SCHEMA, function=None)
        }
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Adds a user's tool.

        Raises:
            ConfigurationError: The name is taken, there is no callable, or the schema is not valid.
        """
        if tool.name in self._tools:
            raise ConfigurationError(f"tools: there is already a tool called {tool.name!r}; choose another name")
        if not callable(tool.function):
            raise ConfigurationError(f"tools: {tool.name!r} needs a callable `function`, got {tool.function!r}")
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

        try:
            Draft202012Validator.check_schema(dict(tool.parameters))
        except SchemaError as error:
            raise ConfigurationError(f"tools: the schema of {tool.name!r} is not valid: {error.message}") from error
        if tool.parameters.get("type") != "object":
            raise ConfigurationError(f'tools: the schema of {tool.name!r} must have "type": "object"')
        self._tools[tool.name] = tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def schemas(self) -> list[dict[str, Any]]:
        """Returns all tools in the form chat templates take."""
        return [tool.schema() for tool in self]

    def check(self, name: object, arguments: object) -> ToolCall | str:
        """Checks a call the policy wrote; returns it, or what is wrong with it in words for the policy."""
        if not isinstance(name, str) or name not in self._tools:
            known = ", ".join(self._tools)
            return f"unknown tool: {str(name)[:100]} (available: {known})"
        problem = self._tools[name].check(arguments)
        if problem is not None:
            return problem
        assert isinstance(arguments, dict)
        return ToolCall(name, arguments)

    def call(self, call: ToolCall) -> ToolResult:
        """Runs a user's tool and waits for it; whatever it raises becomes an error result.

        An async tool runs on an event loop of its own, in a thread of its own: the caller may well be inside a running
        loop (a notebook).

        Raises:
            ConfigurationError: The call is for ``code_interpreter``, which only the sandbox runs.
        """
        function = self._function(call)
        try:
            value = function(**call.arguments)
            if inspect.isawaitable(value):
                return _in_thread(lambda: asyncio.run(_settled(value)))
        except Exception as error:  # a user's tool may raise anything; the policy is told, the episode goes on
            return _failure(error)
        return _as_result(value)

    async def acall(self, call: ToolCall) -> ToolResult:
        """Runs a user's tool without blocking the event loop; whatever it raises becomes an error result.

        A sync tool runs in a thread of its own, so that one that hangs holds up nobody else. It cannot be cancelled:
        when this call is, the tool's thread goes on to its end.

        Raises:
            ConfigurationError: The call is for ``code_interpreter``, which only the sandbox runs.
        """
        function = self._function(call)
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(**call.arguments)
            else:
                value = await _in_thread_async(function, call.arguments)
                if inspect.isawaitable(value):
                    value = await value
        except Exception as error:  # as in ``call``
            return _failure(error)
        return _as_result(value)

    def _function(self, call: ToolCall) -> ToolFunction:
        function = self._tools[call.name].function
        if function is None:
            raise ConfigurationError(f"{call.name} runs in the sandbox, not through the registry")
        return function


_T = TypeVar("_T")


async def _settled(value: Awaitable[str | ToolResult]) -> ToolResult:
    return _as_result(await value)


def _as_result(value: object) -> ToolResult:
    return value if isinstance(value, ToolResult) else ToolResult(str(value))


def _failure(error: Exception) -> ToolResult:
    return ToolResult(f"{type(error).__name__}: {error}", is_error=True)


def _in_thread(function: Callable[[], _T]) -> _T:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: context.run(function)).result()


async def _in_thread_async(function: Callable[..., _T], keywords: Mapping[str, Any]) -> _T:
    thread = ThreadPoolExecutor(1)
    context = contextvars.copy_context()
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, lambda: context.run(function, **keywords))
    finally:
        thread.shutdown(wait=False)
