"""Programs that send any bytes on the control socket, or write any to their output, leave the host correct.

The host's reader alone, at speed, is in ``test_fuzz_jobs.py``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retool_env.errors import SandboxError
from retool_env.sandbox import Sandbox, Session, wire

from .conftest import assert_at_rest, claim, own_descriptors, settled, wait_until, zygote_socket, zygotes_of
from .fuzzing import PACKETS, PLAYER, SCRIPTS, assert_well_formed, fixed, said_before_the_claim, verdict_of_claim


@pytest.fixture(scope="module")
def victim(tier, start_sandbox) -> Iterator[Sandbox]:
    with start_sandbox(tier=tier, timeout_s=10.0, standby=1, echo=False, preload=()) as sandbox:
        sandbox.run("print(1)")
        yield sandbox


class TestPrograms:
    @fixed(120)
    @given(SCRIPTS)
    @example([("flood", (100_000, claim(0)))])
    @example([("flood", (100_000, b"")), ("say", (1, b"one\n"))])
    @example([("say", (1, b"one\n")), ("send", claim(0, b"\xff\xfe\0")), ("say", (1, b"two "))])
    @example([("send", b""), ("shutdown", 1), ("say", (2, b"two "))])
    @example([("shutdown", 0), ("say", (1, b"one\n"))])
    @example([("shutdown", 2), ("end", "raise ValueError")])
    @example([("close", None), ("end", "import os; os._exit(7)")])
    @example([("pass", (4, wire.CHILD_HEAD.pack(wire.CHILD, 1))), ("pass", (4, claim(0)))])
    @example([("send", wire.READY), ("send", wire.WARM), ("send", claim(0))])
    def test_any_messages(self, victim, script):
        before = settled(lambda: own_descriptors(victim), looks=2)
        result = victim.run(PLAYER.format(script=script))
        assert_well_formed(result)
        assert result.status not in ("timeout", "memory", "output_limit")
        out, err, message, sure = said_before_the_claim(script)
        assert result.stdout.startswith(out.decode())
        assert result.stderr.startswith(err.decode())
        if message is not None and sure:
            assert (result.status, result.exit_code) == verdict_of_claim(message)
        elif message is not None:
            assert result.status in ("ok", "error")
        assert victim.run("print(6 * 7)").stdout == "42\n"
        assert_at_rest(victim)
        wait_until(lambda: own_descriptors(victim) == before, "no descriptor is left")

    @pytest.mark.parametrize(
        "packet", [b"", b"d", b"r", b"w", b"x" * 21], ids=["empty", "short", "ready", "warm", "long"]
    )
    def test_a_flood_beside_honest_programs_costs_them_nothing(self, victim, packet):
        flood = PLAYER.format(script=[("flood", (200_000, packet))])
        floods = [victim.submit(flood, timeout_s=60) for _ in range(3)]
        honest = [victim.submit(f"print({i})") for i in range(30)]
        assert [future.result().stdout for future in honest] == [f"{i}\n" for i in range(30)]
        for future in floods:
            assert_well_formed(future.result())
        assert_at_rest(victim)

    @fixed(60)
    @given(st.binary(max_size=3000), st.binary(max_size=3000), st.integers(1, 500))
    @example(b"caf\xc3\xa9"[:4], b"\xed\xa0\x80", 1)
    @example(b"\xf0\x9f\x98\x80" * 300, b"\x00\x1b[2J\r\n\x85", 3)
    def test_any_output(self, victim, out, err, size):
        code = (
            f"import os\nfor fd, data in ((1, {out!r}), (2, {err!r})):\n"
            f"    for start in range(0, len(data), {size}): os.write(fd, data[start : start + {size}])"
        )
        result = victim.run(code)
        assert_well_formed(result)
        assert (result.status, result.exit_code, result.error_class) == ("ok", 0, "")
        assert result.stdout == out.decode("utf-8", "replace")
        assert result.stderr == err.decode("utf-8", "replace")

    @fixed(60)
    @given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300))
    @example("Error\nstatus: ok")
    @example("x\u00b2\u00bd\u2460")
    @example("\u202eevil\u200b")
    @example("\x1b[31mRed")
    @example("a" * 300)
    def test_any_name_of_an_exception(self, victim, name):
        result = victim.run(f"raise type({name!r}, (Exception,), {{}})('x')")
        assert_well_formed(result)
        assert (result.status, result.exit_code) == ("error", 1)
        assert set(result.error_class) <= set(name)
        if name.isidentifier() and len(name.encode()) <= 256:
            assert result.error_class == name

    @pytest.mark.parametrize("name", ["TimeoutError", "MemoryError", "SIGKILL", "SIGSEGV", "SessionLost", "Cancelled"])
    def test_the_hosts_words_in_a_programs_mouth(self, victim, name):
        """What the host says about a death is told from what a program says about itself by the status."""
        said = f"{name}: the session was lost; start a new session\n"
        raised = f"import sys\nsys.stderr.write({said!r})\nraise type({name!r}, (Exception,), {{}})"
        forged = PLAYER.format(script=[("say", (2, said.encode())), ("send", claim(9, name.encode()))])
        for code, exit_code in ((raised, 1), (forged, 9)):
            result = victim.run(code)
            assert (result.status, result.error_class, result.exit_code) == ("error", name, exit_code)
            assert result.stderr.startswith(said)

    @pytest.mark.parametrize("fd", [1, 2])
    def test_messages_on_the_wrong_descriptor_are_output(self, victim, fd):
        messages = [wire.READY, wire.WARM, claim(0), claim(3, b"Evil"), wire.CHILD_HEAD.pack(wire.CHILD, 7)]
        messages += [wire.EXITED_HEAD.pack(wire.EXITED, 1, 9, 0.0), wire.QUIT, wire.FAILED]
        result = victim.run(f"import os\nfor message in {messages!r}: os.write({fd}, message)\nraise KeyError")
        assert (result.status, result.error_class, result.exit_code) == ("error", "KeyError", 1)
        text = b"".join(messages).decode("utf-8", "replace")
        assert (result.stdout if fd == 1 else result.stderr).startswith(text)


@pytest.fixture(scope="class")
def honest(victim) -> Iterator[Session]:
    """A session that counts its calls."""
    with victim.session() as session:
        session.run("n = 0")
        yield session


class TestSessions:
    """The same from a process that the host goes on talking to: it may lose itself, and nobody else."""

    @fixed(60)
    @given(st.lists(SCRIPTS, min_size=1, max_size=3))
    @example([[("send", claim(0, call=2)), ("send", claim(0, call=2))]])
    @example([[("send", claim(0, call=0)), ("say", (1, b"one\n"))], [("send", claim(0, call=1))]])
    @example([[("flood", (5000, claim(0, call=1)))]])
    @example([[("flood", (5000, claim(0, call=0)))]])
    @example([[("shutdown", 0)], [("say", (1, b"one\n"))]])
    def test_any_messages(self, victim, honest, scripts):
        before = settled(lambda: own_descriptors(victim, sessions=1), looks=2)
        counted = int(honest.run("n += 1; print(n)").stdout)
        with victim.session() as session:
            for script in scripts:
                was_alive = session.alive
                result = session.run(PLAYER.format(script=script))
                assert_well_formed(result)
                if not was_alive:
                    assert (result.status, result.error_class) == ("killed", "SessionLost")
            assert_well_formed(session.run("print('last')"))
        assert honest.run("n += 1; print(n)").stdout == f"{counted + 1}\n"
        assert victim.run("print(6 * 7)").stdout == "42\n"
        wait_until(lambda: own_descriptors(victim, sessions=1) == before, "no descriptor is left")

    def test_a_thread_that_talks_on_is_not_heard_in_the_next_call(self, victim):
        """Nor can it: between calls the process is stopped, and what it sent meanwhile is thrown away."""
        code = (
            "import os, threading\ndef talk():\n    while True:\n        try: os.write(3, {packet!r})\n"
            "        except OSError: return\nthreading.Thread(target=talk, daemon=True).start()"
        )
        for packet in (claim(0, call=1), claim(9, b"Evil", call=1), b"x", b""):
            with victim.session() as session:
                first = session.run(code.format(packet=packet))
                assert_well_formed(first)
                for _ in range(5):
                    assert_well_formed(session.run("print('next')", timeout_s=5))
        assert victim.run("print(6 * 7)").stdout == "42\n"


TALKER = """
import socket, threading
control = socket.socket(fileno=3)
kept = "mine"
def talk():
    while True:
        for number, packet in {packets!r}:
            try: socket.send_fds(control, [packet], list(range(number)))
            except OSError: return
