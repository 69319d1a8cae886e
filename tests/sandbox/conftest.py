"""What sandbox tests share: the world outside that attacks aim at, and a look at what the sandbox holds."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from retool_env.sandbox import ExecutionResult, Sandbox, wire
from retool_env.sandbox.contained import Child
from retool_env.sandbox.execution import Job, Outcome
from retool_env.sandbox.launch import ZygoteProcess
from retool_env.sandbox.nursery import Nursery

pytest.register_assert_rewrite("tests.sandbox.fuzzing")


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
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


def nurseries(sandbox: Sandbox) -> list[Nursery]:
    """Returns the nurseries of a sandbox, one for each zygote."""
    host = sandbox._host
    assert host is not None
    return host.nurseries


def zygotes_of(sandbox: Sandbox) -> list[ZygoteProcess]:
    """Returns the running zygotes of a sandbox."""
    return [nursery.zygote for nursery in nurseries(sandbox) if nursery.zygote is not None]


def is_at_rest(sandbox: Sandbox, sessions: int = 0) -> bool:
    """Whether no program runs, no child is on its way, and every ended child has been forgotten.

    Args:
        sandbox: The sandbox.
        sessions: Sessions that are open and have been called.
    """
    host = sandbox._host
    assert host is not None
    kept = sum(len(nursery.children) - len(nursery.idle) for nursery in nurseries(sandbox))
    coming = any(nursery.starting or nursery.requested for nursery in nurseries(sandbox))
    return not host.scheduler.busy and not coming and kept == sessions


def assert_at_rest(sandbox: Sandbox) -> None:
    """Nothing runs but the zygotes and children that wait for a program, each with its own four descriptors only."""
    wait_until(lambda: is_at_rest(sandbox), "all programs ended and were forgotten")
    for nursery in nurseries(sandbox):
        # Those beside the first one start in the background.
        wait_until(lambda nursery=nursery: nursery.zygote is not None, "the zygote is there")
        wait_until(
            lambda nursery=nursery: (
                sorted(children_of(nursery.zygote.pid))
                == sorted(child.pid for child in list(nursery.children.values()))
            ),
            "the zygote has exactly the children that the host knows",
        )


def own_descriptors(sandbox: Sandbox, sessions: int = 0) -> int:
    """Counts this process's descriptors without those of children; -1 while the sandbox is busy."""
    if not is_at_rest(sandbox, sessions):
        return -1
    return len(os.listdir("/proc/self/fd")) - 4 * sum(len(nursery.children) for nursery in nurseries(sandbox))


def settled(count: Callable[[], int], looks: int = 20) -> int:
    """Returns a count once it has been the same, and not -1, for so many looks."""
    last, same = -1, 0

    def is_settled() -> bool:
        nonlocal last, same
        now = count()
        same = same + 1 if now == last != -1 else 0
        last = now
        return same >= looks

    wait_until(is_settled, "a count comes to rest")
    return last


def descendants_of(pid: int) -> list[int]:
    """Lists all processes below ``pid``."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, look = [], [pid]
    while look:
        below = parents.get(look.pop(), [])
        found += below
        look += below
    return found


def slots_of(sandbox: Sandbox) -> int:
    """Returns how many children the zygotes may have at the same time: as many user ids and cgroups are there."""
    return sum(nursery.plan.slots for nursery in nurseries(sandbox))


def has_something_unread(child: Child) -> bool:
    """Whether a child has not read what the host sent it last."""
    return struct.unpack("i", fcntl.ioctl(child.control, termios.TIOCOUTQ, bytes(4)))[0] > 0


def n_begun(sandbox: Sandbox) -> int:
    """Counts the submitted programs that their children have read: they are lost with their zygote."""
    host = sandbox._host
    assert host is not None
    return sum(not has_something_unread(job.child) for job in host.running.jobs() if job.child is not None)


def memory_cgroups_of(sandbox: Sandbox) -> int:
    """Counts the memory cgroups that were made for programs."""
    folders = [zygote.memory.folder for zygote in zygotes_of(sandbox) if zygote.memory is not None]
    return sum(entry.is_dir() for folder in folders for entry in os.scandir(folder))


def private_bytes(pid: int) -> int:
    """Returns the anonymous memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no figure for process {pid}")


def zygote_socket(zygote: ZygoteProcess) -> socket.socket:
    """Returns a zygote's own end of its socket to the host, fetched from the zygote (which takes root)."""
    folder = f"/proc/{zygote.pid}/fd"
    (number,) = (int(fd) for fd in os.listdir(folder) if os.readlink(f"{folder}/{fd}").startswith("socket:"))
    fd = ctypes.CDLL(None, use_errno=True).syscall(438, zygote.pidfd, number, 0)  # pidfd_getfd
    if fd < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=fd)


def claim(code: int, name: bytes = b"", call: int = 0) -> bytes:
    """Returns the message by which a child claims to have ended."""
    return wire.CLAIM_HEAD.pack(wire.CLAIM, call, code) + name


def exit_code_of(packet: bytes) -> int:
    """Returns the exit code in a child's claim."""
    return wire.CLAIM_HEAD.unpack_from(packet)[-1]


def output_of(packet: bytes) -> tuple[bytes, bytes]:
    """Returns the output that a child's claim brings along: what was still unwritten at its end."""
    rest = packet[wire.CLAIM_HEAD.size :].partition(b"\0")[2]
    if packet[:1] != wire.CLAIM or len(rest) < 4:
        return b"", b""
    size = int.from_bytes(rest[:4], "big")
    return rest[4 : 4 + size], rest[4 + size :]


class Puppet:
    """A job whose child's side is ours to play, over the same kinds of socket and pipes.

    Attributes:
        job: The job, as the host holds it.
        child: Its child, as the host holds it.
        control: The child's end of its socket.
        out: The child's standard output.
        err: The child's standard error.
    """

    def __init__(self, max_output: int = 1 << 20, begun: bool = True, call: int = 0):
        """Begins the job, as the given call of a session (0: the one program of a fresh interpreter)."""
        here, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, self.out = os.pipe()
        err, self.err = os.pipe()
        self.child = Child(1, os.getpid(), here, out, err, -1)
        self.child.mark()
        self.job = Job(b"1", 60.0, True, 0, max_output)
        if begun:
            self.job.begin(self.child)
        self.job.call = call

    def hear(self) -> Outcome | None:
        """Has the host's side read all that there is, as its thread does when descriptors are readable."""
        for fd in (self.child.out, self.child.err):
            if not self.job.over_cap:
                self.job.read(fd)
        poll = select.poll()
        poll.register(self.child.control, select.POLLIN)
        while not self.job.silent and poll.poll(0):
            outcome = self.job.hear()
            if outcome is not None:
                return outcome
        return None

    def result(self, outcome: Outcome) -> ExecutionResult:
        """Returns an outcome as the caller gets it."""
        return outcome.result(self.job)

    def close(self) -> None:
        self.control.close()
        os.close(self.out)
        os.close(self.err)
        self.child.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the long soak out unless it is asked for by its marker."""
    if "soak" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


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
