"""Protocols by name."""

import subprocess
import sys

import pytest

from retool_env.errors import ConfigurationError
from retool_env.protocol import Ended, EndReason, Observation, Protocol, get_protocol, protocol_names, register_protocol


class Silent(Protocol):
    name = "test_silent"
    stop = ()
    tags = ("<x>",)

    def parse(self, text, tools):
        return Ended(EndReason.NO_ACTION, text)

    def messages(self, question, tools, limits, template=None):
        return [{"role": "user", "content": question}]

    def observe(self, outputs, calls):
        return Observation("".join(outputs))


def variant(**attributes):
    return type("Variant", (Silent,), attributes)


def test_the_built_in_ones_are_there_and_shared():
    for name in ("code_tags", "tool_calls", "markdown"):
        assert name in protocol_names()
        assert get_protocol(name).name == name
        assert get_protocol(name) is get_protocol(name)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"'nope'.*code_tags, tool_calls, markdown"):
        get_protocol("nope")
    with pytest.raises(ConfigurationError):
        get_protocol(None)


def test_a_class_or_an_instance_registers_under_its_name():
    a_class = variant(name="test_class")
    assert register_protocol(a_class) is a_class
    assert isinstance(get_protocol("test_class"), a_class)
    instance = variant(name="test_instance")()
    assert register_protocol(instance) is instance
    assert get_protocol("test_instance") is instance


def test_a_taken_name_is_refused_and_the_first_stays():
    before = get_protocol("code_tags")
    with pytest.raises(ConfigurationError, match="already one called 'code_tags'"):
        register_protocol(variant(name="code_tags"))
    assert get_protocol("code_tags") is before


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "code_tags",
        object,
        Protocol,
        variant(name=""),
        variant(name=3),
        variant(name="test_bad", stop="</x>"),
        variant(name="test_bad", tags=("",)),
        variant(name="test_bad", __init__=lambda self, needed: None),
        type("Half", (Protocol,), {"name": "test_bad", "stop": (), "tags": ()}),
    ],
)
def test_the_wrong_kind_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="protocol"):
        register_protocol(wrong)
    assert "test_bad" not in protocol_names()


def test_importing_the_protocols_stays_light():
    code = (
        "import sys, retool_env.protocol; "
        "print([name for name in ('sympy', 'torch', 'math_verify', 'jsonschema') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
