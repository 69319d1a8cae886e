"""Starting a zygote: what it is sent, how it is contained, and the handshake. Both tiers come together here."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from retool_env.errors import ConfigurationError, SandboxUnavailableError
from retool_env.sandbox import (
    branching,
    cgroups,
    immortal,
    inventory,
    landlock,
    learning,
    nsjail,
    privileges,
    seccomp,
    wire,
)
from retool_env.sandbox.config import SandboxConfig

_HERE = Path(__file__).parent
_START_LIMIT_S = 60.0
_GRACE_S = 1.0
_TMP_INODES = 1024
_MIB = 1 << 20

_BOOT = """
import builtins, json, socket, struct, sys, types
control = socket.socket(fileno=int(sys.argv[1]))
head, ancillary, _, _ = control.recvmsg(64, socket.CMSG_LEN(4))
owner, = struct.unpack("i", ancillary[0][2][:4])
left, = struct.unpack("!Q", head)
parts = []
while left:
    parts.append(control.recv(65536))
    if not parts[-1]:
        sys.exit(1)
    left -= len(parts[-1])
payload = json.loads(b"".join(parts))
for name in ("retool_env", "retool_env.sandbox"):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = []
for name, source in payload["sources"].items():
    full = "retool_env.sandbox." + name
    sys.modules[full] = module = types.ModuleType(full)
    setattr(package, name, module)
    module.__builtins__ = vars(builtins).copy()
    exec(compile(source, "<sandbox " + name + ">", "exec"), module.__dict__)
for name in [name for name in sys.modules if name.startswith("retool_env")]:
    del sys.modules[name]
package.zygote.main(control, owner, payload["settings"])
"""
"""Run with ``python -c``: the zygote's sources come over the socket, so that no folder of ours is readable inside."""

_SHIPPED = ("wire", "kernel", "immortal", "packages", "typical", "streams", "child", "zygote")
"""The modules of which the zygote consists, each after those that it imports."""

LIGHT_PRELOAD = (
    "math", "cmath", "random", "itertools", "functools", "operator", "collections", "collections.abc", "fractions",
    "decimal", "statistics", "numbers", "re", "string", "json", "datetime", "time", "heapq", "bisect", "copy", "enum",
    "dataclasses", "typing", "array", "struct", "textwrap", "pprint", "calendar", "hashlib",
)  # fmt: skip
"""What the light zygote imports: what programs without numpy or sympy use."""


@dataclass(frozen=True)
class Plan:
    """What a zygote is started with.

    Attributes:
        tier: Where to start it.
        config: The sandbox's configuration.
        slots: Children it may have at the same time, with those that are being reaped.
        light: With the standard library only.
        like: For a light one: the zygote whose children's limits its own children get, so that a program that imports
            what was not expected of it has room for that.
    """

    tier: str
    config: SandboxConfig
    slots: int
    light: bool = False
    like: ZygoteProcess | None = None


@dataclass
class ZygoteProcess:
    """A running zygote, as the host sees it.

    Attributes:
        tier: "nsjail", "landlock" or "none".
        control: The socket to it.
        memory: The memory cgroups for its children, or None where there are none.
        log: A memory file with what it wrote on standard error.
        process: What we started: the supervisor (nsjail) or the zygote (landlock). Reaped by us.
        pidfd: A pidfd of the zygote itself; readable once it has ended.
        pid: Its pid on the host.
        address_space: Its address space in bytes.
        own_memory: Bytes of memory it has to itself: mostly what importing took.
    """

    tier: str
    control: socket.socket
    memory: cgroups.MemoryCgroups | None
    log: int
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    pid: int = 0
    address_space: int = 0
    own_memory: int = 0

    def end(self) -> None:
        """Ends the zygote and everything below it, reaps what we started, and removes its cgroups."""
        with contextlib.suppress(OSError):
            self.control.send(wire.QUIT)
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(_GRACE_S * 1000):  # stopped, say
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.abandon()
        if self.process is not None:
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)  # the supervisor and nsjail, a session of their own
                self.process.wait()
        if self.memory is not None:
            self.memory.remove()

    def abandon(self) -> None:
        """Closes our descriptors only (also in a forked process, to which the zygote does not belong)."""
        fds = [fd for fd in (self.pidfd, self.log) if fd >= 0]
        self.pidfd = self.log = -1
        self.control.close()
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def complaint(self) -> str:
        """Returns what the zygote or nsjail wrote on standard error."""
        size = os.fstat(self.log).st_size
        lines = os.pread(self.log, 16000, max(0, size - 16000)).decode("utf-8", "replace").splitlines()
        # The loader's remark about libraries without version information is on every start, and harmless.
        return "\n".join(line for line in lines if "no version information available" not in line)[-2000:].strip()


