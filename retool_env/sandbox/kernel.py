"""Thin wrappers of the system calls that the sandbox needs and Python lacks.

Standard library only: this file is also shipped into the sandbox. Numbers of system calls are not listed here: what
glibc wraps is called by name, and the three Landlock calls have the same number on every architecture.
"""

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterable, Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAP_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 2

# System calls added since Linux 5.1 share one number on all architectures; glibc wraps none of these three.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

FS_WRITE_FILE, FS_READ_FILE, FS_READ_DIR = 1 << 1, 1 << 2, 1 << 3
_FS_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_ALL = 3  # bind and connect TCP, since ABI 4
_SCOPE_ALL = 3  # abstract unix sockets and signals, since ABI 6

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def _check(value: int, what: str) -> int:
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return value


def _prctl(option: int, *args: int) -> None:
    values = [ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]]
    _check(libc.prctl(option, *values), f"prctl {option}")


def die_with_parent() -> None:
    """Asks for SIGKILL when the thread that made this process ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def set_not_dumpable() -> None:
    """Keeps other processes of the same user out of /proc/<pid> and ptrace."""
    _prctl(_PR_SET_DUMPABLE, 0)


def set_no_new_privs() -> None:
    """Makes it impossible to gain privileges by exec; seccomp and Landlock ask for it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def keep_caps_over_setuid() -> None:
    """Keeps the permitted capabilities over the next change of uid."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def set_caps(keep: Sequence[int] = ()) -> None:
    """Reduces all capability sets of this process to ``keep`` (numbers below 32)."""
    mask = 0
    for cap in keep:
        mask |= 1 << cap
    header = struct.pack("Ii", _CAP_VERSION_3, 0)
    _check(libc.capset(header, struct.pack("IIIIII", mask, mask, 0, 0, 0, 0)), "capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def unshare(flags: int) -> None:
    """Leaves the namespaces named by the flags for new ones."""
    _check(libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Joins the namespaces of a descriptor; a pidfd is accepted since Linux 5.8."""
    _check(libc.setns(fd, flags), "setns")


def mount_tmpfs(target: str, size_mb: int, inodes: int, owner: int) -> None:
    """Mounts an empty tmpfs of limited size on ``target`` for the user ``owner``."""
    options = f"size={size_mb}m,nr_inodes={inodes},mode=700,uid={owner},gid={owner}".encode()
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _check(libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options), f"mount tmpfs on {target}")


_MADV_POPULATE_WRITE = 23


Pages = list[tuple[ctypes.c_void_p, ctypes.c_size_t]]


def populate(pages: Pages) -> None:
    """Makes pages present and our own, as writing to each would. Needs Linux 5.14; does nothing before that."""
    madvise = libc.madvise
    for address, size in pages:
        madvise(address, size, _MADV_POPULATE_WRITE)


_MADV_COLLAPSE = 25


def collapse(areas: Pages) -> None:
    """Has huge pages take the place of small ones, if the kernel has some to spare. Needs Linux 6.1."""
    for address, size in areas:
        libc.madvise(address, size, _MADV_COLLAPSE)


_fork = ctypes.PyDLL(None).fork


def fork() -> int:
    """Forks without CPython's hooks, which write to many pages of a large process.

    They mend locks that other threads might hold, and reseed ``random``. Only for a process with one thread, whose
    children reseed by themselves.
    """
    return int(_check(_fork(), "fork"))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def load_seccomp(program: bytes) -> None:
    """Loads a compiled seccomp filter (an array of struct sock_filter, 8 bytes each) for this thread."""
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = _FilterProgram(len(program) // 8, ctypes.addressof(buffer))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(descriptor))


_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8


def load_seccomp_listening(program: bytes, seccomp: int) -> int:
    """Loads a filter as ``load_seccomp`` does; returns the listener that decides what the filter does not.

    Args:
        program: The filter.
        seccomp: Number of the system call, which glibc does not wrap.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = _FilterProgram(len(program) // 8, ctypes.addressof(buffer))
    flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER
    listener = libc.syscall(seccomp, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(descriptor))
    return int(_check(listener, "seccomp"))


_BRANCH = 0x00008000 | 17  # CLONE_PARENT | SIGCHLD
_SIG_SETMASK, _SIGKILL = 2, 9
_PR_GET_TID_ADDRESS = 40
_syscall = ctypes.PyDLL(None, use_errno=True).syscall  # holding the GIL, as in ``fork``
_syscall.restype = ctypes.c_long


def find_own_thread_id() -> "ctypes.c_int | None":
    """Returns where glibc keeps the main thread's id, for ``branch``; None where the kernel does not tell."""
    address = ctypes.c_void_p()
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address)) or not address.value:
        return None
    return ctypes.c_int.from_address(address.value)


