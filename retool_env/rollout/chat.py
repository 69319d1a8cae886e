"""``ChatPolicy``: a model behind any OpenAI-compatible chat server (vLLM, SGLang, llama.cpp, hosted ones)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from retool_env.errors import ConfigurationError, MissingDependencyError, PolicyError
from retool_env.protocol.base import Finish, Message
from retool_env.rollout.policy import Conversation, Exchange, Reply

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_CONTEXT_FULL: Final = re.compile(r"context.{0,3}length|maximum context|context window|max_model_len", re.IGNORECASE)
_REFUSAL_STATUSES: Final = (400, 422)
"""What servers answer to a request they understand but do not support."""
_FINISH: Final[Mapping[str, Finish]] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class _Way:
    """How a request is put: the parts that servers differ in."""

    continues: bool
    """The assistant's open turn is sent as the last message, to be continued."""
    tool_choice: str | None


class ChatPolicy:
    """A policy that asks a chat server for every turn. One object serves many attempts at once; close it at the end.

    Protocols that continue the assistant's own turn (``code_tags``, ``markdown``) send that turn as the last message
    with ``continue_final_message``, as vLLM and SGLang take it. A server that refuses this is given the output as a
    user message instead, from then on. A server that ignores the fields and opens a new turn cannot be told from one
    that obeys: pass ``continue_turn=False`` for it.

    For ``tool_calls`` the tools go along; calls that the server parses are written back as the text they came from. A
    server without a tool parser (vLLM without ``--enable-auto-tool-choice``) is asked not to parse them.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 4096,
        timeout_s: float = 600.0,
        max_retries: int = 3,
        continue_turn: bool = True,
        extra_body: Mapping[str, Any] | None = None,
    ):
        """Makes the policy; nothing is sent yet.

        Args:
            base_url: The server's address with its version, such as ``http://127.0.0.1:8000/v1``.
            model: The model's name there.
            api_key: The key, if the server wants one. No environment variable is read for it.
            temperature: Sampling temperature.
            max_tokens: Most tokens of one turn.
            timeout_s: Seconds one request may take.
            max_retries: How often a request is sent again after a connection error, a time-out, or status 408, 409,
                429 or 5xx, with growing pauses (by the openai client).
            continue_turn: Try to continue the assistant's turn.
            extra_body: Further fields of every request, such as ``{"top_p": 0.7}``.

        Raises:
            ConfigurationError: An address without ``http``, an empty model name, or a number out of range.
            MissingDependencyError: The openai package is not installed.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"base_url: must start with http:// or https://, got {base_url!r}")
        if not model:
            raise ConfigurationError("model: must be the name of a model on the server, got an empty one")
        if max_tokens < 1 or temperature < 0 or timeout_s <= 0 or max_retries < 0:
            raise ConfigurationError(
                "max_tokens must be at least 1, temperature and max_retries at least 0, timeout_s above 0, got "
                f"{max_tokens}, {temperature}, {max_retries}, {timeout_s}"
            )
        self.base_url = base_url
        self.model = model
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._extra_body = dict(extra_body or {})
        self._continues = continue_turn
        self._tool_choice = "auto"
        self._client = _connect(base_url, api_key, timeout_s, max_retries)

    def describe(self) -> str:
        """Returns one line that names the model and the server."""
        return f"{self.model} at {self.base_url} (temperature {self.temperature:g})"

    async def __aenter__(self) -> ChatPolicy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def act(self, conversation: Conversation) -> Reply:
        """Asks the server for the next turn. A full context is a turn cut by length, not an error.

        Raises:
            PolicyError: The server cannot be reached, takes too long, or refuses the request.
        """
        way = _Way(
            continues=self._continues and _is_continued(conversation),
            tool_choice=self._tool_choice if conversation.tools else None,
        )
        refusal: PolicyError | None = None
        for attempt in (way, *_other_ways(way)):
            try:
                reply = await self._ask(conversation, attempt)
            except _RefusedError as error:
                refusal = refusal or error.told
                continue
            # Remembered only once it has worked: what was wrong may have been something else.
            if attempt.continues != way.continues:
                self._continues = False
            if attempt.tool_choice != way.tool_choice and attempt.tool_choice is not None:
                self._tool_choice = attempt.tool_choice
            return reply
        assert refusal is not None
        raise refusal

    async def _ask(self, conversation: Conversation, way: _Way) -> Reply:
        from openai import APIConnectionError, APIStatusError, OpenAIError

        extra = dict(self._extra_body)
        if way.continues:
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
        request: dict[str, Any] = {
            "model": self.model,
            "messages": _messages(conversation, way.continues),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        if conversation.stop:
            request["stop"] = list(conversation.stop)
        if way.tool_choice is not None:
            request |= {"tools": list(conversation.tools), "tool_choice": way.tool_choice}
        try:
            response = await self._client.chat.completions.create(**request, extra_body=extra)
        except APIStatusError as error:
            if error.status_code in _REFUSAL_STATUSES and _CONTEXT_FULL.search(_reason(error)):
                return Reply("", finish="length")
            told = self._told(f"status {error.status_code}: {_reason(error)}")
            if error.status_code in _REFUSAL_STATUSES:
                raise _RefusedError(told) from error
            raise told from error
        except APIConnectionError as error:  # time-outs too
            cause = f": {error.__cause__}" if error.__cause__ is not None else ""
            raise self._told(f"no answer ({error}{cause})") from error
        except OpenAIError as error:
            raise self._told(str(error)) from error
        choices = getattr(response, "choices", None)
        if not choices:
            raise self._told("an answer without choices; is this the address of a chat completions API?")
        return _read_choice(choices[0], conversation.stop)

    def _told(self, what: str) -> PolicyError:
        return PolicyError(f"chat server {self.base_url}, model {self.model!r}: {what}")


class _RefusedError(Exception):
    """The server understood the request and does not support a part of it."""

    def __init__(self, told: PolicyError):
        super().__init__(str(told))
        self.told = told


def _connect(base_url: str, api_key: str | None, timeout_s: float, max_retries: int) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise MissingDependencyError(
            'a chat server needs the openai package: pip install "retool-env[rollout]" '
            '(in a clone: pip install -e ".[rollout]")'
        ) from error
    # A key is always given, or the client would take one from the environment and send it to this server.
    return AsyncOpenAI(base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=max_retries)


def _other_ways(way: _Way) -> list[_Way]:
    ways = []
    if way.tool_choice == "auto":
        ways.append(_Way(way.continues, "none"))
    if way.continues:
        ways.append(_Way(False, way.tool_choice))
    return ways


def _reason(error: APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"])[:500]
    return error.message[:500]


def _is_continued(conversation: Conversation) -> bool:
    """Whether the assistant's turn is still open: there was one, and its observation is no message of its own."""
    return bool(conversation.exchanges) and not conversation.exchanges[-1].observation.messages


def _messages(conversation: Conversation, continues: bool) -> list[Message]:
    messages = list(conversation.messages)
    open_turn = ""
    for exchange in conversation.exchanges:
        if exchange.observation.messages:
            messages += _tool_exchange(exchange)
        elif continues:
            open_turn += exchange.reply.text + exchange.observation.text
        else:
            messages.append({"role": "assistant", "content": exchange.reply.text})
            messages.append({"role": "user", "content": exchange.observation.text.strip()})
    if open_turn:
        messages.append({"role": "assistant", "content": open_turn})
    return messages


def _tool_exchange(exchange: Exchange) -> list[Message]:
    """A turn with its outputs as messages; outputs carry the ids of the calls where the server gave such."""
    reply = exchange.reply
    shown = list(exchange.observation.messages)
    if reply.message is None:
        return [{"role": "assistant", "content": reply.text}, *shown]
    ids = [call["id"] for call in reply.message["tool_calls"]]
    # Every call must have its output: where one message answers for all (feedback), it is repeated.
    shown += [shown[-1]] * (len(ids) - len(shown))
    return [reply.message, *({**message, "tool_call_id": id} for message, id in zip(shown, ids, strict=False))]


def _read_choice(choice: Any, stop: Sequence[str]) -> Reply:
    finish = _FINISH.get(choice.finish_reason or "", "abort")
    text = choice.message.content or ""
    calls = choice.message.tool_calls or []
    if calls:
        message = {
            "role": "assistant",
            "content": text,
            "tool_calls": [call.model_dump(include={"id", "type", "function"}) for call in calls],
        }
        written = "\n".join(_hermes(call.function.name, call.function.arguments) for call in calls)
        return Reply(f"{text}\n{written}" if text else written, finish, message=message)
    if finish != "stop":
        return Reply(text, finish)
    ended_by = _stop_string(choice, text, stop)
    if ended_by is not None and not text.endswith(ended_by):
        text += ended_by  # servers cut the stop string off; it belongs to the turn
    return Reply(text, finish, stop_reason=ended_by)


def _hermes(name: str, arguments: str) -> str:
    """A call as the text the model wrote, before the server parsed it."""
    try:
        json.loads(arguments)
    except ValueError:
        arguments = json.dumps(arguments)
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _stop_string(choice: Any, text: str, stop: Sequence[str]) -> str | None:
    """Which stop string ended a turn.

    vLLM says so in ``stop_reason`` and SGLang in ``matched_stop``; both give None or a token's id where the model ended
    by itself. Other servers say nothing: there it is the one stop string that would close an open block, if any.
    """
    extra = choice.model_extra or {}
    for name in ("stop_reason", "matched_stop"):
        if name in extra:
            return extra[name] if extra[name] in stop else None
    ended = next((string for string in stop if text.endswith(string)), None)
    if ended is not None:
        return ended
    closing = [string for string in stop if _closes(string, text)]
    return closing[0] if len(closing) == 1 else None


def _closes(stop: str, text: str) -> bool:
    """Whether a stop string would close a block that is open at the end of the text."""
    tag = re.fullmatch(r"\s*</(\w+)>\s*", stop)
    if tag is not None:
        return text.rfind(f"<{tag[1]}>") > text.rfind(f"</{tag[1]}>")
    return stop.strip() == "```" and text.count("```") % 2 == 1
