"""What a call of a server costs us: CPU time of the loop's thread, by the calls in flight and the prompt's length."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from retool_env.rollout.engines import GenerateParams, VllmEngine

_ANSWER_TOKENS = 300


def measure(in_flight: tuple[int, ...] = (8, 256), prompts: tuple[int, ...] = (1000, 8000)) -> list[dict[str, Any]]:
    """Measures ``VllmEngine`` against a server in another process that answers at once."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        return asyncio.run(_calls(ours.recv(), in_flight, prompts))
    finally:
        process.terminate()
        process.join()


async def _calls(port: int, in_flight: tuple[int, ...], prompts: tuple[int, ...]) -> list[dict[str, Any]]:
    engine = VllmEngine(f"http://127.0.0.1:{port}", "m", max_retries=0)
    params = GenerateParams(max_tokens=1000, stop=("</code>",), trajectory_id="t")
    found = []

    async def calls(ids: list[int], n: int) -> None:
        for _ in range(n):
            await engine.generate(ids, params)

    for n_prompt in prompts:
        ids = list(range(n_prompt))
        for n in in_flight:
            each = max(2, 512 // n)
            times = []
            for _ in range(3):  # the first makes the connections
                began = time.thread_time()
                await asyncio.gather(*(calls(ids, each) for _ in range(n)))
                times.append(1e3 * (time.thread_time() - began) / (n * each))
            found.append({"prompt_tokens": n_prompt, "in_flight": n, "cpu_ms": min(times[1:])})
    await engine.aclose()
    return found


def _serve(ready: Connection) -> None:
    n = _ANSWER_TOKENS
    logprobs = {"tokens": ["token_id:1"] * n, "token_logprobs": [-0.123456789] * n, "top_logprobs": [{"a": -0.1}] * n}
    choice = {"index": 0, "text": "x" * 4 * n, "token_ids": [*range(n)], "logprobs": logprobs, "finish_reason": "stop"}
    data = json.dumps({"choices": [choice]}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=1024)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
