"""The messages between host, zygote and child. Standard library only: this file is also shipped into the sandbox.

All three talk over SOCK_SEQPACKET sockets, so a message is never split or joined. Bodies that may be large (the
program, the zygote's start-up data) are a counted sequence of packets.

    host -> zygote   SPAWN (with the descriptor of a cgroup.procs file, where there are cgroups), QUIT
    zygote -> host   READY (once, with a pidfd of the zygote),
                     LEARNER (with a pidfd of it), CHILD (control socket, stdout, stderr, pidfd),
                     EXITED (wait status and resource usage)
    host -> child    WARM, at most once (copy memory and run typical programs in advance);
                     then the RUN header, then the program in packets
    child -> host    READY, once contained and before any program is there; WARM, when that is done; then
                     CLAIM: exit code and exception class; untrusted
"""

import socket
import struct

PACKET = 65536
"""Bytes a packet of a large body: well under the default socket buffer of 208 KiB."""

SPAWN = b"s"
QUIT = b"q"
READY = b"r"
LEARNER = b"l"
WARM = b"w"
FAILED = b"f"
CHILD = b"c"
EXITED = b"x"
CLAIM = b"d"

BODY = struct.Struct("!Q")  # length in bytes of the body that follows in packets
CHILD_HEAD = struct.Struct("!cI")  # CHILD, pid in the zygote's pid namespace
EXITED_HEAD = struct.Struct("!cIid")  # EXITED, pid, wait status, CPU seconds
RUN_HEAD = struct.Struct("!QQd?")  # bytes of the program, seed, time limit in seconds, echo
CLAIM_HEAD = struct.Struct("!ci")  # CLAIM, exit code; then the exception's class name in UTF-8
CLAIM_MAX = CLAIM_HEAD.size + 256

LEARNERS = 2
"""What learners do, one after the other: nothing; typical programs."""


def send_body(sock: socket.socket, data: bytes) -> None:
    """Sends the packets of a body (not its header)."""
    view = memoryview(data)
    for start in range(0, len(view), PACKET):
        sock.send(view[start : start + PACKET])


def recv_body(sock: socket.socket, size: int) -> bytes:
    """Receives the packets of a body of ``size`` bytes.

    Raises:
        EOFError: The other side closed the socket first.
    """
    parts = []
    while size > 0:
        packet = sock.recv(PACKET)
        if not packet:
            raise EOFError
        parts.append(packet)
        size -= len(packet)
    return b"".join(parts)
