"""What a turn of text can mean (``Action``), why an attempt ends (``EndReason``), and what a protocol must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from retool_env.tools import CODE_INTERPRETER, ToolCall, ToolRegistry

Finish = Literal["stop", "length", "abort"]
"""How the engine stopped generating: by itself (end token or stop string), at a length limit, or aborted."""

Message = dict[str, Any]
"""A chat message as chat templates take it: ``role``, ``content`` and sometimes ``name`` or ``tool_calls``."""

InterpreterMode = Literal["fresh", "session"]
"""Whether each piece of code gets a fresh interpreter, or all the code of an attempt shares one."""


class EndReason(StrEnum):
    """Why an attempt ended. Strings on the wire."""

    ANSWERED = "answered"
    """The policy gave a final answer in a turn that ended by itself. The only end that can be correct."""
    NO_ACTION = "no_action"
    """A turn held neither code nor an answer, and the configuration ends the attempt then."""
    INCOMPLETE = "incomplete"
    """The turn ended by itself inside an open block or box. Some engines report a length limit as a normal stop, so
    nothing of such a turn is run or graded; counts as a truncation."""
    MAX_TURNS = "max_turns"
    """The turn budget was spent with code (or a malformed call) still pending; it was not run."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """The policy asked for more tool calls than the budget allows; the pending ones were not run."""
    MAX_LENGTH = "max_length"
    """The turn was cut by a length limit of the engine or by ``max_action_chars``."""
    ABORTED = "aborted"
    """The engine or the driver gave up on the turn. Not the policy's fault."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """The sandbox failed twice on the same code, or lost what earlier code had defined. Not the policy's fault: mask
    the attempt out or drop it."""
    GRADE_TIMEOUT = "grade_timeout"
    """The answer could not be compared within the grader's limits, and the configuration takes that for a fault."""

    @property
    def truncated(self) -> bool:
        """Whether gymnasium should see this end as a truncation (a budget ran out) and not as a termination."""
        return self not in (EndReason.ANSWERED, EndReason.NO_ACTION)


@dataclass(frozen=True, slots=True)
class RunCode:
    """The turn asks for tools to run, in order; a batch is run as a whole or not at all."""

    calls: tuple[ToolCall, ...]
    kept: str
    """How much of the text belongs to the turn; what the policy wrote past it is dropped."""
    fabricated: bool = False
    """The policy invented an observation, in the kept text or after it."""

    @property
    def codes(self) -> tuple[str, ...]:
        """The Python sources of the ``code_interpreter`` calls, in order."""
        return tuple(call.arguments["code"] for call in self.calls if call.name == CODE_INTERPRETER)


@dataclass(frozen=True, slots=True)
class Answer:
    """The turn gives a final answer."""

    text: str
    """The content of the last balanced ``\\boxed{}``, or the whole answer text where there is no box."""
    kept: str
    boxed: bool = True
    fabricated: bool = False


@dataclass(frozen=True, slots=True)
class Feedback:
    """The turn tried to call a tool and failed: the message goes back as an error result of the tool."""

    message: str
    kept: str
    fabricated: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn ends the attempt without an answer."""

    reason: EndReason
    kept: str
    fabricated: bool = False


Action = RunCode | Answer | Feedback | Ended


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees next.

    Attributes:
        text: Appended for the policy at text level (what ``ReToolEnv.step`` returns).
        messages: Appended to the conversation at chat level. Empty where the protocol continues the assistant's own
            turn (``code_tags``, ``markdown``): there the text is appended to the last assistant message.
    """

    text: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits a prompt or a tool description states: the very ones that are enforced.

    Attributes:
        timeout_s: Seconds a block of code may run.
        memory_mb: MiB it may use.
        max_turns: Turns of text. In the last one only an answer counts.
        max_tool_calls: Calls that can run within both budgets, of turns and of calls.
        max_observation_chars: Characters shown of each result, without the protocol's wrapper.
        interpreter: Whether blocks share an interpreter; ``memory_mb`` is then of all of them together.
    """

    timeout_s: float
    memory_mb: int
    max_turns: int
    max_tool_calls: int
    max_observation_chars: int
    interpreter: InterpreterMode = "fresh"


class Protocol(ABC):
    """How a turn of text becomes an action, and how results become text. Stateless; one shared instance a name."""

    name: ClassVar[str]
    stop: ClassVar[tuple[str, ...]]
    """Stop strings the engine should use for every turn; the stop string itself is part of the turn's text."""
    tags: ClassVar[tuple[str, ...]]
    """Markers of this protocol that tool output must not be able to write (they are neutralised there)."""

    one_call: ClassVar[bool] = False
    """A turn makes one call at most, so that the budget of turns bounds the calls, too."""

    @abstractmethod
    def parse(self, text: str, tools: ToolRegistry) -> Action:
        """Reads one turn of text that ended by itself. Linear in the length of the text; never raises on any text.

        Returns ``Ended`` only with ``EndReason.NO_ACTION`` or ``EndReason.INCOMPLETE``; budgets are the episode's.
        """

    @abstractmethod
    def messages(
        self, question: str, tools: ToolRegistry, limits: Limits, template: str | None = None
    ) -> list[Message]:
        """Returns the chat messages that open an episode.

        Args:
            question: The problem, inserted verbatim.
            tools: The tools whose use the prompt explains.
            limits: The enforced limits, stated where the template asks for them.
            template: A user's template in place of the built-in one, with ``{question}`` and optionally
                ``{timeout_s}``, ``{memory_mb}``, ``{max_turns}``, ``{max_tool_calls}``, ``{max_observation_chars}``
                and ``{interpreter}``, a sentence on what lasts from one piece of code to the next.

        Raises:
            ConfigurationError: The template lacks ``{question}`` or names an unknown field.
        """

    @abstractmethod
    def observe(self, outputs: Sequence[str], calls: Sequence[ToolCall]) -> Observation:
        """Wraps tool outputs, already cleaned and neutralised, one for each call (one, and no call, for feedback)."""
