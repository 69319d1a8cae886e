"""The engines against a small real HTTP server that answers as vLLM and SGLang do."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from retool_env.errors import ConfigurationError, PolicyError
from retool_env.problems import Problem
from retool_env.rollout import ChatPolicy
from retool_env.rollout.attempt import AttemptConfig, attempt, make_codec
from retool_env.rollout.engines import (
    ChatEngine,
    Engine,
    GenerateParams,
    Generation,
    ScriptedEngine,
    SglangEngine,
    TurnLostError,
    VllmEngine,
)
from retool_env.rollout.engines.base import cut_at_stop
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .scripted_server import Server

pytest.importorskip("httpx", reason="the httpx package is not installed (extra `rollout`)")

PARAMS = GenerateParams(
    max_tokens=77,
    stop=("</code>",),
    temperature=0.5,
    top_p=0.7,
    top_k=9,
    seed=3,
    extra={"min_p": 0.1},
    trajectory_id="t",
)
PLAIN = GenerateParams(max_tokens=5)
NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42")
CODE, ANSWER = "<code>\nprint(6 * 7)\n</code>", "<answer>\\boxed{42}</answer>"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def codec() -> TokenCodec:
    return make_codec(load("small"), AttemptConfig())


# What servers answer


def completion(codec: TokenCodec, generation: Generation) -> dict[str, Any]:
    """As vLLM's /v1/completions."""
    choice = {
        "index": 0,
        "text": generation.text,
        "logprobs": {"tokens": [""] * len(generation.ids or ()), "token_logprobs": generation.logprobs},
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
        "token_ids": generation.ids,
        "prompt_token_ids": None,
    }
    return {"id": "c", "object": "text_completion", "model": "m", "choices": [choice]}


def generated(codec: TokenCodec, generation: Generation) -> dict[str, Any]:
    """As vLLM's /inference/v1/generate: ids, and no text."""
    content = [{"token": "", "logprob": logprob, "top_logprobs": []} for logprob in generation.logprobs or ()]
    choice = {
        "index": 0,
        "logprobs": {"content": content},
        "finish_reason": generation.finish_reason,
        "token_ids": generation.ids,
    }
    return {"request_id": "r", "choices": [choice]}


