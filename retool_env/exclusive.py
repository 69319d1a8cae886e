"""``Exclusive``: an environment is for one caller at a time, and for nobody once it is closed."""

from __future__ import annotations

from typing import Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError


class Exclusive:
    """Gives a class ``_exclusive``. A copy or an unpickled one has no call under way."""

    _closed = False
    _busy = False

    def _exclusive(self, name: str) -> _Call:
        """Refuses, when it is entered, a closed environment, and a call while another one is under way.

        Args:
            name: The call, for messages.
        """
        return _Call(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_busy": False}


class _Call:
    """A call on an environment, as a context: a class, because a generator's context costs several times as much."""

    __slots__ = ("_env", "_name")

    def __init__(self, env: Exclusive, name: str):
        self._env = env
        self._name = name

    def __enter__(self) -> None:
        env, name = self._env, self._name
        if env._closed:
            raise ClosedEnvironmentError(f"{name}: the environment was closed; make a new one")
        if env._busy:
            raise AlreadyPendingCallError(
                f"{name}: another call on this environment is not finished; use one environment for each episode", name
            )
        env._busy = True

    def __exit__(self, *_: object) -> None:
        self._env._busy = False
