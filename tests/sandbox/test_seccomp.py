"""The filter's policy as a table: what is in it, what must never be."""

from __future__ import annotations

import struct

import pytest

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
