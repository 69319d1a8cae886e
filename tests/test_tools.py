import asyncio
import concurrent.futures
import copy
import pickle
import threading
from typing import Any

import pytest

from retool_env.errors import ConfigurationError
from retool_env.tools import CODE_INTERPRETER, Tool, ToolCall, ToolFunction, ToolRegistry, ToolResult

NUMBER = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}


def make(function: Any, name: str = "double", parameters: Any = NUMBER) -> Tool:
    return Tool(name, "Doubles a number.", parameters, function)


def double(x: float) -> str:
    return str(2 * x)


async def double_later(x: float) -> str:
    await asyncio.sleep(0)
    return str(2 * x)


def double_by_promise(x: float) -> Any:
    """Not itself a coroutine function, but gives something to await."""
    return double_later(x)


class DoubleObject:
    async def __call__(self, x: float) -> ToolResult:
        return ToolResult(str(2 * x))


def fail(x: float) -> str:
    raise ZeroDivisionError("no")


async def fail_later(x: float) -> str:
    raise ZeroDivisionError("no")


CALL = ToolCall("double", {"x": 4})


@pytest.mark.parametrize("function", [double, double_later, double_by_promise, DoubleObject()])
def test_a_sync_caller_gets_the_result_of_any_kind_of_tool(function: ToolFunction) -> None:
    assert ToolRegistry([make(function)]).call(CALL) == ToolResult("8")


@pytest.mark.parametrize("function", [double, double_later, double_by_promise, DoubleObject()])
async def test_an_async_caller_does_too_and_so_does_a_sync_call_inside_a_loop(function: ToolFunction) -> None:
    registry = ToolRegistry([make(function)])
    assert await registry.acall(CALL) == ToolResult("8")
    assert registry.call(CALL) == ToolResult("8")


@pytest.mark.parametrize("function", [fail, fail_later])
async def test_what_a_tool_raises_becomes_an_error_result(function: ToolFunction) -> None:
    registry = ToolRegistry([make(function)])
    expected = ToolResult("ZeroDivisionError: no", is_error=True)
    assert await registry.acall(CALL) == expected
    assert registry.call(CALL) == expected


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Mute:
    __str__ = MuteError.__str__


RAISED = [
    StopIteration("end"),
    StopAsyncIteration("end"),
    GeneratorExit(),
    asyncio.CancelledError("mine"),
    concurrent.futures.CancelledError("mine"),
    TimeoutError("late"),
    RecursionError("deep"),
    ExceptionGroup("two", [ValueError("1"), ValueError("2")]),
    MuteError(),
]


def raising(error: BaseException) -> list[Any]:
    """Tools of every kind that raise the error."""

    def at_once(x: float) -> str:
        raise error

    async def later(x: float) -> str:
        await asyncio.sleep(0)
        raise error

    async def without_waiting(x: float) -> str:
        raise error

    def by_promise(x: float) -> Any:
        return later(x)

    class ByFuture:
        def __init__(self, x: float):
            pass

        def __await__(self) -> Any:
            raise error

    return [at_once, later, without_waiting, by_promise, ByFuture]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", range(5))
async def test_no_exception_of_a_tool_gets_out_and_none_hangs(error: BaseException, kind: int) -> None:
    registry = ToolRegistry([make(raising(error)[kind])])
    async with asyncio.timeout(30):
        for result in (await registry.acall(CALL), registry.call(CALL)):
            assert result.is_error
            # A coroutine cannot raise a StopIteration: Python makes it a RuntimeError that names it.
            assert type(error).__name__ in result.text


async def test_a_tool_that_cancels_itself_has_failed_and_cancels_nobody_else() -> None:
    async def cancel_and_wait(x: float) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "not reached"

    async def cancel_and_return(x: float) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "never seen"

    def cancelled_future(x: float) -> Any:
        future: asyncio.Future[str] = asyncio.Future(loop=loop)
        future.cancel()
        return future

    loop = asyncio.get_running_loop()
    for function in (cancel_and_wait, cancel_and_return, cancelled_future):
        registry = ToolRegistry([make(function)])
        assert await registry.acall(CALL) == ToolResult("CancelledError", is_error=True)
        assert registry.call(CALL).is_error


async def test_cancelling_the_caller_cancels_an_async_tool_and_waits_for_it() -> None:
    course = []
    started = asyncio.Event()

    async def wait(x: float) -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            course.append("cleaned up")
        return "not reached"

    pending = asyncio.create_task(ToolRegistry([make(wait)]).acall(CALL))
    await started.wait()
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert course == ["cleaned up"]


