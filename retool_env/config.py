"""``EpisodeConfig``: the rules of an attempt."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from retool_env.errors import ConfigurationError
from retool_env.grading.presets import Preset
from retool_env.grading.symbolic import LIMIT_S
from retool_env.protocol import get_protocol
from retool_env.protocol.base import InterpreterMode, Limits
from retool_env.protocol.prompts import code_description
from retool_env.reward import RewardFacts, get_reward_table, reward_name
from retool_env.tools import Tool, ToolRegistry


class EpisodeOptions(TypedDict, total=False):
    """The fields of ``EpisodeConfig`` that an environment takes as options; a type for type checkers."""

    protocol: str
    reward: str | Callable[[RewardFacts], Any]
    max_turns: int
    max_tool_calls: int
    max_action_chars: int
    max_observation_chars: int
    on_no_action: Literal["end", "feedback"]
    max_no_action: int
    require_box: bool
    grader: Preset
    grade_limit_s: float
    on_grade_timeout: Literal["wrong", "fault"]
    prompt_template: str | os.PathLike[str] | None
    interpreter: InterpreterMode
    tools: Sequence[Tool]
    special_tokens: Sequence[str]


class EpisodeConfig(BaseModel):
    r"""The rules of an attempt. Frozen.

    A value that cannot work is a ``ConfigurationError`` that names the option, the value and the mend.

    Attributes:
        protocol: Name of the protocol: how a turn of text is read and how results are shown.
        reward: Name of a reward table, or a callable from ``RewardFacts`` to a number.
        max_turns: Turns of text. In the last one only an answer counts: nothing would be left to read a result.
        max_tool_calls: Tool calls that may run, of all tools together.
        max_action_chars: Longest turn; what is longer is cut there and counts as cut by length. The default is twice
            the usual four characters a token over the paper's 16384 tokens a response: only a runaway turn meets it.
        max_observation_chars: Characters shown of each result, without the protocol's wrapper: all of it, or its head,
            a note of how much is missing, and its tail. By default 1024: digits cost up to a token a character, so 16
            results then fit the paper's 16384 tokens. (Its own evaluation keeps 400.)
        on_no_action: What a turn with neither code nor answer does: ``"end"`` the attempt, or give ``"feedback"``.
        max_no_action: How many times such feedback is given; the next such turn ends the attempt.
        require_box: An answer that is not in a ``\boxed{}`` is wrong by its format.
        grader: How answers are compared: the preset ``"strict"`` (as verl's math_dapo), ``"default"`` or ``"lenient"``
            of ``retool_env.grading``. It does not change what the protocol takes for an answer.
        grade_limit_s: Seconds that comparing one answer may take; starting the grader's processes is not counted.
        on_grade_timeout: What an answer does that cannot be compared within the grader's limits of time and memory: it
            is ``"wrong"``, and counted apart; or the attempt ends as a ``"fault"``, which pays nothing and is to be
            masked out. Nearly all such answers are nonsense, and a policy that is spared for them may learn to write
            them.
        prompt_template: A template in place of the protocol's own: its text, or a ``Path`` to a UTF-8 file that is
            read once. The fields it can hold are those of ``Protocol.messages``.
        interpreter: ``"fresh"`` gives every block of code an interpreter of its own, as in the paper. With
            ``"session"`` the blocks of an attempt share one: what one defines, the next can use.
        tools: Tools of the user's beside ``code_interpreter``.
        timeout_s: Seconds a block may run, as stated to the policy. The environment sets it from its sandbox.
        memory_mb: MiB a block may use (in a session, all blocks together), as stated to the policy. The environment
            sets it from its sandbox.
        special_tokens: The tokenizer's added-token strings (``<|im_end|>``, ...), neutralised in observations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    protocol: str = "code_tags"
    reward: str | Callable[[RewardFacts], Any] = "tool_aware"
    max_turns: int = Field(default=16, ge=1)
    max_tool_calls: int = Field(default=16, ge=0)
    max_action_chars: int = Field(default=131_072, ge=1)
    max_observation_chars: int = Field(default=1024, ge=100)
    on_no_action: Literal["end", "feedback"] = "end"
    max_no_action: int = Field(default=2, ge=1)
    require_box: bool = True
    grader: Preset = "default"
    grade_limit_s: float = Field(default=LIMIT_S, gt=0, allow_inf_nan=False)
    on_grade_timeout: Literal["wrong", "fault"] = "wrong"
    prompt_template: str | None = None
    interpreter: InterpreterMode = "fresh"
    tools: tuple[Tool, ...] = ()
    timeout_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    memory_mb: int = Field(default=512, ge=1)
    special_tokens: tuple[str, ...] = ()

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **options):
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise ConfigurationError(explain(error)) from None

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, name: str) -> str:
        get_protocol(name)
        return name

    @field_validator("reward")
    @classmethod
    def _known_reward(cls, reward: str | Callable[[RewardFacts], Any]) -> str | Callable[[RewardFacts], Any]:
        get_reward_table(reward)
        return reward

    @field_validator("prompt_template", mode="before")
    @classmethod
    def _read_template(cls, template: object) -> object:
        if not isinstance(template, os.PathLike):
            return template
        try:
            return Path(template).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ValueError(f"the template cannot be read: {error}") from error

    @field_validator("special_tokens")
    @classmethod
    def _no_empty_token(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if "" in tokens:
            raise ValueError("an empty string cannot be a token")
        return tokens

    @model_validator(mode="after")
    def _opens(self) -> EpisodeConfig:
        """Finds at once what would else be found by the first episode: a bad template, tools that don't fit."""
        get_protocol(self.protocol).messages("?", self.registry(), self.limits, self.prompt_template)
        return self

    @property
    def limits(self) -> Limits:
        """The limits a prompt may state.

        In the last turn nothing runs; where a turn makes one call at most, fewer calls than turns can run.
        """
        possible = self.max_tool_calls
        if get_protocol(self.protocol).one_call or self.max_turns == 1:
            possible = min(possible, self.max_turns - 1)
        return Limits(
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            max_turns=self.max_turns,
            max_tool_calls=possible,
            max_observation_chars=self.max_observation_chars,
            interpreter=self.interpreter,
        )

    @property
    def reward_name(self) -> str:
        """The reward table's name, as records have it."""
        return reward_name(self.reward)

    def registry(self) -> ToolRegistry:
        """Returns the tools of an attempt; the description of ``code_interpreter`` states the limits.

        Raises:
            ConfigurationError: Two tools share a name, or a schema is not valid.
        """
        return ToolRegistry(self.tools, code_description=code_description(self.limits))


def explain(error: ValidationError, prefix: str = "") -> str:
    """Returns what a model found wrong, in one line: for each option its name, what is wanted and the value.

    Args:
        error: What the model raised.
        prefix: Put before the options' names.
    """
    lines = []
    for item in error.errors():
        option = ".".join(map(str, (prefix, *item["loc"]) if prefix else item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        # Our own messages already begin with the option's name, and show the value where that helps.
        if not option or message.startswith(f"{option}:"):
            lines.append(message)
        else:
            lines.append(f"{option}: {message} (got {item['input']!r:.200})")
    return "; ".join(lines)
