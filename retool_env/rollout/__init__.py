"""Policies that write turns of text: the interface, a scripted one for the demo, and any OpenAI-compatible server."""

from retool_env.rollout.chat import ChatPolicy
from retool_env.rollout.policy import Conversation, Exchange, Reply, TextPolicy
from retool_env.rollout.scripted import ScriptedSolver

__all__ = ["ChatPolicy", "Conversation", "Exchange", "Reply", "ScriptedSolver", "TextPolicy"]