def start(plan: Plan, holding: list[int] | None = None) -> ZygoteProcess:
    """Starts a zygote and waits until it is ready.

    Args:
        plan: What to start.
        holding: Filled with the descriptors that are open meanwhile: a process forked then should close them.

    Raises:
        SandboxUnavailableError: It cannot run here; says what is missing.
        ConfigurationError: ``config.python`` is not usable.
    """
    holding = [] if holding is None else holding
    tier, config, slots = plan.tier, plan.config, plan.slots
    world = inventory.take(config.packages, config.python)
    rights = privileges.current()
    uids = rights.spare_ids(slots)
    settings = _settings(plan, world, rights, uids)
    base = cgroups.find_base() if tier == "nsjail" and rights.is_root else None
    more = 0 if plan.like is None else plan.like.own_memory // _MIB
    memory = None if base is None else cgroups.MemoryCgroups(base, config.memory_mb + more)
    try:
        here, there = (_above_stdio(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        zygote = ZygoteProcess(tier, here, memory, log=os.memfd_create("retool-zygote-log"))
        holding += [here.fileno(), there.fileno(), zygote.log]
        pidfd = os.pidfd_open(os.getpid())
        owner = fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, 3)
        holding.append(owner)
        os.close(pidfd)
    except BaseException:  # no descriptor left, or an interrupt
        if memory is not None:
            memory.remove()
        raise
    try:
        try:
            python = (world.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, str(there.fileno()))
            environment = _environment(world)
            if tier == "nsjail":
                jail = nsjail.Jail(
                    command=python,
                    environment=environment,
                    mounts=nsjail.jail_mounts(world, config.tmp_mb),
                    ids=_jail_ids(rights, uids, slots),
                    pass_fds=(there.fileno(),),
                )
                command = _supervised(jail, owner, memory)
                # For what starts this interpreter and nsjail; the zygote gets the jail's environment.
                env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
            else:
                command, env = list(python), dict(item.split("=", 1) for item in environment)
            zygote.process = subprocess.Popen(
                command, pass_fds=[there.fileno(), owner], env=env, stdin=subprocess.DEVNULL,
                stdout=zygote.log, stderr=zygote.log, cwd="/", start_new_session=True,
            )  # fmt: skip
            holding.remove(there.fileno())
            there.close()
            _send_start(here, owner, settings)
            _handshake(zygote, plan, holding)
        finally:
            holding.remove(owner)
            os.close(owner)
    except BaseException:  # such as KeyboardInterrupt: no half-started zygote is left
        there.close()
        zygote.end()
        raise
    return zygote


def _above_stdio(end: socket.socket) -> socket.socket:
    """Moves a socket out of 0 to 2, where it lands if the owner has closed its standard files."""
    moved = socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    end.close()
    return moved


_JAIL_UID_BASE = 1000
_THREADS = 64
_BRANCHES = 256
"""Processes that a forkable session and its branches, which share a user id, may have beside their threads."""


@cache
def fork_obstacle(tier: str) -> str:
    """Says why sessions cannot be forked in a tier on this machine; empty if they can."""
    if tier == "none":
        return "the tier 'none' contains nothing that could be kept apart"
    try:
        seccomp.compile_policy(seccomp.Policy(writable_folder=tier == "nsjail", forkable=True))
    except SandboxUnavailableError as error:  # libseccomp before 2.5
        return str(error)
    return branching.obstacle()


def _settings(
    plan: Plan, world: inventory.Inventory, rights: privileges.Privileges, uids: int | None
) -> dict[str, Any]:
    """Makes what the zygote is told."""
    tier, config = plan.tier, plan.config
    in_jail = tier == "nsjail"
    preload = config.preload if config.preload is not None else inventory.default_preload(world)
    inventory.check_preload(preload, world)
    if config.immortal and not immortal.supports(world.version):
        raise ConfigurationError(f"immortal: works with Python 3.12 and 3.13 only, this one is {world.version}")
    threads = _THREADS if uids is not None else rights.tasks_of_user() + _THREADS
    return {
        "slots": plan.slots,
        "namespaces": in_jail,
        "uid_base": (_JAIL_UID_BASE if in_jail else uids) if uids is not None else None,
        "keep_read_cap": uids is not None and not world.open_to_all(),
        "tmp_mb": config.tmp_mb,
        "tmp_inodes": _TMP_INODES,
        "modules": nsjail.jail_modules(world) if in_jail else world.modules,
        "preload": LIGHT_PRELOAD if plan.light else preload,
        "immortal": config.immortal,
        "seed": config.seed,
        "pid_placeholder": seccomp.PID_PLACEHOLDER,
        "seccomp": "" if tier == "none" else seccomp.compile_policy(seccomp.Policy(writable_folder=in_jail)).hex(),
        "seccomp_forkable": ""
        if fork_obstacle(tier)
        else seccomp.compile_policy(seccomp.Policy(writable_folder=in_jail, forkable=True)).hex(),
        "numbers": {name: seccomp.number_of(name) for name in ("clone", "rt_sigprocmask", "seccomp")},
        "forkable_threads": threads + _BRANCHES,
        "landlock_abi": landlock.usable_abi() if tier == "landlock" else 0,
        "landlock_rules": landlock.rules(world) if tier == "landlock" else [],
        "rlimits": _rlimits(config, threads),
    }


def _environment(world: inventory.Inventory) -> tuple[str, ...]:
    hardware = tuple(f"{name}={os.environ[name]}" for name in nsjail.HARDWARE_VARIABLES if name in os.environ)
    loader = (f"LD_LIBRARY_PATH={world.library_path}",) if world.library_path else ()
    return nsjail.ENVIRONMENT + hardware + loader


def _supervised(jail: nsjail.Jail, owner: int, memory: cgroups.MemoryCgroups | None) -> list[str]:
    order = {
        "binary": nsjail.find_binary(),
        "jail": jail.configuration(),
        "pass_fds": list(jail.pass_fds),
        "owner_pidfd": owner,
        "cgroups": [memory.folder] if memory else [],
    }
    return [sys.executable, "-I", "-S", str(_HERE / "supervisor.py"), json.dumps(order)]


def _jail_ids(rights: privileges.Privileges, uids: int | None, slots: int) -> tuple[nsjail.IdRange, ...]:
    zygote = nsjail.IdRange(0, rights.uid, rights.gid, 1)
    if uids is None:
        return (zygote,)
    return (zygote, nsjail.IdRange(_JAIL_UID_BASE + 1, uids + 1, uids + 1, slots))


def _rlimits(config: SandboxConfig, threads: int) -> dict[str, int]:
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": config.tmp_mb * _MIB // 2,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 64,
        "RLIMIT_NPROC": threads,
        "RLIMIT_STACK": 8 * _MIB,
    }