threading.Thread(target=talk, daemon=True).start()
"""
# Not FORKED: the host waits out the fork's limit before it calls that a lie.
FORK_PACKETS = st.one_of(
    PACKETS.filter(lambda packet: packet != wire.FORKED),
    st.sampled_from([b"", wire.READY, claim(0, call=1), claim(0, call=2)]),
    st.integers(0, (1 << 32) - 1).map(lambda error: wire.FORK_FAILED_HEAD.pack(wire.FORK_FAILED, error)),
)


class TestForks:
    @fixed(40)
    @given(st.lists(st.tuples(st.integers(0, 2), FORK_PACKETS), min_size=1, max_size=4))
    @example([(2, wire.READY)])
    @example([(0, wire.FORK_FAILED)])
    @example([(0, b"")])
    def test_a_trunk_that_talks_while_it_is_forked(self, victim, honest, packets):
        """There is a branch, or an error that says why not; whatever else was promised holds."""
        before = settled(lambda: own_descriptors(victim, sessions=1), looks=2)
        counted = int(honest.run("n += 1; print(n)").stdout)
        with victim.session(forkable=True) as trunk:
            assert_well_formed(trunk.run(TALKER.format(packets=packets)))
            with contextlib.suppress(SandboxError), trunk.fork() as branch:
                assert_well_formed(branch.run("print(kept)"))
            assert_well_formed(trunk.run("print(kept)", timeout_s=1))
        assert honest.run("n += 1; print(n)").stdout == f"{counted + 1}\n"
        assert victim.run("print(6 * 7)").stdout == "42\n"
        wait_until(lambda: own_descriptors(victim, sessions=1) == before, "no descriptor is left")


EXITED_OF_NOBODY = st.builds(
    lambda pid, status, cpu_s: wire.EXITED_HEAD.pack(wire.EXITED, pid, status, cpu_s),
    st.integers(1 << 24, (1 << 32) - 1),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.floats(),
)
KINDS = {value for value in vars(wire).values() if isinstance(value, bytes)}
UNKNOWN = st.binary(min_size=1, max_size=200).filter(lambda data: data[:1] not in KINDS)
BROKEN = {
    "nothing": b"",
    "exited-short": wire.EXITED,
    "exited-long": wire.EXITED + bytes(40),
    "child-short": wire.CHILD + b"\0",
    "child-long": wire.CHILD + bytes(40),
    "child-without-descriptors": wire.CHILD_HEAD.pack(wire.CHILD, 5),
}


@pytest.fixture(scope="module")
def ends(victim) -> Iterator[list[socket.socket]]:
    """The zygotes' ends of their sockets to the host."""
    assert_at_rest(victim)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(zygote_socket(zygote)) for zygote in zygotes_of(victim)]


