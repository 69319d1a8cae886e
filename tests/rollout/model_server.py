"""A small real HTTP server that answers as a vLLM server does; its turns come from an engine. Can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from retool_env.rollout.engines import Engine, GenerateParams

MODEL = "scripted"


class ModelServer:
    """Serves ``/v1/completions``, ``/v1/models`` and ``/health``, one connection a task.

    Attributes:
        port: Where; a server that starts again keeps it.
        prompts: The ids of the prompts that were asked for, in order.
        bodies: The requests to generate.
        n_connections: Connections that were made.
        abandoned: Connections that the client closed before it was answered.
        health: Status that ``/health`` answers; None for never.
        status: Status that a request to generate is answered with; None for never.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.prompts: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.n_connections = 0
        self.abandoned = 0
        self.health: int | None = 200
        self.status: int | None = 200
        self.on_request: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1000)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Ends at once: connections break, new ones are refused."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.n_connections += 1
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    path = head.split(" ")[1]
                    length = next(
                        (
                            int(line.split(":")[1])
                            for line in head.splitlines()
                            if line.lower()[:15] == "content-length:"
                        ),
                        0,
                    )
                    body = json.loads(await reader.readexactly(length)) if length else {}
                    answer = asyncio.ensure_future(self._answer(path, body))
                    # A client that gives up closes the connection, which ends the wait for its next request.
                    hung_up = asyncio.ensure_future(reader.read(1))
                    try:
                        await asyncio.wait([answer, hung_up], return_when=asyncio.FIRST_COMPLETED)
                        if not answer.done():
                            self.abandoned += 1
                            return
                        status, content = answer.result()
                    finally:
                        answer.cancel()
                        hung_up.cancel()
                        await asyncio.gather(answer, hung_up, return_exceptions=True)
                    data = json.dumps(content).encode()
                    writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                    await writer.drain()
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/health":
            return await self._say(self.health)
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        if path != "/v1/completions":
            return 404, {"error": "no such path"}
        self.prompts.append(body["prompt"])
        self.bodies.append(body)
        self.on_request()
        if self.status != 200:
            return await self._say(self.status)
        known = {"max_tokens", "temperature", "top_p", "top_k", "seed"}
        params = GenerateParams(stop=tuple(body.get("stop", ())), **{k: v for k, v in body.items() if k in known})
        generation = await self._engine.generate(body["prompt"], params)
        choice = {
            "index": 0,
            "text": generation.text,
            "token_ids": list(generation.ids or ()),
            "logprobs": {"token_logprobs": list(generation.logprobs or ())},
            "finish_reason": generation.finish_reason,
            "stop_reason": generation.stop_reason,
        }
        return 200, {"choices": [choice]}

    async def _say(self, status: int | None) -> tuple[int, Any]:
        if status is None:
            await asyncio.Event().wait()
        return status or 200, {"status": status}