def sglang(codec: TokenCodec, generation: Generation) -> dict[str, Any]:
    """As SGLang's /generate with no_stop_trim: the text runs to the end of the token that completed a stop string."""
    ids = generation.ids or ()
    finish: dict[str, Any] = {"type": generation.finish_reason}
    if generation.finish_reason == "stop":
        finish["matched"] = generation.stop_reason
    pairs = [[logprob, id, None] for logprob, id in zip(generation.logprobs or (), ids, strict=True)]
    return {
        "text": codec.decode(ids),
        "meta_info": {"id": "r", "finish_reason": finish, "output_token_logprobs": pairs},
    }


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "completions": (lambda url, codec, **options: VllmEngine(url, "m", **options), completion, "prompt"),
    "generate": (
        lambda url, codec, **options: VllmEngine(url, "m", api="generate", codec=codec, **options),
        generated,
        "token_ids",
    ),
    "sglang": (lambda url, codec, **options: SglangEngine(url, **options), sglang, "input_ids"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


async def ask(engine: Engine, ids: Sequence[int] = (1, 2), params: GenerateParams = PLAIN) -> Generation:
    try:
        return await engine.generate(ids, params)
    finally:
        await engine.aclose()


# Requests and answers


async def test_a_completions_request(server: Server, codec: TokenCodec) -> None:
    server.script = lambda i, path, body: (
        200,
        completion(codec, Generation([7, 8], "ab</code>", [-1.0, -2.0], "stop", "</code>")),
    )
    generation = await ask(VllmEngine(server.url + "/v1", "m", api_key="k"), [1, 2, 3], PARAMS)
    assert generation == Generation([7, 8], "ab</code>", [-1.0, -2.0], "stop", "</code>")
    assert server.requests == [
        (
            "/v1/completions",
            {
                "model": "m",
                "prompt": [1, 2, 3],
                "return_token_ids": True,
                "logprobs": 0,
                "max_tokens": 77,
                "temperature": 0.5,
                "top_p": 0.7,
                "top_k": 9,
                "min_p": 0.1,
                **NO_PENALTIES,
                "seed": 3,
                "stop": ["</code>"],
                "include_stop_str_in_output": True,
            },
        )
    ]
    assert server.headers[0]["authorization"] == "Bearer k"
    assert server.headers[0]["x-session-id"] == "t"


async def test_a_generate_request(server: Server, codec: TokenCodec) -> None:
    ids = codec.encode("print(1)</code>\n")
    server.script = lambda i, path, body: (200, generated(codec, Generation(ids, "", [-1.0] * len(ids), "stop")))
    generation = await ask(VllmEngine(server.url, "m", api="generate", codec=codec), [1, 2, 3], PARAMS)
    assert generation == Generation(ids, "print(1)</code>", [-1.0] * len(ids), "stop", "</code>")
    [(path, body)] = server.requests
    assert path == "/inference/v1/generate"
    assert body["token_ids"] == [1, 2, 3]
    assert body["sampling_params"]["stop"] == ["</code>"]
    assert body["sampling_params"]["logprobs"] == 0
    assert set(body) == {"model", "token_ids", "sampling_params"}


async def test_an_sglang_request(server: Server, codec: TokenCodec) -> None:
    ids = codec.encode("print(1)</code>\n")
    server.script = lambda i, path, body: (
        200,
        sglang(codec, Generation(ids, "", [-1.0] * len(ids), "stop", "</code>")),
    )
    generation = await ask(SglangEngine(server.url), [1, 2, 3], PARAMS)
    assert generation == Generation(ids, "print(1)</code>", [-1.0] * len(ids), "stop", "</code>")
    [(path, body)] = server.requests
    assert path == "/generate"
    assert len(body.pop("rid")) == 32
    assert body == {
        "input_ids": [1, 2, 3],
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": 77,
            "temperature": 0.5,
            "top_p": 0.7,
            "top_k": 9,
            "min_p": 0.1,
            "sampling_seed": 3,
            "stop": ["</code>"],
            "no_stop_trim": True,
        },
    }


@kinds
async def test_what_is_not_set_is_not_sent(kind: str, server: Server, codec: TokenCodec) -> None:
    make, answer, _ = KINDS[kind]
    server.script = lambda i, path, body: (200, answer(codec, Generation([7], "x", [-1.0], "length")))
    generation = await ask(make(server.url, codec))
    assert (generation.ids, generation.logprobs, generation.finish_reason) == ([7], [-1.0], "length")
    [(_, body)] = server.requests
    sent = {**body, **body.get("sampling_params", {})}
    assert set(sent).isdisjoint({"stop", "seed", "sampling_seed", "include_stop_str_in_output"})
    # What shapes the distribution is said to a vLLM server, which would take its model's generation_config.json.
    assert sent.get("top_k") == (None if kind == "sglang" else 0)
    assert kind == "sglang" or sent.items() >= NO_PENALTIES.items()
    assert "x-session-id" not in server.headers[0]
    assert "authorization" not in server.headers[0]


