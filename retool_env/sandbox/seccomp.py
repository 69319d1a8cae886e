"""The system calls a program may make, by name, compiled through libseccomp (so for x86_64 and aarch64 alike).

The filter is an allow-list: a call that is not named here fails with EPERM, whatever a later kernel may add. Landlock
and namespaces leave much to it: Landlock has no say over chmod, signals before ABI 6, UDP, unix sockets by path,
``prlimit`` on another process, or ``fcntl(F_SETOWN)``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from functools import cache

from retool_env.errors import SandboxUnavailableError

PID_PLACEHOLDER = 0x5AFEB0C5
"""Stands for the child's own pid in the compiled filter; the zygote replaces it (a filter cannot ask for the pid)."""

# What a single-threaded or threaded Python program needs, in any tier, without conditions on arguments.
_ALLOWED = """
    access alarm arch_prctl brk chdir clock_getres clock_gettime clock_nanosleep close close_range copy_file_range
    dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 exit
    exit_group faccessat faccessat2 fadvise64 fchdir fdatasync fstat fstatfs fsync ftruncate futex_waitv getcpu
    getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpgid getpgrp getpid getppid getpriority
    getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid
    get_robust_list lseek lstat madvise membarrier mincore mprotect mremap msync munmap nanosleep newfstatat
    pause pipe pipe2 poll ppoll pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readlink readlinkat readv
    recvfrom recvmsg restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
    rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
    sched_rr_get_interval sched_yield select sendfile sendmsg set_robust_list set_tid_address setitimer setrlimit
    shutdown sigaltstack stat statfs statx sysinfo time timer_create timer_delete timer_getoverrun timer_gettime
    timer_settime timerfd_create timerfd_gettime timerfd_settime times umask uname wait4 waitid write writev
""".split()

# For a private writable folder (the jail's /tmp).
_WRITABLE_FOLDER = """
    chmod creat fallocate fchmod fchmodat fchmodat2 link linkat mkdir mkdirat rename renameat renameat2 rmdir
    symlink symlinkat truncate unlink unlinkat utime utimensat utimes
""".split()

# Absent rather than forbidden, so that the C library falls back to an older call that the filter can look into.
_ABSENT = ("clone3", "openat2", "io_uring_setup")

_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_CLONE_THREAD = 0x00010000
_BRANCH = 0x00008000 | 17  # CLONE_PARENT | SIGCHLD
_CLONE_FORBIDDEN = 0x7E020000 | 0x80 | 0x2000 | 0x8000  # new namespaces (with time), CLONE_PTRACE, CLONE_PARENT
_SOCK_TYPE_MASK, _AF_UNIX, _SOCK_STREAM = 0xF, 1, 1
_FCNTL = {
    "F_DUPFD": 0, "F_GETFD": 1, "F_SETFD": 2, "F_GETFL": 3, "F_SETFL": 4, "F_DUPFD_CLOEXEC": 1030, "F_GETPIPE_SZ": 1032,
}  # fmt: skip
# For a private writable folder, where sqlite needs them. A lock on a file that all may read would be a channel between
# programs; to see another's shared lock takes one of the questions (F_GETLK, F_OFD_GETLK), or flock: not allowed.
_FCNTL_LOCKS = {"F_SETLK": 6, "F_SETLKW": 7, "F_OFD_SETLK": 37, "F_OFD_SETLKW": 38}
_IOCTL = {
    "TCGETS": 0x5401, "TIOCGWINSZ": 0x5413, "FIONREAD": 0x541B, "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450, "FIOCLEX": 0x5451,
}  # fmt: skip
_PRCTL = {"PR_SET_NAME": 15, "PR_GET_NAME": 16}
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_MAP_TYPE, _MAP_PRIVATE = 0xF, 2
_FUTEX_PRIVATE, _FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_COMMAND = 128, 0, 9, 0x7F

_EQ, _MASKED_EQ = 4, 7  # enum scmp_compare
_ACT_ALLOW = 0x7FFF0000
_ACT_NOTIFY = 0x7FC00000
_ACT_ERRNO = 0x00050000
_ATTR_ACT_BADARCH, _ATTR_OPTIMIZE = 2, 8
_ACT_KILL_PROCESS = 0x80000000


