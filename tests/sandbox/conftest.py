"""What sandbox tests share: the world outside that attacks aim at, and a look at what the sandbox holds."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from retool_env.sandbox import Sandbox


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 10.0) -> None:
    """Polls a condition of the outside world; fails when it does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {limit_s} s: {what}")
        select.select([], [], [], 0.005)


def children_of(pid: int) -> list[int]:
    """Lists the processes whose parent is ``pid``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry))
    return found


def state_of(pid: int) -> str:
    """Returns the state letter of a process ("S", "T", "Z", ...), or "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits for init to reap it has."""
    return state_of(pid) in ("", "Z")


def assert_at_rest(sandbox: Sandbox) -> None:
    """Nothing runs but the zygote and children that wait for a program, each with its own four descriptors only."""
    host = sandbox._host
    assert host is not None
    wait_until(lambda: not host._busy and not host._nursery.requested, "all programs ended")
    wait_until(lambda: len(host._nursery.children) == len(host._nursery.idle), "ended children are forgotten")
    assert host._nursery.zygote is not None
    wait_until(
        lambda: (
            sorted(children_of(host._nursery.zygote.pid))
            == sorted(child.pid for child in list(host._nursery.children.values()))
        ),
        "the zygote has exactly the children that the host knows",
    )


@dataclass
class Outside:
    """What an attack may aim at.

    Attributes:
        values: Placeholders of the attack corpus and what to put in their place.
        victim: A process that must stay well.
        folder: A folder of the host that must stay as it is.
        heard: What arrived at the host's sockets (must stay empty).
    """

    values: dict[str, str]
    victim: subprocess.Popen[bytes]
    folder: Path
    sockets: list[socket.socket]

    def heard(self) -> list[bytes]:
        ready, _, _ = select.select(self.sockets, [], [], 0)
        return [str(sock).encode() for sock in ready]

    def is_well(self) -> bool:
        return self.victim.poll() is None and state_of(self.victim.pid) == "S"


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    folder.chmod(0o777)
    secret = folder / "secret"
    secret.write_text("TOPSECRET\n")
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    unix.listen()
    os.chmod(folder / "socket", 0o777)
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind(str(folder / "datagram"))
    os.chmod(folder / "datagram", 0o777)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0retool-test-{os.getpid()}")
    abstract.listen()
    sockets = [tcp, udp, unix, datagram, abstract]
    waits = "import sys; sys.stdin.read()"
    victim = subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, env={**os.environ, "RETOOL_TEST_SECRET": "SUPERSECRET"}
    )
    wait_until(lambda: state_of(victim.pid) == "S", "the victim waits")
    import numpy

    values = {
        "HOST": str(os.getpid()),
        "VICTIM": str(victim.pid),
        "TCP": str(tcp.getsockname()[1]),
        "UDP": str(udp.getsockname()[1]),
        "UNIX": str(folder / "socket"),
        "DATAGRAM": str(folder / "datagram"),
        "ABSTRACT": f"\\0retool-test-{os.getpid()}",
        "SECRET": str(secret),
        "HOSTDIR": str(folder),
        "SITE": str(Path(numpy.__file__).parents[1]),
        "PY": os.path.realpath(sys.executable),
    }
    os.environ["RETOOL_TEST_SECRET"] = "SUPERSECRET"
    yield Outside(values, victim, folder, sockets)
    del os.environ["RETOOL_TEST_SECRET"]
    victim.stdin.close()
    victim.wait()
    for sock in sockets:
        sock.close()