class TestZygotes:
    """The zygote runs no user code, so this is about our own mistakes: they may cost a zygote, never the sandbox."""

    @fixed(150)
    @given(st.lists(EXITED_OF_NOBODY | UNKNOWN, min_size=1, max_size=20))
    def test_senseless_messages_are_passed_over(self, victim, ends, messages):
        before = [zygote.pid for zygote in zygotes_of(victim)]
        for message in messages:
            for end in ends:
                end.send(message)
        assert victim.run("print(6 * 7)").stdout == "42\n"
        assert [zygote.pid for zygote in zygotes_of(victim)] == before

    @pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN)
    def test_broken_messages_cost_at_most_the_zygote(self, tier, make_sandbox, message):
        sandbox = make_sandbox(tier=tier, preload=())
        sandbox.run("print(1)")
        before = settled(lambda: own_descriptors(sandbox))
        ends = [zygote_socket(zygote) for zygote in zygotes_of(sandbox)]
        running = sandbox.submit("import time\ntime.sleep(0.2)\nprint('whole')")
        for end in ends:
            end.send(message)
            end.close()
        assert running.result(30).status in ("ok", "unavailable")
        assert sandbox.run("print(6 * 7)").stdout == "42\n"
        wait_until(lambda: own_descriptors(sandbox) <= before, "no descriptor is left")
