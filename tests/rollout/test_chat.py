"""``ChatPolicy`` against a small real HTTP server that speaks chat completions from a script."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from retool_env.demo import run_attempt
from retool_env.errors import ConfigurationError, MissingDependencyError, PolicyError
from retool_env.problems import Problem
from retool_env.protocol.base import Observation
from retool_env.rollout import ChatPolicy, Conversation, Exchange, Reply
from retool_env.sandbox import Sandbox

pytest.importorskip("openai", reason="the openai package is not installed (extra `rollout`)")

Answer = tuple[int, dict[str, Any]]
PROBLEM = Problem(id="p", question="1+1?", answer="2")
OPENING = ({"role": "user", "content": "1+1?"},)
TOOLS = ({"type": "function", "function": {"name": "code_interpreter", "description": "", "parameters": {}}},)


class Server:
    """Answers request number i with ``script(i, body)``; keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.script: Callable[[int, dict[str, Any]], Answer] = lambda i, body: say("hello")
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.requests)
                    outer.requests.append({"path": self.path, **body})
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, answer = outer.script(number, body)
                content = json.dumps(answer).encode()
                with contextlib.suppress(ConnectionError):  # a client that gave up is gone
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def say(content: str | None, finish: str = "stop", calls: Any = None, **extra: object) -> Answer:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": finish, **extra}
    return 200, {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def refuse(message: str, status: int = 400) -> Answer:
    return status, {"error": {"message": message, "type": "BadRequestError", "code": status}}


def conversation(*exchanges: Exchange, stop: tuple[str, ...] = ("</code>",), tools: Any = ()) -> Conversation:
    return Conversation(PROBLEM, "code_tags", OPENING, tools=tools, stop=stop, exchanges=list(exchanges))


def policy(server: Server, **options: Any) -> ChatPolicy:
    return ChatPolicy(server.url, "m", **{"max_retries": 0, **options})


CODE = Exchange(Reply("Let me see.\n<code>print(1+1)</code>"), Observation("\n<interpreter>\n2\n</interpreter>\n"))
MORE = Exchange(Reply("Again: <code>print(2)</code>"), Observation("\n<interpreter>\n2\n</interpreter>\n"))


async def test_a_first_turn_sends_the_opening_and_the_settings(server: Server) -> None:
    async with policy(server, temperature=0.5, max_tokens=77, api_key="k", extra_body={"top_p": 0.7}) as model:
        assert await model.act(conversation()) == Reply("hello")
        assert model.describe() == f"m at {server.url} (temperature 0.5)"
    assert server.requests == [
        {
            "path": "/v1/chat/completions",
            "model": "m",
            "messages": list(OPENING),
            "temperature": 0.5,
            "max_tokens": 77,
            "stop": ["</code>"],
            "top_p": 0.7,
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer k"


async def test_a_key_in_the_environment_is_not_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with policy(server) as model:
        await model.act(conversation())
    assert "secret" not in str(server.headers)


async def test_the_assistants_turn_is_continued(server: Server) -> None:
    async with policy(server) as model:
        await model.act(conversation(CODE, MORE))
    [request] = server.requests
    assert request["continue_final_message"] is True
    assert request["add_generation_prompt"] is False
    assert request["messages"] == [
        *OPENING,
        {
            "role": "assistant",
            "content": "Let me see.\n<code>print(1+1)</code>\n<interpreter>\n2\n</interpreter>\n"
            "Again: <code>print(2)</code>\n<interpreter>\n2\n</interpreter>\n",
        },
    ]


async def test_a_server_that_cannot_continue_gets_user_messages_from_then_on(server: Server) -> None:
    def script(number: int, body: dict[str, Any]) -> Answer:
        return refuse("Unrecognized request argument") if "continue_final_message" in body else say("ok")

    server.script = script
    async with policy(server) as model:
        assert (await model.act(conversation(CODE))).text == "ok"
        assert (await model.act(conversation(CODE))).text == "ok"
    assert ["continue_final_message" in request for request in server.requests] == [True, False, False]
    assert server.requests[1]["messages"] == [
        *OPENING,
        {"role": "assistant", "content": CODE.reply.text},
        {"role": "user", "content": "<interpreter>\n2\n</interpreter>"},
    ]


async def test_a_refusal_for_another_reason_is_not_taken_for_one_of_continuing(server: Server) -> None:
    server.script = lambda number, body: refuse("bad temperature") if number < 2 else say("ok")
    async with policy(server) as model:
        with pytest.raises(PolicyError, match=r"model 'm': status 400: bad temperature"):
            await model.act(conversation(CODE))
        await model.act(conversation(CODE))
    assert "continue_final_message" in server.requests[2]


async def test_continuing_can_be_turned_off(server: Server) -> None:
    async with policy(server, continue_turn=False) as model:
        await model.act(conversation(CODE))
    assert [message["role"] for message in server.requests[0]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("text", "extra", "expected"),
    [
        # vLLM and SGLang say which stop string it was; None and a token's id mean the end token.
        ("<code>1", {"stop_reason": "</code>"}, Reply("<code>1</code>", stop_reason="</code>")),
        ("<code>1</code>", {"stop_reason": "</code>"}, Reply("<code>1</code>", stop_reason="</code>")),
        ("<code>1", {"matched_stop": "</code>"}, Reply("<code>1</code>", stop_reason="</code>")),
        ("<code>1", {"stop_reason": None}, Reply("<code>1")),
        ("<code>1", {"matched_stop": 151645}, Reply("<code>1")),
        # Others say nothing.
        ("<code>1", {}, Reply("<code>1</code>", stop_reason="</code>")),
        ("<code>1</code> so <code>2", {}, Reply("<code>1</code> so <code>2</code>", stop_reason="</code>")),
        ("<code>1</code>", {}, Reply("<code>1</code>", stop_reason="</code>")),
        ("The answer is 2.", {}, Reply("The answer is 2.")),
        ("<answer>2", {}, Reply("<answer>2</answer>", stop_reason="</answer>")),
        ("<answer><code>2", {}, Reply("<answer><code>2")),
    ],
)
async def test_the_stop_string_that_a_server_cuts_off_is_put_back(
    server: Server, text: str, extra: dict[str, Any], expected: Reply
) -> None:
    server.script = lambda number, body: say(text, **extra)
    async with policy(server) as model:
        assert await model.act(conversation(stop=("</code>", "</answer>"))) == expected


async def test_a_stop_string_that_opens_a_block_is_not_put_into_an_unfinished_one(server: Server) -> None:
    server.script = lambda number, body: say("```python\nprint(1")
    async with policy(server) as model:
        assert await model.act(conversation(stop=("```output",))) == Reply("```python\nprint(1")
        assert (await model.act(conversation(stop=("\n```\n",)))).stop_reason == "\n```\n"


@pytest.mark.parametrize(("said", "finish"), [("stop", "stop"), ("length", "length"), ("abort", "abort"),
                                              ("content_filter", "abort")])  # fmt: skip
async def test_finish_reasons(server: Server, said: str, finish: str) -> None:
    server.script = lambda number, body: say("<code>1", said, stop_reason=None)
    async with policy(server) as model:
        assert await model.act(conversation()) == Reply("<code>1", finish)  # type: ignore[arg-type]


async def test_an_empty_message_is_an_empty_turn(server: Server) -> None:
    server.script = lambda number, body: say(None)
    async with policy(server) as model:
        assert await model.act(conversation()) == Reply("")


async def test_a_full_context_is_a_turn_cut_by_length(server: Server) -> None:
    server.script = lambda number, body: refuse("This model's maximum context length is 4096 tokens. However, ...")
    async with policy(server) as model:
        assert await model.act(conversation(CODE)) == Reply("", "length")
    assert len(server.requests) == 1


def call(number: int, arguments: str) -> dict[str, Any]:
    function = {"name": "code_interpreter", "arguments": arguments}
    return {"id": f"call-{number}", "type": "function", "function": function}


async def test_parsed_tool_calls_become_text_and_go_back_as_calls(server: Server) -> None:
    calls = [call(0, '{"code": "print(1)"}'), call(1, '{"code": "print(2)"')]
    server.script = lambda number, body: say("Two tries.", "tool_calls", calls)
    async with policy(server) as model:
        reply = await model.act(conversation(tools=TOOLS, stop=()))
        assert reply.finish == "stop"
        assert reply.text == (
            'Two tries.\n<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(1)"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "code_interpreter", "arguments": "{\\"code\\": \\"print(2)\\""}\n</tool_call>'
        )
        shown = Observation("...", ({"role": "tool", "name": "code_interpreter", "content": "Error: arguments"},))
        await model.act(conversation(Exchange(reply, shown), tools=TOOLS, stop=()))
    first, second = server.requests
    assert (first["tools"], first["tool_choice"], "stop" in first) == (list(TOOLS), "auto", False)
    assert "continue_final_message" not in second
    _, assistant, *outputs = second["messages"]
    assert (assistant["content"], assistant["tool_calls"]) == ("Two tries.", calls)
    assert [output["tool_call_id"] for output in outputs] == ["call-0", "call-1"]
    assert {output["content"] for output in outputs} == {"Error: arguments"}


async def test_a_server_without_a_tool_parser_is_asked_not_to_parse(server: Server) -> None:
    def script(number: int, body: dict[str, Any]) -> Answer:
        if body["tool_choice"] == "auto":
            return refuse('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        return say("<tool_call>\n{}\n</tool_call>")

    server.script = script
    raw = Exchange(Reply("<tool_call>x</tool_call>"), Observation("...", ({"role": "tool", "content": "2"},)))
    async with policy(server) as model:
        await model.act(conversation(tools=TOOLS))
        await model.act(conversation(raw, tools=TOOLS))
    assert [request["tool_choice"] for request in server.requests] == ["auto", "none", "none"]
    assert server.requests[2]["messages"][1:] == [
        {"role": "assistant", "content": "<tool_call>x</tool_call>"},
        {"role": "tool", "content": "2"},
    ]


async def test_errors_of_the_moment_are_tried_again(server: Server) -> None:
    def script(number: int, body: dict[str, Any]) -> Answer:
        return refuse("busy", 503) if number == 0 else say("ok")

    server.script = script
    async with policy(server, max_retries=1) as model:
        assert (await model.act(conversation())).text == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_other_errors_name_server_model_and_reason(server: Server, status: int) -> None:
    server.script = lambda number, body: refuse("the reason", status)
    async with policy(server) as model:
        with pytest.raises(PolicyError, match=rf"{server.url}, model 'm': status {status}: .*the reason"):
            await model.act(conversation())


async def test_an_answer_that_is_no_completion_is_an_error(server: Server) -> None:
    server.script = lambda number, body: (200, {"status": "fine"})
    async with policy(server) as model:
        with pytest.raises(PolicyError, match="without choices"):
            await model.act(conversation())


async def test_a_server_that_is_not_there_is_an_error(server: Server) -> None:
    server.close()
    async with policy(server) as model:
        with pytest.raises(PolicyError, match=r"model 'm': no answer \(Connection error"):
            await model.act(conversation())


async def test_a_server_that_takes_too_long_is_an_error(server: Server) -> None:
    release = threading.Event()

    def script(number: int, body: dict[str, Any]) -> Answer:
        release.wait(60)
        return say("late")

    server.script = script
    async with policy(server, timeout_s=0.3) as model:
        with pytest.raises(PolicyError, match=r"no answer .*timed out"):
            await model.act(conversation())
    release.set()


async def test_many_attempts_at_once_share_the_policy(server: Server) -> None:
    together = threading.Barrier(8, timeout=60)

    def script(number: int, body: dict[str, Any]) -> Answer:
        together.wait()  # answers none before all eight have asked
        return say(body["messages"][0]["content"])

    server.script = script
    async with policy(server) as model:
        talks = [Conversation(PROBLEM, "code_tags", ({"role": "user", "content": str(i)},)) for i in range(8)]
        replies = await asyncio.gather(*(model.act(talk) for talk in talks))
    assert [reply.text for reply in replies] == [str(i) for i in range(8)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url: must start with http"),
        ({"model": ""}, "model: must be the name"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"timeout_s": 0}, "timeout_s above 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ChatPolicy(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **options})


def test_without_the_openai_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "retool-env\[rollout\]"'):
        ChatPolicy("http://127.0.0.1:1/v1", "m")


@pytest.mark.parametrize("continues", [True, False])
async def test_a_whole_attempt_from_server_to_reward(server: Server, continues: bool) -> None:
    def script(number: int, body: dict[str, Any]) -> Answer:
        if "continue_final_message" in body and not continues:
            return refuse("unknown field")
        *_, last = body["messages"]
        if len(body["messages"]) == 1:
            return say("Let me compute.\n<code>\nprint(123 * 457)\n")  # the stop string was cut off
        assert last["role"] == ("assistant" if continues else "user")
        output = last["content"].split("<interpreter>")[1].split()[0]
        return say(f"It is\n<answer>\\boxed{{{output}}}</answer>")

    server.script = script
    problem = Problem(id="p", question="What is $123 \\cdot 457$?", answer="56211")
    with Sandbox() as sandbox:
        async with policy(server) as model:
            trajectory = await run_attempt(problem, model, sandbox)
    assert trajectory.outcome is not None
    assert (trajectory.outcome.correct, trajectory.outcome.interpreter_calls) == (True, 1)
    assert trajectory.turns[0].kept.endswith("</code>")
