"""``HttpEngine``: what the engines behind HTTP share: requests, time-outs, retries, and whose fault an answer is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from retool_env.errors import ConfigurationError, MissingDependencyError, PolicyError
from retool_env.protocol.base import Finish
from retool_env.rollout.engines.base import TurnLostError

if TYPE_CHECKING:
    import httpx

_BUSY: Final = (408, 425, 429, 502, 503, 504)
"""Statuses that say "not now"; a request is sent again after them."""
_FINISH: Final[Mapping[str, Finish]] = {"stop": "stop", "length": "length"}
_FIRST_PAUSE_S: Final = 0.25
_HEALTH_TIMEOUT_S: Final = 5.0


class HttpEngine:
    """Sends requests to one server. Generation leaves nothing behind on it, so any request may be sent again.

    When a call is cancelled its connection is closed, which is how servers learn that nobody waits.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        timeout_s: float = 600.0,
        max_retries: int = 3,
    ):
        """Makes the engine; nothing is sent yet.

        Args:
            base_url: The server's address, without the API's path: ``http://127.0.0.1:8000``.
            api_key: Sent as a bearer token, if the server wants one. No environment variable is read for it.
            connect_timeout_s: Seconds that making a connection may take.
            timeout_s: Seconds the server may take for one turn; after them the turn is lost.
            max_retries: How often a request is sent again, with growing pauses, after a broken connection or an answer
                that says "not now" (status 408, 425, 429, 502, 503, 504). Then the turn is lost.

        Raises:
            ConfigurationError: An address without ``http``, or a number out of range.
            MissingDependencyError: The httpx package is not installed.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"base_url: must start with http:// or https://, got {base_url!r}")
        if timeout_s <= 0 or connect_timeout_s <= 0 or max_retries < 0:
            raise ConfigurationError(
                "timeout_s and connect_timeout_s must be above 0, max_retries at least 0, got "
                f"{timeout_s}, {connect_timeout_s}, {max_retries}"
            )
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._connect = partial(_connect, api_key, connect_timeout_s, timeout_s, _verification(self.base_url))
        # A client for each call in flight, with one connection: a client's pool looks at all its connections for each
        # request, which at some hundred of them takes longer than everything else (httpcore 1.0).
        self._idle = [self._connect()]
        self._clients = list(self._idle)

    async def healthy(self) -> bool:
        """Asks the server whether it is well (``GET /health``); no answer within 5 s, or status 500 and more, is no."""
        import httpx

        try:
            async with self._client() as client:
                response = await client.get(self.base_url + "/health", timeout=_HEALTH_TIMEOUT_S)
        except httpx.RequestError:
            return False
        return response.status_code < 500

    async def aclose(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def _post(self, path: str, body: Mapping[str, Any], session: str = "") -> Any:
        """Returns the JSON that the server answers.

        Args:
            path: Where to.
            body: The request.
            session: Names the trajectory, in the header ``X-Session-Id``, for routers that keep such requests together.

        Raises:
            TurnLostError: There is no answer, or one that says that the server failed.
            PolicyError: The server refuses the request, or answers no JSON.
        """
        import httpx

        headers = {"Content-Type": "application/json"} | ({"X-Session-Id": session} if session else {})
        content = to_json(body)  # four times as fast as json for a long prompt
        pause_s = _FIRST_PAUSE_S
        for left in range(self._max_retries, -1, -1):
            try:
                # httpx's own time-outs begin anew with every byte.
                async with asyncio.timeout(self._timeout_s), self._client() as client:
                    response = await client.post(self.base_url + path, content=content, headers=headers)
            except (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError) as error:
                raise self._lost(path, f"no answer in time ({type(error).__name__})") from error
            except httpx.TransportError as error:
                if left == 0:
                    raise self._lost(path, f"{type(error).__name__}: {error}") from error
            except httpx.RequestError as error:
                raise self._refused(path, f"an answer that cannot be read ({type(error).__name__}: {error})") from error
            else:
                if response.status_code not in _BUSY or left == 0:
                    return self._read(path, response)
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lends a client that nobody else uses."""
        if self._idle:
            client = self._idle.pop()
        else:
            client = self._connect()
            self._clients.append(client)
        try:
            yield client
        finally:
            self._idle.append(client)

    def _read(self, path: str, response: httpx.Response) -> Any:
        status = response.status_code
        if status in _BUSY or status >= 500:
            raise self._lost(path, f"status {status}: {response.text[:500]}")
        if status >= 300:
            raise self._refused(path, f"status {status}: {response.text[:500]}")
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise self._refused(path, f"an answer that is no JSON: {response.text[:200]!r}") from error

    def _lost(self, path: str, what: str) -> TurnLostError:
        return TurnLostError(f"{self.base_url}{path}: {what}")

    def _refused(self, path: str, what: str) -> PolicyError:
        return PolicyError(f"{self.base_url}{path}: {what}")


def read_finish(reason: object) -> Finish:
    """Returns how generation stopped; anything but an end or a length limit has lost the turn."""
    return _FINISH.get(str(reason), "abort")


def _verification(base_url: str) -> ssl.SSLContext | bool:
    """Returns what the server's certificate is checked with: read once, not for each client."""
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            'an engine behind HTTP needs the httpx package: pip install "retool-env[rollout]" '
            '(in a clone: pip install -e ".[rollout]")'
        ) from error
    return httpx.create_ssl_context(trust_env=False) if base_url.startswith("https://") else False


def _connect(
    api_key: str | None, connect_timeout_s: float, timeout_s: float, verification: ssl.SSLContext | bool
) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s, pool=None),
        limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        verify=verification,
        trust_env=False,  # no proxy from the environment between us and the server
    )