class _Arg(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def _is(arg: int, value: int) -> _Arg:
    return _Arg(arg, _EQ, value, 0)


def _bits(arg: int, mask: int, value: int) -> _Arg:
    return _Arg(arg, _MASKED_EQ, mask, value)


def _low(arg: int, value: int) -> _Arg:
    """Compares the low 32 bits: the kernel takes an int, so the upper half must not matter."""
    return _Arg(arg, _MASKED_EQ, 0xFFFFFFFF, value)


@dataclass(frozen=True)
class Policy:
    """What differs between the tiers.

    Attributes:
        writable_folder: Files may be made, changed and removed (where the mounts let them).
        forkable: For a session that can be branched. Branches come into the world with the filter, the mappings and the
            descriptors of their trunk: whatever would tie them together is denied, and so are signals, also to oneself,
            since the filter cannot know whose pid is whose.
    """

    writable_folder: bool
    forkable: bool = False

    def rules(self) -> list[tuple[str, tuple[_Arg, ...]]]:
        """Returns (system call, conditions); a call is allowed when all conditions of one of its rules hold."""
        rules: list[tuple[str, tuple[_Arg, ...]]] = [(name, ()) for name in _ALLOWED]
        if self.writable_folder:
            rules += [(name, ()) for name in _WRITABLE_FOLDER]
        if self.writable_folder and not self.forkable:
            rules += [("fcntl", (_low(1, value),)) for value in _FCNTL_LOCKS.values()]
        # O_TRUNC with O_RDONLY truncates a file that one may only read, unseen by Landlock before ABI 3.
        for name, flags in (("open", 1), ("openat", 2)):
            rules.append((name, (_bits(flags, _O_TRUNC, 0),)))
            rules += [(name, (_bits(flags, _O_ACCMODE, mode),)) for mode in (os.O_WRONLY, os.O_RDWR)]
        rules.append(("clone", (_bits(0, _CLONE_THREAD | _CLONE_FORBIDDEN, _CLONE_THREAD),)))
        rules += [("fcntl", (_low(1, value),)) for value in _FCNTL.values()]
        rules += [("ioctl", (_low(1, value),)) for value in _IOCTL.values()]
        rules += [("prctl", (_low(0, value),)) for value in _PRCTL.values()]
        rules.append(("prlimit64", (_low(0, 0),)))
        rules.append(("sendto", (_is(4, 0),)))  # no destination: only on a connected socket
        # A datagram socket pair could still send to any unix socket by path.
        rules.append(("socketpair", (_low(0, _AF_UNIX), _bits(1, _SOCK_TYPE_MASK, _SOCK_STREAM))))
        # On a page of a file that two programs have mapped, one could wake the other. pthread_join only waits there.
        rules.append(("futex", (_bits(1, _FUTEX_PRIVATE, _FUTEX_PRIVATE),)))
        for command in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET):
            rules.append(("futex", (_bits(1, _FUTEX_COMMAND | _FUTEX_PRIVATE, command),)))
        if self.forkable:
            rules.append(("mmap", (_bits(3, _MAP_TYPE, _MAP_PRIVATE),)))
        else:
            signals = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
            rules += [(name, (_low(0, PID_PLACEHOLDER),)) for name in signals]  # only to itself
            rules.append(("mmap", ()))
        return rules

    def notified(self) -> list[tuple[str, tuple[_Arg, ...]]]:
        """Returns the calls that wait for the host's word; see ``branching``."""
        if not self.forkable:
            return []
        return [("clone", (_is(0, _BRANCH),)), ("prctl", (_is(0, _PR_SET_PDEATHSIG), _is(1, _SIGKILL)))]


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise SandboxUnavailableError(
            "libseccomp.so.2 was not found: install the system package libseccomp2 (Debian, Ubuntu) or libseccomp"
        ) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Arg)
    ]  # fmt: skip
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def number_of(name: str) -> int:
    """Returns the number of a system call on this machine's architecture."""
    return int(_library().seccomp_syscall_resolve_name(name.encode()))


@cache
def compile_policy(policy: Policy) -> bytes:
    """Compiles a policy to BPF for this machine's architecture.

    Raises:
        SandboxUnavailableError: libseccomp is missing or refuses a rule.
    """
    library = _library()
    context = library.seccomp_init(_ACT_ERRNO | errno.EPERM)
    if not context:
        raise SandboxUnavailableError("libseccomp could not make a filter")
    try:
        library.seccomp_attr_set(context, _ATTR_ACT_BADARCH, _ACT_KILL_PROCESS)
        library.seccomp_attr_set(context, _ATTR_OPTIMIZE, 2)  # a binary tree; libseccomp before 2.5 has none
        for name in _ABSENT:
            _add(library, context, _ACT_ERRNO | errno.ENOSYS, name, ())
        for name, conditions in policy.rules():
            _add(library, context, _ACT_ALLOW, name, conditions)
        for name, conditions in policy.notified():
            _add(library, context, _ACT_NOTIFY, name, conditions)
        fd = os.memfd_create("seccomp")
        try:
            status = library.seccomp_export_bpf(context, fd)
            if status:
                raise SandboxUnavailableError(f"libseccomp could not compile the filter: {os.strerror(-status)}")
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
    finally:
        library.seccomp_release(context)


def _add(library: ctypes.CDLL, context: int, action: int, name: str, conditions: tuple[_Arg, ...]) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:  # not on this architecture, or newer than this libseccomp: stays forbidden
        return
    array = (_Arg * max(1, len(conditions)))(*conditions)
    status = library.seccomp_rule_add_array(context, action, number, len(conditions), array)
    if status:
        raise SandboxUnavailableError(f"libseccomp refuses the rule for {name}: {os.strerror(-status)}")