def branch(clone: int, sigprocmask: int, thread_id: "ctypes.c_int | None") -> int:
    """Makes a branch of this process, with the host's leave; returns 0 in the branch, else its pid.

    When this returns in the branch, descriptors 0 to 3 are its own. Like ``fork``, for a process with one thread.

    Args:
        clone: Number of clone(2).
        sigprocmask: Number of rt_sigprocmask(2); glibc's keeps two signals to itself.
        thread_id: Where glibc keeps the main thread's id.

    Raises:
        OSError: The host has refused, or there is no room for a process.
    """
    for pause_s in (0.0002, 0.001, 0.005, 0.02):
        try:
            return _branch(clone, sigprocmask, thread_id)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(pause_s)  # a thread that was joined is still ending
    return _branch(clone, sigprocmask, thread_id)


def _branch(clone: int, sigprocmask: int, thread_id: "ctypes.c_int | None") -> int:
    before = ctypes.create_string_buffer(8)
    size, none = ctypes.c_size_t(8), ctypes.c_ulong(0)
    _check(_syscall(sigprocmask, _SIG_SETMASK, b"\xff" * 8, before, size), "rt_sigprocmask")
    try:
        pid = int(_check(_syscall(clone, ctypes.c_ulong(_BRANCH), none, none, none, none), "clone"))
        if pid == 0:
            if thread_id is not None:
                thread_id.value = os.getpid()
            die_with_parent()  # waits for the host
        return pid
    finally:
        _syscall(sigprocmask, _SIG_SETMASK, before, None, size)


# System calls added since Linux 5.1 share one number on all architectures.
_FSCONFIG, _FSPICK = 431, 433
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH = 1, 8
_FSCONFIG_SET_FLAG, _FSCONFIG_CMD_RECONFIGURE = 0, 7


def make_read_only(folder: int) -> None:
    """Makes the whole file system read-only that a descriptor is in; EBUSY while files there are open for writing."""
    context = libc.syscall(_FSPICK, folder, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)
    _check(context, "fspick")
    try:
        _check(libc.syscall(_FSCONFIG, context, _FSCONFIG_SET_FLAG, b"ro", None, 0), "fsconfig")
        _check(libc.syscall(_FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0), "fsconfig")
    finally:
        os.close(context)


def landlock_abi() -> int:
    """Returns the Landlock ABI version of this kernel, 0 where there is none."""
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(version))


def landlock_ruleset(abi: int, rules: Iterable[tuple[str, int]]) -> int:
    """Makes a ruleset that denies all the kernel can deny at ``abi``, apart from ``rules``.

    Args:
        abi: Landlock ABI version to use, at most the kernel's.
        rules: Pairs of a path and the rights (``FS_*``) allowed beneath it; paths that do not exist are left out.

    Returns:
        The ruleset's descriptor, for ``landlock_restrict``.
    """
    fs_rights = _FS_RIGHTS_BY_ABI[min(abi, 5)]
    attributes = struct.pack("QQQ", fs_rights, _NET_ALL if abi >= 4 else 0, _SCOPE_ALL if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset: int = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    _check(ruleset, "landlock_create_ruleset")
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            rule = struct.pack("=Qi", rights & fs_rights, fd)
            added = libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
            _check(added, f"landlock_add_rule {path}")
        finally:
            os.close(fd)
    return ruleset


def landlock_restrict(ruleset: int) -> None:
    """Restricts this process, for good, to the ruleset."""
    _check(libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
