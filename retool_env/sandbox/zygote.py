"""The zygote: imports the libraries once, then forks one contained child for each execution.

Runs inside the sandbox with the standard library only, single-threaded, and never runs user code itself. It ends when
its control socket ends, when it is told to, or when the owner's process ends (it holds the owner's pidfd, because a
forked worker of the owner may keep the socket open).
"""

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from typing import Any, NoReturn

from retool_env.sandbox import child, immortal, kernel, packages, typical, wire


def main(control: socket.socket, owner: int, settings: dict[str, Any]) -> None:
    """Serves the host until it goes away."""
    try:
        zygote = Zygote(control, owner, settings)
    except BaseException as error:  # the host turns whatever went wrong here into SandboxUnavailableError
        control.send(wire.FAILED + f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4096])
        os._exit(1)
    zygote.serve()


_exit = os._exit


class Zygote:
    """One zygote process."""

    def __init__(self, control: socket.socket, owner: int, settings: dict[str, Any]):
        # An ignored or blocked signal survives fork and exec: without this the owner's choices would be ours.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        self.control = control
        self.owner = owner
        self.settings = settings
        self.pid = os.getpid()
        self.children: dict[int, tuple[int, int, int]] = {}  # pidfd -> (pid, slot, its family or 0)
        self.families: dict[int, tuple[int, int]] = {}  # the first trunk's pid -> (slot, members)
        self.free_slots = list(range(settings["slots"], 0, -1))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 4096), files))
        self.null = os.open("/dev/null", os.O_RDWR)
        self.own_pidfd = os.pidfd_open(self.pid)
        self.program = bytes.fromhex(settings["seccomp"])
        self.forkable_program = bytes.fromhex(settings["seccomp_forkable"])
        self.numbers = settings["numbers"]
        self.thread_id = kernel.find_own_thread_id()
        sys.meta_path.append(packages.AllowedPackages(settings["modules"]))
        child.preload(settings["preload"])
        # Programs see an empty environment; the C library keeps the variables that tell a BLAS loaded later (scipy's)
        # to use one thread.
        os.environ._data.clear()  # type: ignore[attr-defined]
        self.ruleset = -1
        if settings["landlock_abi"]:
            self.ruleset = kernel.landlock_ruleset(settings["landlock_abi"], settings["landlock_rules"])
        self.interpreter = child.Interpreter(settings["seed"])
        gc.collect()
        gc.disable()
        if settings["immortal"]:
            if not immortal.supported():
                raise RuntimeError("immortal=True: this build of Python is not one of those it works with")
            immortal.immortalize()
        gc.freeze()
        send_with_fds(control, wire.READY, (self.own_pidfd,))
        # The host reads this process's size from outside: the jail has no /proc.
        address_space = struct.unpack("!Q", control.recv(64))[0]
        wanted = {getattr(resource, name): value for name, value in settings["rlimits"].items()}
        wanted[resource.RLIMIT_AS] = address_space
        limits = {limit: _within_own(limit, value) for limit, value in wanted.items()}
        # This process needs descriptors and children. The other limits do not hinder it, and are inherited.
        self.limits = [(limit, limits.pop(limit)) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))
        # Branches have the same user.
        threads = {resource.RLIMIT_NPROC: _within_own(resource.RLIMIT_NPROC, settings["forkable_threads"])}
        self.forkable_limits = [(limit, threads.get(limit, value)) for limit, value in self.limits]
        kernel.collapse(self.recv_pages())
        self.pages = self.learn()

    def learn(self) -> kernel.Pages:
        """Has learners run typical programs, and the host look at the pages they wrote to."""
        for level in range(wire.LEARNERS):
            ready_read, ready_write = os.pipe()
            pid = kernel.fork()
            if pid == 0:
                kernel.die_with_parent()
                if os.getppid() != self.pid:  # it died before that
                    os._exit(98)
                if level > 0:
                    child.rehearse(typical.LEARNT_ONLY)
                os.write(ready_write, b"x")
                signal.pause()
            os.close(ready_write)
            os.read(ready_read, 1)
            os.close(ready_read)
            learner = os.pidfd_open(pid)
            self.tell(wire.LEARNER, learner)
            os.close(learner)
            self.control.recv(1)  # the host has looked
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return self.recv_pages()

    def recv_pages(self) -> kernel.Pages:
        """Receives a list of memory ranges."""
        (size,) = wire.BODY.unpack(self.control.recv(wire.BODY.size))
        numbers = struct.unpack(f"!{size // 8}Q", wire.recv_body(self.control, size))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [(ctypes.c_void_p(address), ctypes.c_size_t(length)) for address, length in pairs]

    def serve(self) -> NoReturn:
        """Handles requests, exits of children and the end of the owner. Does not return."""
        try:
            self._serve()
        except ConnectionError:  # the host died and left something unread
            pass
        except BaseException:  # a bug of ours: the interpreter's own end would take a while, and children live on in it
            traceback.print_exc()
        self.end()

    def _serve(self) -> None:
        poll = select.poll()
        for fd in (self.control.fileno(), self.owner):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.control.fileno():
                    request, fds, _, _ = socket.recv_fds(self.control, 64, 1)
                    if request in (wire.SPAWN, wire.SPAWN_FORKABLE):
                        poll.register(self.spawn(fds, request == wire.SPAWN_FORKABLE), select.POLLIN)
                    elif request == wire.SEAL:
                        self.seal(fds)
                    elif request[:1] == wire.ADOPT:
                        pidfd = self.adopt(request, fds)
                        if pidfd >= 0:
                            poll.register(pidfd, select.POLLIN)
                    else:
                        return
                elif fd == self.owner:
                    return
                else:
                    poll.unregister(fd)
                    self.reap(fd)

    def end(self) -> NoReturn:
        """Kills all children and exits. In the jail the kernel would do it too: this process is its init."""
        for pidfd in self.children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for family in self.families:
            _kill_group(family)
        try:
            while True:  # or they would be left as zombies to an init that may not reap
                os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(0)

    def seal(self, fds: list[int]) -> None:
        """Makes the folder of a family read-only."""
        error = 0
        try:
            kernel.make_read_only(fds[0])
        except OSError as failure:
            error = failure.errno or 1
        for fd in fds:
            os.close(fd)
        self.tell(wire.DONE_HEAD.pack(wire.DONE, error))

    def adopt(self, request: bytes, fds: list[int]) -> int:
        """Watches over a branch of a child, and puts it in a cgroup of its own; returns its pidfd, or -1.

        It is a child of this process already, since its trunk was.
        """
        _, family, pid = wire.ADOPT_HEAD.unpack(request)
        pidfd, error = -1, 0
        try:
            slot, members = self.families[family]
            pidfd = os.pidfd_open(pid)
            self.families[family] = (slot, members + 1)
            self.children[pidfd] = (pid, slot, family)
            for fd in fds:
                os.write(fd, b"%d" % pid)
        except (OSError, KeyError) as failure:
            error = getattr(failure, "errno", 1) or 1
        for fd in fds:
            os.close(fd)
        self.tell(wire.DONE_HEAD.pack(wire.DONE, error))
        return pidfd

    def spawn(self, fds: list[int], forkable: bool) -> int:
        """Forks a child, tells the host, and returns the child's pidfd.

        Args:
            fds: The ``cgroup.procs`` file of the child's memory cgroup, or nothing.
            forkable: Whether it can be branched. It has no pid namespace of its own then: the kernel does not let a
                namespace's init have siblings.
        """
        slot = self.free_slots.pop()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        if self.settings["namespaces"]:
            # Back to our own pid namespace first: a second unshare from an already unshared one is refused.
            kernel.setns(self.own_pidfd, kernel.CLONE_NEWPID)
            if not forkable:
                kernel.unshare(kernel.CLONE_NEWPID)
        pid = kernel.fork()
        if pid == 0:
            self.become_child(slot, fds, there.detach(), out_write, err_write, forkable)
        pidfd = os.pidfd_open(pid)
        there.close()
        for fd in (out_write, err_write, *fds):
            os.close(fd)
        self.children[pidfd] = (pid, slot, pid if forkable else 0)
        if forkable:
            self.families[pid] = (slot, 1)
        self.tell(wire.CHILD_HEAD.pack(wire.CHILD, pid), here.fileno(), out_read, err_read, pidfd)
        here.close()
        os.close(out_read)
        os.close(err_read)
        return pidfd

    def tell(self, message: bytes, *fds: int) -> None:
        """Sends a message to the host; ends if the host is gone."""
        try:
            send_with_fds(self.control, message, fds)
        except OSError:
            self.end()

    def reap(self, pidfd: int) -> None:
        """Collects an ended child and tells the host how it ended."""
        pid, slot, family = self.children.pop(pidfd)
        members = self.families[family][1] - 1 if family else 0
        if family and not members:
            # Before it is reaped, its number is nobody else's: a process that never came forward as a branch goes now.
            _kill_group(family)
        _, status, usage = os.wait4(pid, 0)
        os.close(pidfd)
        if members:
            self.families[family] = (slot, members)
        else:
            if family:
                del self.families[family]
                _reap_group(family)
            self.free_slots.append(slot)
        self.tell(wire.EXITED_HEAD.pack(wire.EXITED, pid, status, usage.ru_utime + usage.ru_stime))

    def become_child(
        self, slot: int, cgroup: list[int], control_fd: int, out_fd: int, err_fd: int, forkable: bool
    ) -> NoReturn:
        """Turns the forked process into a contained child. Does not return."""
        try:
            for fd in cgroup:
                os.write(fd, b"0")  # this process; the kernel may take a while, but nobody waits for it here
            # Everything but the three pipes, /dev/null and the control socket goes: also the pidfds of the owner and
            # of siblings. Descriptors are first moved out of the way, so that none is overwritten before its use.
            wanted = [fd for fd in (self.null, out_fd, err_fd, control_fd, self.ruleset) if fd >= 0]
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for fd in wanted]
            for target, fd in enumerate(high):
                os.dup2(fd, target, inheritable=False)
            os.closerange(len(high), 4096)
            fds = self.contain(slot, 4 if self.ruleset >= 0 else -1, forkable)
            control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=3)
            child.serve(
                control,
                self.pages,
                self.interpreter,
                fds,
                self.branch if forkable else None,
                self.settings["rlimits"]["RLIMIT_NOFILE"],
            )
        except BaseException as error:  # no half-contained child may run code, and the host must learn of it
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        finally:
            _exit(97)

    def branch(self) -> int:
        """In a forkable child: makes a branch of it, with the host's leave."""
        return kernel.branch(self.numbers["clone"], self.numbers["rt_sigprocmask"], self.thread_id)

    def contain(self, slot: int, ruleset: int, forkable: bool) -> tuple[int, ...]:
        """Gives up all that the program must not have. The order matters: each step needs what later ones take.

        Returns:
            For the host: the listener of a forkable child's filter and its writable folder, if it has one.
        """
        settings = self.settings
        folder: tuple[int, ...] = ()
        uid = settings["uid_base"] + slot if settings["uid_base"] else None
        if settings["namespaces"]:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount_tmpfs("/tmp", settings["tmp_mb"], settings["tmp_inodes"], 0 if uid is None else uid)
            os.chdir("/tmp")
            if forkable:
                folder = (os.open("/tmp", os.O_PATH),)
        else:
            kernel.die_with_parent()
            if os.getppid() != self.pid:
                os._exit(98)
            os.chdir("/")
        os.setsid()  # signals to "our process group" reach nobody else
        for limit, value in self.forkable_limits if forkable else self.limits:
            # Descriptors in flight are counted for the user and held against this limit: a neighbour's could keep a
            # forkable child from sending its own. It takes the limit when it has sent them.
            if not (forkable and limit == resource.RLIMIT_NOFILE):
                resource.setrlimit(limit, (value, value))
        keep = (kernel.CAP_DAC_READ_SEARCH,) if settings["keep_read_cap"] else ()
        if uid is not None:
            if keep:
                kernel.keep_caps_over_setuid()
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        kernel.set_caps(keep)
        if not settings["namespaces"]:
            kernel.die_with_parent()  # again: a change of uid clears it
            if os.getppid() != self.pid:
                os._exit(98)
        kernel.set_not_dumpable()
        kernel.set_no_new_privs()
        if ruleset >= 0:
            kernel.landlock_restrict(ruleset)
            os.close(ruleset)
        # The filter names this process's own pid by a placeholder, so that it may signal only itself.
        if not self.program:  # tier "none", asked for by name
            return ()
        if forkable:
            return (kernel.load_seccomp_listening(self.forkable_program, self.numbers["seccomp"]), *folder)
        marker, own = struct.pack("=I", settings["pid_placeholder"]), struct.pack("=I", os.getpid())
        kernel.load_seccomp(self.program.replace(marker, own))
        return ()


def _within_own(limit: int, value: int) -> int:
    """Lowers a limit to the owner's own, if that is lower: it cannot be raised."""
    hard = resource.getrlimit(limit)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # its first member never came so far as to lead it
        os.killpg(group, signal.SIGKILL)


def _reap_group(group: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def send_with_fds(sock: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    """Sends one packet, with descriptors if there are any."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    sock.sendmsg([data], rights)