@kinds
async def test_an_attempt_over_http(kind: str, server: Server, codec: TokenCodec, tier_sandbox: Sandbox) -> None:
    make, answer, prompt_field = KINDS[kind]
    script = ScriptedEngine(codec, [CODE, ANSWER])

    def serve(number: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        sampling = body.get("sampling_params", body)
        params = GenerateParams(sampling.get("max_tokens") or sampling["max_new_tokens"], tuple(sampling["stop"]))
        return 200, answer(codec, asyncio.run(script.generate(body[prompt_field], params)))

    server.script = serve
    engine = make(server.url, codec)
    over_http = await attempt(PROBLEM, engine, codec, tier_sandbox)
    await engine.aclose()
    direct = await attempt(PROBLEM, ScriptedEngine(codec, [CODE, ANSWER]), codec, tier_sandbox)
    assert over_http.outcome == direct.outcome
    assert over_http.outcome.correct
    assert over_http.tokens.ids == direct.tokens.ids
    assert over_http.tokens.mask == direct.tokens.mask
    assert over_http.tokens.logprobs == pytest.approx(direct.tokens.logprobs)
    assert len({headers["x-session-id"] for headers in server.headers}) == 1


# Whose fault it is


@kinds
@pytest.mark.parametrize("status", [0, 429, 503])
async def test_a_broken_connection_and_a_busy_server_are_tried_again(
    kind: str, status: int, server: Server, codec: TokenCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retool_env.rollout.engines.http._FIRST_PAUSE_S", 0.0)
    make, answer, _ = KINDS[kind]
    good = (200, answer(codec, Generation([7], "x", [-1.0], "length")))
    server.script = lambda i, path, body: (status, "busy") if i < 2 else good
    assert (await ask(make(server.url, codec))).ids == [7]
    assert len(server.requests) == 3
    assert len({json.dumps(body) for _, body in server.requests}) == 1


@kinds
@pytest.mark.parametrize(("status", "n_requests"), [(0, 2), (503, 2), (500, 1)])
async def test_a_server_that_fails_has_lost_the_turn(
    kind: str, status: int, n_requests: int, server: Server, codec: TokenCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retool_env.rollout.engines.http._FIRST_PAUSE_S", 0.0)
    server.script = lambda i, path, body: (status, "engine dead")
    with pytest.raises(TurnLostError, match=server.url):
        await ask(KINDS[kind][0](server.url, codec, max_retries=1))
    assert len(server.requests) == n_requests


async def test_a_server_that_is_not_there_has_lost_the_turn(codec: TokenCodec) -> None:
    with pytest.raises(TurnLostError, match="ConnectError"):
        await ask(SglangEngine("http://127.0.0.1:9", max_retries=0))


@kinds
async def test_a_server_that_takes_too_long_has_lost_the_turn(kind: str, server: Server, codec: TokenCodec) -> None:
    server.script = lambda i, path, body: None
    with pytest.raises(TurnLostError, match="no answer in time"):
        await ask(KINDS[kind][0](server.url, codec, timeout_s=0.5))
    assert len(server.requests) == 1
    assert server.given_up.wait(60)


@kinds
@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (400, "max_model_len is 100", "status 400: max_model_len is 100"),
        (404, "no model m", "status 404: no model m"),
        (302, "", "status 302"),
        (200, "<html>", "no JSON"),
        (200, "[" * 100_000, "no JSON"),
        (200, {"hello": 1}, "an answer without"),
        (200, [], "an answer without"),
    ],
)
async def test_a_refusal_is_no_lost_turn(
    kind: str, status: int, content: Any, message: str, server: Server, codec: TokenCodec
) -> None:
    server.script = lambda i, path, body: (status, content)
    with pytest.raises(PolicyError, match=message) as caught:
        await ask(KINDS[kind][0](server.url, codec))
    assert not isinstance(caught.value, TurnLostError)
    assert len(server.requests) == 1


@kinds
@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        (["7"], [-1.0]),
        ([None], [-1.0]),
        ([7.5], [-1.0]),
        ([-1], [-1.0]),
        ([2**70], [-1.0]),
        ([7], [None]),
        ([7], ["-1.0"]),
        ([7], [float("nan")]),
        ([7], [float("-inf")]),
    ],
)
async def test_garbage_for_tokens_is_the_engines_fault(
    kind: str, ids: list[Any], logprobs: list[Any], server: Server, codec: TokenCodec
) -> None:
    content = json.dumps(KINDS[kind][1](codec, Generation([7], "x", [-123.25], "stop")))
    content = content.replace("-123.25", json.dumps(logprobs[0])).replace("7", json.dumps(ids[0]))
    server.script = lambda i, path, body: (200, content)
    with pytest.raises(PolicyError) as caught:
        await ask(KINDS[kind][0](server.url, codec))
    assert not isinstance(caught.value, TurnLostError)


