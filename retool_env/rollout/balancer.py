"""``Balancer``: several servers as one engine. Turns of one attempt stay together; those of a dead server move on.

    balancer = Balancer([VllmEngine(url, model, max_retries=0) for url in urls])
    result = await attempt(problem, balancer, codec, sandbox, config)

*Where a turn goes.* To the server that had the turns before it, which holds their prefix in its cache; the first turn
of an attempt to the server with the fewest calls in flight.

*The long tail.* A turn leaves its server where that has more than twice the calls of the least loaded one, and
``move_margin`` more on top. Below that, a step of decoding takes about as long on either (it reads the weights,
however many sequences share them), and a move would cost computing the prefix again for nothing. Above it, the prefix
is soon paid for: at the end of a run, when one server happens to hold the long attempts, and for a server that comes
back empty. The noise of a balanced run stays below it.

*A server that fails* (``TurnLostError``) is left out, and the turn is generated again elsewhere, at once: a turn needs
nothing but the tokens before it, and of a lost one nothing is kept. It is asked for its health until it is back. Its
other calls move on, too, unless it says that it is well: then it was one request that failed, perhaps by its own fault,
and theirs go on. One that holds calls and answers nothing for a while is asked, too, so that calls do not wait for a
machine that is gone.
"""

from __future__ import annotations

import asyncio
import operator
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from retool_env.errors import ConfigurationError, PolicyError
from retool_env.rollout.engines.base import Engine, GenerateParams, Generation, TurnLostError

_FIRST_PAUSE_S: Final = 0.25


class _MovedError(TurnLostError):
    """The balancer ended a call, because its server is down: no sign that the turn is to blame."""


class NoServerError(PolicyError):
    """The servers' fault: all are down, and none came back in time. The message names them and what they said last."""


@dataclass(slots=True, eq=False)
class _Server:
    """One engine, and what is known of it.

    Attributes:
        engine: The engine.
        name: What messages call it.
        calls: Calls in flight, each with what ends it.
        n_held: Attempts whose turns come here.
        up: It takes calls.
        failures: Times it failed since it last generated a turn.
        answered: It generated a turn since the silent servers were last looked for.
        said: What it last failed with.
    """

    engine: Engine
    name: str
    calls: set[asyncio.Timeout] = field(default_factory=set)
    n_held: int = 0
    up: bool = True
    failures: int = 0
    answered: bool = True
    said: str = ""

    async def healthy(self) -> bool:
        """Asks the engine; one that cannot be asked (``HttpEngine.healthy``) is taken to be, and found out by use."""
        ask = getattr(self.engine, "healthy", None)
        try:
            return True if ask is None else bool(await ask())
        except Exception:  # whatever an engine raises here, its server is watched on
            return False


