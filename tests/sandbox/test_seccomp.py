"""The filter's policy as a table: what is in it, what must never be."""

from __future__ import annotations

import struct

import pytest

from retool_env.sandbox import launch
from retool_env.sandbox.seccomp import PID_PLACEHOLDER, Policy, compile_policy

NEVER = """
    accept bind bpf capset chown chroot clone3 connect execve execveat fchown fork fsetxattr init_module io_uring_setup
    ioprio_set kcmp keyctl kexec_load landlock_restrict_self lchown listen lsetxattr memfd_create mknod mount
    move_pages mq_open msgget name_to_handle_at open_by_handle_at openat2 perf_event_open personality pidfd_getfd
    pidfd_open pidfd_send_signal pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl reboot
    sched_setaffinity sched_setscheduler semget setgroups setns setpgid setpriority setresuid setsid setsockopt setuid
    setxattr shmget socket splice swapon sync tkill umount2 unshare userfaultfd vfork vmsplice
""".split()


@pytest.mark.parametrize("writable", [True, False])
def test_what_no_program_may_do(writable):
    allowed = {name for name, _ in Policy(writable_folder=writable).rules()}
    assert allowed.isdisjoint(NEVER)


def test_changing_files_needs_a_writable_folder():
    names = {name for name, _ in Policy(writable_folder=False).rules()}
    assert names.isdisjoint({"chmod", "truncate", "unlink", "rename", "mkdir", "link", "symlink", "utimensat"})


@pytest.mark.parametrize("writable", [True, False])
def test_compiled(writable):
    program = compile_policy(Policy(writable_folder=writable))
    assert len(program) % 8 == 0
    assert struct.pack("=I", PID_PLACEHOLDER) in program
    assert len(program) // 8 < 4096  # the kernel's limit on instructions


CHANNELS = """
import ctypes, fcntl, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.c_void_p(ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~4095)  # of a file that all programs map
futex = {'x86_64': 202, 'aarch64': 98}[platform.machine()]

def errno_of(operation):
    none = ctypes.c_void_p()
    done = libc.syscall(futex, page, ctypes.c_int(operation), ctypes.c_uint(1), none, none, ctypes.c_uint(-1))
    return ctypes.get_errno() if done < 0 else 0

WAKES = {'WAKE': 1, 'REQUEUE': 3, 'CMP_REQUEUE': 4, 'WAKE_OP': 5, 'LOCK_PI': 6, 'UNLOCK_PI': 7, 'WAKE_BITSET': 10}
print(sorted(name for name, operation in WAKES.items() if errno_of(operation) != 1))
print(errno_of(1 | 128))

def is_refused(lock):
    with open(os.__file__, 'rb') as file:
        try:
            lock(file)
        except OSError:
            return True
    return False

region = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
print(all(map(is_refused, [
    lambda file: fcntl.flock(file, fcntl.LOCK_SH),
    lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
    lambda file: fcntl.fcntl(file, fcntl.F_SETLK, region),
    lambda file: fcntl.fcntl(file, fcntl.F_GETLK, region),
    lambda file: fcntl.fcntl(file, 36, region),  # F_OFD_GETLK
])))
"""


@pytest.mark.parametrize("forkable", [False, True])
def test_no_channel_by_what_all_programs_can_read(tier_sandbox, forkable):
    """Nobody wakes a waiter on a library's page, or sees another's lock on a library's file."""
    if forkable and launch.fork_obstacle(tier_sandbox.tier):
        return
    with tier_sandbox.session(forkable=forkable) as session:
        assert session.run(CHANNELS).stdout == "[]\n0\nTrue\n"