async def test_an_answer_that_comes_byte_by_byte_keeps_no_turn_for_ever() -> None:
    """Each byte would begin a time-out of the connection anew."""
    reached = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 -\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                reached.set()
                await asyncio.sleep(0.05)

    dripping = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{dripping.sockets[0].getsockname()[1]}"
    engine = VllmEngine(url, "m", timeout_s=0.5, max_retries=0)
    async with asyncio.timeout(60):
        with pytest.raises(TurnLostError, match="no answer in time"):
            await engine.generate([1], PLAIN)
    assert reached.is_set()
    await engine.aclose()
    dripping.close()


async def test_an_answer_that_cannot_be_unpacked_is_refused_and_no_sign_of_health() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 -\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    garbled = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = VllmEngine(f"http://127.0.0.1:{garbled.sockets[0].getsockname()[1]}", "m", max_retries=0)
    with pytest.raises(PolicyError, match="cannot be read"):
        await engine.generate([1], PLAIN)
    assert not await engine.healthy()
    await engine.aclose()
    garbled.close()


@kinds
async def test_any_other_end_has_lost_the_turn(kind: str, server: Server, codec: TokenCodec) -> None:
    make, answer, _ = KINDS[kind]
    server.script = lambda i, path, body: (200, answer(codec, Generation([7], "x", [-1.0], "abort")))
    assert (await ask(make(server.url, codec))).finish_reason == "abort"


@kinds
async def test_a_cancelled_call_closes_its_connection(kind: str, server: Server, codec: TokenCodec) -> None:
    server.script = lambda i, path, body: (200, {}) if path == "/abort_request" else None
    engine = KINDS[kind][0](server.url, codec)
    task = asyncio.create_task(engine.generate([1], PLAIN))
    await asyncio.to_thread(server.asked.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.given_up.wait, 10)
    await engine.aclose()
    if kind == "sglang":  # and says so, by the request's id
        (_, asked), abort = server.requests
        assert abort == ("/abort_request", {"rid": asked["rid"]})
    else:
        assert len(server.requests) == 1


def test_options_that_cannot_work_are_refused(codec: TokenCodec) -> None:
    for make, message in (
        (lambda: SglangEngine("localhost:1"), "base_url: must start with http"),
        (lambda: SglangEngine("http://h", timeout_s=0), "timeout_s"),
        (lambda: SglangEngine("http://h", max_retries=-1), "max_retries"),
        (lambda: VllmEngine("http://h", ""), "model: must be the name"),
        (lambda: VllmEngine("http://h", "m", api="chat"), "api: must be"),  # type: ignore[arg-type]
        (lambda: VllmEngine("http://h", "m", api="generate"), "codec: api='generate' answers ids only"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()


def test_the_stop_string_that_ends_first_cuts() -> None:
    assert cut_at_stop("a</code>b</answer>", ("</answer>", "</code>")) == ("a</code>", "</code>")
    assert cut_at_stop("abc", ("x",)) == ("abc", None)
    assert cut_at_stop("abc", ()) == ("abc", None)
    assert cut_at_stop("a-b-", ("-b-", "-")) == ("a-", "-")


# A chat server


async def test_an_attempt_with_a_chat_server_has_no_ids_of_its_own(server: Server, tier_sandbox: Sandbox) -> None:
    pytest.importorskip("openai", reason="the openai package is not installed (extra `rollout`)")

    def serve(number: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        message = {"role": "assistant", "content": [CODE, ANSWER][number]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    server.script = serve
    engine = ChatEngine(ChatPolicy(server.url + "/v1", "m", max_retries=0))
    result = await attempt(PROBLEM, engine, load("small"), tier_sandbox)
    await engine.aclose()
    assert result.outcome.correct
    assert not result.tokens.exact
    assert not result.tokens.has_logprobs
    assert server.requests[1][1]["messages"][-1]["content"] == CODE + "\n<interpreter>\n42\n</interpreter>\n"


async def test_a_chat_engine_needs_the_text(server: Server) -> None:
    pytest.importorskip("openai", reason="the openai package is not installed (extra `rollout`)")
    with pytest.raises(PolicyError, match="text level"):
        await ask(ChatEngine(ChatPolicy(server.url + "/v1", "m")))