@pytest.mark.parametrize("value", [10**5000, Mute(), MuteError(), [10**5000]], ids=["int", "object", "error", "list"])
async def test_a_value_that_has_no_text_is_an_error_result(value: object) -> None:
    async def give_later(x: float) -> Any:
        return value

    for function in (lambda x: value, give_later):
        registry = ToolRegistry([make(function)])
        for result in (await registry.acall(CALL), registry.call(CALL)):
            assert result.is_error


async def test_a_result_whose_text_is_no_text_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"ToolResult\.text: must be a str, got int"):
        ToolResult(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ToolResult\.is_error: must be a bool, got str"):
        ToolResult("5", is_error="no")  # type: ignore[arg-type]
    registry = ToolRegistry([make(lambda x: ToolResult(5))])  # type: ignore[arg-type]
    for result in (await registry.acall(CALL), registry.call(CALL)):
        assert result == ToolResult("TypeError: ToolResult.text: must be a str, got int", is_error=True)


async def test_a_blocking_tool_does_not_hold_up_the_event_loop() -> None:
    release = threading.Event()

    def wait(x: float) -> str:
        return "released" if release.wait(60) else "never released"

    registry = ToolRegistry([make(wait)])
    # More of them than a shared pool would have threads.
    pending = [asyncio.create_task(registry.acall(CALL)) for _ in range(40)]
    await asyncio.sleep(0)
    release.set()  # reached only because the loop is free
    assert {result.text for result in await asyncio.gather(*pending)} == {"released"}


def test_other_results_become_text() -> None:
    assert ToolRegistry([make(lambda x: 2 * x)]).call(CALL) == ToolResult("8")
    assert ToolRegistry([make(lambda x: None)]).call(CALL) == ToolResult("None")


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("double", {}, "missing argument: x"),
        ("double", {"x": "4"}, "argument x must be a number"),
        ("double", {"x": 1, "y": 2}, "Additional properties are not allowed"),
        ("double", [4], "arguments must be a JSON object"),
        ("triple", {"x": 4}, "unknown tool: triple (available: code_interpreter, double)"),
        (None, {"x": 4}, "unknown tool: None"),
        ("code_interpreter", {"code": None}, "argument code must be a string"),
        ("code_interpreter", {"source": "1"}, "missing argument: code"),
    ],
)
def test_a_bad_call_is_explained_in_words(name: object, arguments: object, complaint: str) -> None:
    found = ToolRegistry([make(double)]).check(name, arguments)
    assert isinstance(found, str)
    assert complaint in found


def test_nested_arguments_are_named_by_their_path() -> None:
    inner = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]}
    tool = make(double, parameters={"type": "object", "properties": {"p": inner}})
    assert tool.check({"p": {}}) == "missing argument: p.n"
    assert tool.check({"p": {"n": "1"}}) == "argument p.n must be a integer or null"


def test_a_good_call_comes_back_checked() -> None:
    assert ToolRegistry([make(double)]).check("double", {"x": 4}) == CALL


def test_the_interpreter_comes_first_and_is_not_called_here() -> None:
    registry = ToolRegistry([make(double)])
    assert [tool.name for tool in registry] == [CODE_INTERPRETER, "double"]
    assert [schema["function"]["name"] for schema in registry.schemas()] == [CODE_INTERPRETER, "double"]
    assert len(registry) == 2
    assert "double" in registry
    with pytest.raises(ConfigurationError, match="runs in the sandbox"):
        registry.call(ToolCall(CODE_INTERPRETER, {"code": "1"}))


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        (make(double, name=CODE_INTERPRETER), "already a tool"),
        (make(None), "needs a callable"),
        (make(double, parameters={"type": "nonsense"}), "not valid"),
        (make(double, parameters={"type": "string"}), "object"),
        (make(double, parameters=5), "must be a mapping, got int"),
        (make(double, parameters={**NUMBER, "patternProperties": {"(": {}}}), "not valid"),
        (make(double, parameters={"type": "object", "properties": {"x": {"pattern": "("}}}), "not valid"),
    ],
)
def test_a_bad_tool_is_an_error_at_once(tool: Tool, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        ToolRegistry([tool])


def test_a_tool_is_shared_by_copies_and_can_be_pickled_after_use() -> None:
    tool = make(double)
    assert tool.check({"x": 1}) is None  # makes the validator
    assert copy.deepcopy(tool) is tool
    again = pickle.loads(pickle.dumps(tool))
    assert again == tool
    assert again.check({"x": "1"}) == "argument x must be a number"
