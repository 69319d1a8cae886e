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
from typing import TYPE_CHECKING, Any, Final

from retool_env.arguments import check_schema, find_fault, make_validator
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

    Raises:
        TypeError: The text is not a ``str``, or ``is_error`` not a ``bool``.
    """

    text: str
    is_error: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"ToolResult.text: must be a str, got {type(self.text).__name__}")
        if not isinstance(self.is_error, bool):
            raise TypeError(f"ToolResult.is_error: must be a bool, got {type(self.is_error).__name__}")


ToolFunction = Callable[..., str | ToolResult | Awaitable[str | ToolResult]]


@dataclass(frozen=True)
class Tool:
    """A tool of the user's.

    Attributes:
        name: What the policy calls it.
        description: Shown to the policy in the tool schema.
        parameters: JSON schema (draft 2020-12, an object) of the arguments. References must be to parts of it. Avoid
            a ``pattern`` that backtracks exponentially, such as ``^(a+)+$``: the policy writes what it is tried on.
        function: Called with the arguments as keywords; sync or async; returns text or a ``ToolResult``, and anything
            else is turned into text. An exception it raises becomes an error result for the policy. None only for
            ``code_interpreter``.
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
        return make_validator(self.parameters)

    def schema(self) -> dict[str, Any]:
        """Returns the tool in the form chat templates take (OpenAI's ``{"type": "function", ...}``)."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def check(self, arguments: object) -> str | None:
        """Returns what is wrong with the arguments, in words for the policy, or None."""
        return find_fault(self._validator, arguments)


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
            ConfigurationError: As ``add``.
        """
        self._tools: dict[str, Tool] = {
            CODE_INTERPRETER: Tool(CODE_INTERPRETER, code_description, CODE_SCHEMA, function=None)
        }
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Adds a user's tool.

        Raises:
            ConfigurationError: The name is taken, there is no callable, or the schema is not a valid JSON schema of an
                object, or refers (``$ref``) to something that is not in it.
        """
        if tool.name in self._tools:
            raise ConfigurationError(f"tools: there is already a tool called {tool.name!r}; choose another name")
        if not callable(tool.function):
            raise ConfigurationError(f"tools: {tool.name!r} needs a callable `function`, got {tool.function!r}")
        check_schema(tool.parameters, f"tools: the schema of {tool.name!r}")
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
        value = _begin(self._function(call), call.arguments)
        if isinstance(value, ToolResult):
            return value
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(context.run, asyncio.run, _in_task(value)).result()

    async def acall(self, call: ToolCall) -> ToolResult:
        """Runs a user's tool without blocking the event loop; whatever it raises becomes an error result.

        A sync tool runs in a thread of its own, so that one that hangs holds up nobody else. It cannot be cancelled:
        when this call is, the tool's thread goes on to its end. An async tool runs in a task of its own, which is
        cancelled with this call and waited for.

        Raises:
            ConfigurationError: The call is for ``code_interpreter``, which only the sandbox runs.
        """
        function = self._function(call)
        if inspect.iscoroutinefunction(function):
            value = _begin(function, call.arguments)
        else:
            value = await _in_thread(function, call.arguments)
        return value if isinstance(value, ToolResult) else await _in_task(value)

    def _function(self, call: ToolCall) -> ToolFunction:
        function = self._tools[call.name].function
        if function is None:
            raise ConfigurationError(f"{call.name} runs in the sandbox, not through the registry")
        return function


# Nothing that a tool raises may get into a future: a StopIteration there is never delivered, and a CancelledError looks
# like a cancellation of whoever waits. So it is caught where the tool runs. Only KeyboardInterrupt and SystemExit go
# through: they are meant for the whole process.


def _begin(function: ToolFunction, arguments: Mapping[str, Any]) -> ToolResult | Awaitable[object]:
    """Calls a tool. Returns its result, or what must be awaited for it."""
    try:
        value = function(**arguments)
        return value if inspect.isawaitable(value) else _as_result(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return _failure(error)


async def _end(value: Awaitable[object]) -> ToolResult:
    try:
        return _as_result(await value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return _failure(error)


async def _in_task(value: Awaitable[object]) -> ToolResult:
    """Awaits a tool in a task of its own: what cancels that task is the tool, what cancels this one is the caller."""
    task = asyncio.ensure_future(_end(value))
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if task.cancelled():  # it cancelled itself and never waited again
        return ToolResult("CancelledError", is_error=True)
    return task.result()


async def _in_thread(function: ToolFunction, arguments: Mapping[str, Any]) -> ToolResult | Awaitable[object]:
    thread = ThreadPoolExecutor(1)
    context = contextvars.copy_context()
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, context.run, _begin, function, arguments)
    finally:
        thread.shutdown(wait=False)


def _as_result(value: object) -> ToolResult:
    return value if isinstance(value, ToolResult) else ToolResult(str(value))


def _failure(error: BaseException) -> ToolResult:
    try:
        text = str(error)
    except Exception:  # the message is the tool's code, too
        text = "its message cannot be shown"
    name = type(error).__name__
    return ToolResult(f"{name}: {text}" if text else name, is_error=True)
