"""Bytes that a hostile child may send, scripts that have a real program send them, and what must come of them."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from retool_env.sandbox import ExecutionResult, ExecutionStatus, wire

from .conftest import claim, exit_code_of

Step = tuple[str, object]


def fixed(examples: int) -> settings:
    """The profile of all tests here: the same examples in every run, no clock, no search after a failure."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors],
    )


NAMES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"TimeoutError", b"SIGKILL", b"\xff\xfe", b"A\x1b[31mB", b"a\nok", b"\xe2\x80\xaeX", b"x" * 256]),
)
CLAIMS = st.builds(claim, st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([0, 1, 256, -256]), NAMES)
FORGED = st.sampled_from(
    [
        wire.READY,
        wire.WARM,
        wire.CLAIM,
        wire.CLAIM + bytes(wire.CLAIM_HEAD.size - 2),
        wire.SPAWN,
        wire.QUIT,
        wire.FAILED + b"no",
        wire.LEARNER,
        wire.CHILD_HEAD.pack(wire.CHILD, 1),
        wire.EXITED_HEAD.pack(wire.EXITED, 1, 0, 0.0),
        wire.RUN_HEAD.pack(*([1] * len(wire.RUN_HEAD.unpack(bytes(wire.RUN_HEAD.size))))),
        bytes(4096),
    ]
)
PACKETS = st.one_of(st.binary(min_size=1, max_size=400), CLAIMS, FORGED)


def is_clean(name: str) -> bool:
    """Whether an error class holds nothing but characters of an identifier."""
    return all(("_" + character).isidentifier() for character in name) and len(name) <= 256


def assert_well_formed(result: ExecutionResult) -> None:
    assert isinstance(result, ExecutionResult)
    assert isinstance(result.status, ExecutionStatus)
    assert result.status is not ExecutionStatus.UNAVAILABLE
    assert isinstance(result.stdout, str)
    assert isinstance(result.stderr, str)
    result.stdout.encode()
    result.stderr.encode()
    assert is_clean(result.error_class), result.error_class
    assert result.exit_code is None or (type(result.exit_code) is int and 0 <= result.exit_code <= 255)
    assert isinstance(result.truncated, bool)
    for seconds in (result.wall_s, result.cpu_s):
        assert isinstance(seconds, float)
        assert math.isfinite(seconds)
        assert seconds >= 0


def verdict_of_claim(packet: bytes) -> tuple[str, int | None]:
    """What the host must say about a program that ended with this message: status and exit code."""
    if len(packet) < wire.CLAIM_HEAD.size or packet[:1] != wire.CLAIM:
        return "error", None
    code = exit_code_of(packet) & 0xFF
    return ("error" if code else "ok"), code


PLAYER = """
import os, socket
control = socket.socket(fileno=3)
for what, value in {script!r}:
    try:
        if what == "say":
            os.write(*value)
        elif what == "send":
            control.send(value)
        elif what == "flood":
            for _ in range(value[0]):
                control.send(value[1])
        elif what == "pass":
            socket.send_fds(control, [value[1]], [0, 1, 2, 3][: value[0]])
        elif what == "shutdown":
            control.shutdown(value)
        elif what == "close":
            control.close()
        elif what == "take":
            control.settimeout(0)
            control.recv(value)
        elif what == "end":
            control.detach()
            exec(value)
    except OSError:
        pass
control.detach()
"""
"""A program that plays a script, going on after whatever fails."""

ENDINGS = (
    "raise ValueError",
    "import os; os._exit(7)",
    "import sys; sys.exit(5)",
    "import ctypes; ctypes.string_at(8)",
)
STEPS = st.one_of(
    st.tuples(st.just("say"), st.tuples(st.sampled_from([1, 2]), st.sampled_from([b"one\n", b"two ", claim(0)]))),
    st.tuples(st.just("send"), PACKETS),
    st.tuples(st.just("send"), st.just(b"")),
    st.tuples(st.just("send"), st.integers(5_000, 150_000).map(lambda size: claim(0) + bytes(size))),
    st.tuples(st.just("flood"), st.tuples(st.integers(2, 3000), PACKETS | st.just(b""))),
    st.tuples(st.just("pass"), st.tuples(st.integers(1, 4), PACKETS)),
    st.tuples(st.just("shutdown"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("take"), st.integers(1, 100)),
    st.tuples(st.just("close"), st.none()),
    st.tuples(st.just("end"), st.sampled_from(ENDINGS)),
)
SCRIPTS = st.lists(STEPS, min_size=1, max_size=8)


def said_before_the_claim(script: list[Step]) -> tuple[bytes, bytes, bytes | None, bool]:
    """Reads a script as the host must: output that cannot be lost, the message that ends it, and whether that is sure.

    It is not sure where the kernel may refuse the message, or where an empty packet may look like the end of all. After
    a flood of empty packets nothing is: whoever sends many is not listened to for ever.
    """
    out, err, sure, silent = b"", b"", True, False
    for what, value in script:
        if what == "say":
            fd, data = value
            out, err = (out + data, err) if fd == 1 else (out, err + data)
        elif what == "end":
            return out, err, None, sure
        elif what in ("shutdown", "close"):
            silent = silent or what == "close" or value in (1, 2)
        elif what in ("send", "flood", "pass") and not silent:
            packet = value if what == "send" else value[1]
            if not packet and what == "flood":
                return out, err, None, False
            if not packet:
                sure = False
                continue
            sure = sure and what != "pass" and len(packet) < 5000
            return out, err, packet, sure
    return out, err, None, sure
