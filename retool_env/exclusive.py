"""``Exclusive``: an environment is for one caller at a time, and for nobody once it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError


class Exclusive:
    """Gives a class ``_exclusive``. A copy or an unpickled one has no call under way."""

    _closed = False
    _busy = False

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        """Refuses a closed environment, and a call while another one is under way.

        Args:
            name: The call, for messages.
        """
        if self._closed:
            raise ClosedEnvironmentError(f"{name}: the environment was closed; make a new one")
        if self._busy:
            raise AlreadyPendingCallError(
                f"{name}: another call on this environment is not finished; use one environment for each episode", name
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_busy": False}