class Balancer:
    """An engine made of engines. For the calls of one event loop.

    Attributes:
        n_lost: Turns that were lost with their server so far.
        n_moved: Turns so far that went to another server than the attempt's turn before, for either reason.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        check_every_s: float = 5.0,
        wait_s: float = 300.0,
        move_margin: int = 8,
        max_attempts: int = 65_536,
    ):
        """Makes the balancer; nothing is sent yet.

        Args:
            engines: One for each server, of one model. Those behind HTTP best with ``max_retries=0``: another server is
                a better second try than the same one.
            check_every_s: Seconds between looks at a server that is down or silent; at one that has just failed sooner.
            wait_s: Seconds to wait for a server to come back when all are down.
            move_margin: See above. The higher, the more turns stay with their prefix.
            max_attempts: For how many attempts is remembered where their turns go. Beyond that, the one that has been
                silent for longest is forgotten, which costs its prefix. Attempts that have ended are forgotten anyway.

        Raises:
            ConfigurationError: No engine, one twice, or a number out of range.
        """
        if not engines:
            raise ConfigurationError("engines: there must be at least one")
        if len(set(map(id, engines))) < len(engines):
            raise ConfigurationError("engines: one is there twice; each server needs an engine of its own")
        if check_every_s <= 0 or wait_s < 0 or move_margin < 0 or max_attempts < 1:
            raise ConfigurationError(
                "check_every_s must be above 0, wait_s and move_margin at least 0, max_attempts at least 1, got "
                f"{check_every_s}, {wait_s}, {move_margin}, {max_attempts}"
            )
        self._servers = [
            _Server(engine, str(getattr(engine, "base_url", f"engine {number}")))
            for number, engine in enumerate(engines)
        ]
        self._check_every_s = check_every_s
        self._wait_s = wait_s
        self._margin = move_margin
        self._max_attempts = max_attempts
        self._homes: OrderedDict[str, _Server] = OrderedDict()
        self._some_up = asyncio.Event()
        self._some_up.set()
        self._watcher: asyncio.Task[None] | None = None
        self._revivers: set[asyncio.Task[None]] = set()
        self.n_lost = 0
        self.n_moved = 0

    def in_flight(self) -> dict[str, int]:
        """Returns how many calls each server has in flight, by its address; those that are down are left out."""
        return {server.name: len(server.calls) for server in self._servers if server.up}

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        """Generates a turn on one of the servers; if that fails, on another.

        Raises:
            TurnLostError: It failed as often as there are servers: perhaps it is to blame. (A call that was ended
                because another's failure showed the server to be down has not failed.)
            NoServerError: All servers are down, and none came back in time.
            PolicyError: A server refuses the request.
        """
        tried: list[_Server] = []
        while True:
            server = await self._choose(params.trajectory_id, tried)
            try:
                return await self._call(server, prompt_ids, params)
            except _MovedError:
                self.n_lost += 1
            except TurnLostError as error:
                self.n_lost += 1
                self._leave_out(server, str(error))
                tried.append(server)
                if len(tried) == len(self._servers):
                    raise

    def release(self, trajectory_id: str) -> None:
        """Forgets where an attempt's turns go, because it has ended."""
        server = self._homes.pop(trajectory_id, None)
        if server is not None:
            server.n_held -= 1

    async def aclose(self) -> None:
        """Closes the engines. Calls in flight must have ended."""
        tasks = [*self._revivers, *([] if self._watcher is None else [self._watcher])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closed = await asyncio.gather(*(server.engine.aclose() for server in self._servers), return_exceptions=True)
        for error in closed:
            if isinstance(error, BaseException):
                raise error

    async def _choose(self, trajectory_id: str, tried: Sequence[_Server]) -> _Server:
        """Returns the server for a turn, and notes it.

        Args:
            trajectory_id: Of the attempt.
            tried: Servers that failed at this turn already.

        Raises:
            NoServerError: As ``generate``.
        """
        up = self._up()
        if not up:
            await self._wait()
            up = self._up()
        fresh = ([server for server in up if server not in tried] or up) if tried else up
        least = min(fresh, key=lambda server: (len(server.calls), server.n_held))
        home = self._homes.get(trajectory_id)
        if home is None:
            self._settle(trajectory_id, least)
            return least
        if home in fresh and len(home.calls) <= 2 * len(least.calls) + self._margin:
            self._homes.move_to_end(trajectory_id)
            return home
        if home is not least:
            self.n_moved += 1
            self.release(trajectory_id)
            self._settle(trajectory_id, least)
        return least

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._up():
                    await self._some_up.wait()
        except TimeoutError:
            said = "; ".join(f"{server.name}: {server.said}" for server in self._servers)
            raise NoServerError(f"no server is up, and none came back in {self._wait_s:g} s ({said})") from None

    def _up(self) -> list[_Server]:
        return [server for server in self._servers if server.up]

    def _settle(self, trajectory_id: str, server: _Server) -> None:
        if not trajectory_id:
            return
        self._homes[trajectory_id] = server
        server.n_held += 1
        if len(self._homes) > self._max_attempts:
            self.release(next(iter(self._homes)))

    async def _call(self, server: _Server, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        call = asyncio.timeout(None)  # not for a time-out: it can be ended without a task of its own
        try:
            async with call:
                server.calls.add(call)
                try:
                    generation = await server.engine.generate(prompt_ids, params)
                finally:
                    server.calls.discard(call)
        except TimeoutError:
            if not call.expired():
                raise
            raise _MovedError(f"{server.name}: {server.said}") from None
        server.answered = True
        server.failures = 0
        return generation

    def _leave_out(self, server: _Server, why: str, *, gone: bool = False) -> None:
        """Takes a server for down, and looks after it until it is back.

        Args:
            server: The server.
            why: What it failed with.
            gone: It is known not to be well. Else it is asked.
        """
        if not server.up:
            return
        server.up = False
        server.said = why
        server.failures += 1
        if not self._up():
            self._some_up.clear()
        reviver = asyncio.create_task(self._revive(server, gone))
        self._revivers.add(reviver)
        reviver.add_done_callback(self._revivers.discard)

    async def _revive(self, server: _Server, gone: bool) -> None:
        pause_s = _FIRST_PAUSE_S * 2.0 ** min(server.failures - 1, 30)  # one that is healthy and fails is tried less
        well = not gone and await server.healthy()
        while True:
            if not well:
                for call in server.calls:  # they move on
                    if not call.expired():
                        call.reschedule(-1.0)
            await asyncio.sleep(min(pause_s, self._check_every_s))
            well = await server.healthy()
            if well:
                break
            pause_s *= 2
        server.up = server.answered = True
        self._some_up.set()

    async def _watch(self) -> None:
        """Looks, as long as there are calls, for servers that hold some and answer none, and asks for their health."""
        while any(server.calls for server in self._servers):
            silent = [server for server in self._servers if server.up and server.calls and not server.answered]
            well = await asyncio.gather(*(server.healthy() for server in silent))
            for server in compress(silent, map(operator.not_, well)):
                self._leave_out(server, "it stopped answering, and is not healthy", gone=True)
            for server in self._servers:
                server.answered = not server.calls
            await asyncio.sleep(self._check_every_s)