def _send_start(control: socket.socket, owner: int, settings: dict[str, Any]) -> None:
    sources = {name: (_HERE / f"{name}.py").read_text("utf-8") for name in _SHIPPED}
    payload = json.dumps({"sources": sources, "settings": settings}).encode()
    control.settimeout(_START_LIMIT_S)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", owner))]
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: the handshake says why
        control.sendmsg([wire.BODY.pack(len(payload))], rights)
        wire.send_body(control, payload)


def _handshake(zygote: ZygoteProcess, plan: Plan, holding: list[int]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    try:
        message, ancillary, _, _ = zygote.control.recvmsg(8192, socket.CMSG_LEN(4))
    except OSError:
        message, ancillary = b"", []
    if message != wire.READY or not ancillary:
        detail = message[1:].decode("utf-8", "replace") if message[:1] == wire.FAILED else ""
        if not detail:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert zygote.process is not None
                zygote.process.wait(max(0.0, min(2.0, deadline - time.monotonic())))
            detail = zygote.complaint() or "it ended without a word"
        raise SandboxUnavailableError(f"the {zygote.tier} tier does not start here: {detail}")
    (zygote.pidfd,) = struct.unpack("i", ancillary[0][2][:4])
    holding.append(zygote.pidfd)
    zygote.pid = host_pid(zygote.pidfd)
    size, resident, shared = (
        int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in Path(f"/proc/{zygote.pid}/statm").read_text().split()[:3]
    )
    zygote.address_space, zygote.own_memory = size, resident - shared
    if plan.like is not None:
        size = max(size, plan.like.address_space)
    # Where the kernel counts real use, address space may be larger: its verdict, not a failed mmap, decides.
    spare = plan.config.memory_mb * (4 if zygote.memory is not None else 1)
    zygote.control.send(struct.pack("!Q", size + spare * _MIB))
    _send_ranges(zygote, learning.huge_areas(zygote.pid))
    _teach(zygote)
    zygote.control.settimeout(None)


def _teach(zygote: ZygoteProcess) -> None:
    """Tells the zygote which memory its children will use: looked up from outside, since the jail has no /proc."""
    seen: list[set[int]] = []
    for _ in range(wire.LEARNERS):
        message, ancillary, _, _ = zygote.control.recvmsg(8, socket.CMSG_LEN(4))
        if message != wire.LEARNER or not ancillary:
            raise SandboxUnavailableError(f"the {zygote.tier} tier does not start here: {zygote.complaint()}")
        (learner,) = struct.unpack("i", ancillary[0][2][:4])
        try:
            seen.append(learning.dirtied_pages(host_pid(learner), zygote.pid))
        finally:
            os.close(learner)
        zygote.control.send(wire.LEARNER)
    fork, typical = seen
    _send_ranges(zygote, learning.ranges(typical - fork))


def _send_ranges(zygote: ZygoteProcess, ranges: list[tuple[int, int]]) -> None:
    body = b"".join(struct.pack("!QQ", address, size) for address, size in ranges)
    zygote.control.send(wire.BODY.pack(len(body)))
    wire.send_body(zygote.control, body)


def host_pid(pidfd: int) -> int:
    """Returns the pid, in our own pid namespace, of the process behind a pidfd."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    raise SandboxUnavailableError("the kernel does not tell the pid of a pidfd (Linux 5.4 or later is needed)")
