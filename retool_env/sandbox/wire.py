"""The messages between host, zygote and child. Standard library only: this file is also shipped into the sandbox.

All three talk over SOCK_SEQPACKET sockets, so a message is never split or joined. The zygote's start-up data are a
counted sequence of packets; a program comes in the packet of its header or, if it is long, in a memory file whose
descriptor comes with it, so that the host never waits for a child to read.

    host -> zygote   SPAWN, SPAWN_FORKABLE (with the descriptor of a cgroup.procs file, where there are cgroups), QUIT,
                     SEAL (with a descriptor of a folder), ADOPT (also with a cgroup.procs file)
    zygote -> host   READY (once, with a pidfd of the zygote),
                     LEARNER (with a pidfd of it), CHILD (control socket, stdout, stderr, pidfd),
                     EXITED (wait status and resource usage), DONE (after SEAL and ADOPT, in their order)
    host -> child    WARM, at most once (copy memory and run typical programs in advance);
                     then a program: once, or again and again in a session; FORK, in a session that is forkable
    child -> host    READY, once contained and before any program is there (from a forkable one with the listener of its
                     filter and its folder); WARM, when that is done; then
                     CLAIM, for each program: its call number, exit code and exception class; untrusted;
                     FORKED or FORK_FAILED, and READY from the branch
"""

import fcntl
import os
import socket
import struct

PACKET = 65536
"""Bytes a packet of a large body: well under the default socket buffer of 208 KiB."""

SPAWN = b"s"
SPAWN_FORKABLE = b"k"
SEAL = b"e"
ADOPT = b"a"
DONE = b"o"
FORK = b"b"
FORKED = b"y"
FORK_FAILED = b"n"
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
ADOPT_HEAD = struct.Struct("!cII")  # ADOPT, the family's and the branch's pid in the zygote's pid namespace
DONE_HEAD = struct.Struct("!cI")  # DONE, error number or 0
FORK_FAILED_HEAD = struct.Struct("!cI")  # FORK_FAILED, error number
EXITED_HEAD = struct.Struct("!cIid")  # EXITED, pid, wait status, CPU seconds
# Number of the call in its session, 0 for the one program of a fresh interpreter; seed, time limit in seconds, echo.
RUN_HEAD = struct.Struct("!IQd?")
# CLAIM, call number, exit code; then the exception's class name in UTF-8; then, where output was still unwritten at the
# end, a zero byte, the length of what goes to standard output, and what goes to standard output and error.
CLAIM_HEAD = struct.Struct("!cIi")
CLAIM_OUTPUT = struct.Struct("!xI")
CLAIM_NAME = 256
CLAIM_KEPT = 32768
CLAIM_MAX = CLAIM_HEAD.size + CLAIM_NAME + CLAIM_OUTPUT.size + CLAIM_KEPT

LEARNERS = 2
"""What learners do, one after the other: nothing; typical programs."""


INLINE = 32768
"""Bytes of a program that go in the packet of its header."""


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


def send_run(sock: socket.socket, call: int, seed: int, limit_s: float, echo: bool, program: bytes) -> None:
    """Sends a program as one packet.

    Raises:
        OSError: The child is gone, or (``BlockingIOError``) does not read.
    """
    if len(program) <= INLINE:
        sock.send(RUN_HEAD.pack(call, seed, limit_s, echo) + program)
        return
    file = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(program)
        while view:
            view = view[os.write(file, view) :]
        # Nobody may write to it any more: branches of one session would have it in common.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        socket.send_fds(sock, [RUN_HEAD.pack(call, seed, limit_s, echo)], [file])
    finally:
        os.close(file)


def recv_packet(sock: socket.socket) -> tuple[bytes, int]:
    """Receives a packet and the descriptor that came with it, -1 if there was none."""
    packet, ancillary, _, _ = sock.recvmsg(RUN_HEAD.size + INLINE, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    for _, _, data in ancillary:
        return packet, int(struct.unpack("i", data[:4])[0])
    return packet, -1
