"""Engines that generate turns, one small class each behind the ``Engine`` protocol.

| engine | where the model runs | token ids |
|---|---|---|
| ``VllmEngine`` | a vLLM server | yes |
| ``AsyncVllmEngine`` | in this process: vLLM's ``AsyncLLM`` | yes |
| ``SglangEngine`` | an SGLang server | yes |
| ``TransformersEngine`` | in this process | yes |
| ``ChatEngine`` | any OpenAI-compatible chat server | no: for evaluation only |
| ``ScriptedEngine`` | nowhere: a script, for tests and benchmarks | yes |
"""

from retool_env.rollout.engines.asyncllm import AsyncVllmEngine
from retool_env.rollout.engines.base import Engine, GenerateParams, Generation, TurnLostError
from retool_env.rollout.engines.chat import ChatEngine
from retool_env.rollout.engines.local import TransformersEngine
from retool_env.rollout.engines.scripted import ScriptedEngine
from retool_env.rollout.engines.sglang import SglangEngine
from retool_env.rollout.engines.vllm import VllmEngine

__all__ = [
    "AsyncVllmEngine",
    "ChatEngine",
    "Engine",
    "GenerateParams",
    "Generation",
    "ScriptedEngine",
    "SglangEngine",
    "TransformersEngine",
    "TurnLostError",
    "VllmEngine",
]
