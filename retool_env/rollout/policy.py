"""What a policy at text level sees and gives back. The same for a script and for a model behind a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from retool_env.problems import Problem
from retool_env.protocol.base import Finish, Message, Observation


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn a policy wrote.

    Attributes:
        text: The turn, the stop string it ended with included.
        finish: How generation stopped.
        stop_reason: The stop string that ended it, where the policy knows.
        message: The turn as the chat message a server gave, where the text was made from it (a server that parses tool
            calls itself): sent back in the next request in place of the text.
    """

    text: str
    finish: Finish = "stop"
    stop_reason: str | None = None
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn of the policy, as the episode kept it, and what was shown for it."""

    reply: Reply
    observation: Observation


@dataclass(slots=True)
class Conversation:
    """One attempt, as far as it has come.

    Attributes:
        problem: The problem. Models are shown ``messages`` only; a scripted policy may look at the answer.
        protocol: Name of the protocol.
        messages: The chat messages that opened the episode.
        tools: The tools, as chat templates take them.
        stop: Stop strings for every turn; they belong to the turn's text.
        attempt: Number of the attempt in its run, from 0.
        exchanges: The turns so far.
    """

    problem: Problem
    protocol: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    attempt: int = 0
    exchanges: list[Exchange] = field(default_factory=list)


class TextPolicy(Protocol):
    """Anything that can write the next turn. One object serves many attempts at once."""

    def describe(self) -> str:
        """Returns one line that says what this policy is, for reports."""
        ...

    async def act(self, conversation: Conversation) -> Reply:
        """Writes the next turn of an attempt.

        Args:
            conversation: Read only.
        """
        ...

    async def aclose(self) -> None:
        """Frees connections; the policy is not used afterwards."""
        ...
