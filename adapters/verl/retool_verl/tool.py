"""``RetoolInterpreterTool``: the sandbox as a tool for verl's own ``tool_agent`` loop.

For those who stay with that loop. It makes and releases a tool for each call, keeps what it likes of a result
(``multi_turn.max_tool_response_length``, 256 characters by default) and knows no faults, so it gives less than
``retool_verl.loop``: no sessions, no masks for what the sandbox has failed at.

    tools:
      - class_name: retool_verl.tool.RetoolInterpreterTool
        config: {type: native, timeout_s: 5, memory_mb: 512}
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pydantic import ValidationError
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from retool_env.config import EpisodeConfig, explain
from retool_env.errors import ConfigurationError, SandboxError
from retool_env.interpreter import FreshInterpreter
from retool_env.protocol import get_protocol
from retool_env.protocol.observation import render
from retool_env.sandbox import ExecutionResult, ExecutionStatus, SandboxConfig
from retool_env.shared_sandbox import shared_sandbox
from retool_env.tools import CODE_INTERPRETER, ToolResult

_log = logging.getLogger(__name__)

_CONTROL: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<|eot_id|>")
"""What output must not write beside the protocol's tags. A tool is not told its tokenizer; these are the usual ones."""


class RetoolInterpreterTool(BaseTool):
    """Runs a block of code in a fresh interpreter; the worker process has one sandbox for all calls."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None):
        """Starts nothing.

        Args:
            config: ``type: native``, which verl wants; the options of ``SandboxConfig``; and, if wanted,
                ``max_observation_chars`` and ``special_tokens``, a list of further strings that output must not write.
            tool_schema: What the policy is told of the tool; None for our own words with the limits that hold.

        Raises:
            ConfigurationError: An option is unknown or has a value that cannot work.
        """
        options = {str(key): value for key, value in config.items() if key != "type"}
        shown = {key: options.pop(key) for key in ("max_observation_chars", "special_tokens") if key in options}
        try:
            self._sandbox = SandboxConfig(**options)
        except ValidationError as error:
            raise ConfigurationError(explain(error, "tool")) from None
        limits = {"timeout_s": self._sandbox.timeout_s, "memory_mb": self._sandbox.memory_mb}
        rules = EpisodeConfig(protocol="tool_calls", **limits, **shown)
        self._limits = rules.limits
        self._markers = (*get_protocol("tool_calls").tags, *_CONTROL, *rules.special_tokens)
        schema = rules.registry().schemas()[0]
        super().__init__(config, tool_schema or OpenAIFunctionToolSchema.model_validate(schema))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Runs the code of a call.

        Returns:
            What the policy sees, no reward, and the figures of the execution. Whatever the arguments hold, this does
            not raise: verl would show the policy our words.
        """
        code = parameters.get("code") if isinstance(parameters, dict) else None
        if not isinstance(code, str):
            result: ExecutionResult | ToolResult = ToolResult(
                f'{CODE_INTERPRETER} takes {{"code": "..."}}, the source as a string', is_error=True
            )
            return ToolResponse(text=render(result, self._limits, self._markers)), 0.0, {"status": "refused"}
        try:
            interpreter = FreshInterpreter(shared_sandbox(self._sandbox))
            result = await interpreter.arun(code)
            if not result.status.ran:
                result = await interpreter.arun(code)
        except SandboxError as error:
            result = ExecutionResult(ExecutionStatus.UNAVAILABLE, stderr=str(error))
        if not result.status.ran:
            _log.warning("the sandbox was not available: %s", result.stderr.strip())
        figures = {"status": str(result.status), "wall_s": result.wall_s, "queue_s": result.queue_s}
        return ToolResponse(text=render(result, self._limits, self._markers)), 0.0, figures
