"""Protocols: how a turn of text becomes an action, and how results become text.

``base`` has the words, one module each has the built-in protocols (``code_tags``, ``tool_calls``, ``markdown``), and
``observation`` turns results into neutral text. All of it is pure: no I/O but the built-in templates, no clock.
"""

from retool_env.protocol.base import (
    Action,
    Answer,
    Ended,
    EndReason,
    Feedback,
    Finish,
    Limits,
    Message,
    Observation,
    Protocol,
    RunCode,
)
from retool_env.protocol.registry import get_protocol, protocol_names, register_protocol

__all__ = [
    "Action",
    "Answer",
    "EndReason",
    "Ended",
    "Feedback",
    "Finish",
    "Limits",
    "Message",
    "Observation",
    "Protocol",
    "RunCode",
    "get_protocol",
    "protocol_names",
    "register_protocol",
]
