"""Starts nsjail, and cleans up after it: what runs between the owner and the jail.

A program of its own, so that cgroups are removed also when the owner is killed and cannot do it. Standard library
only; run as ``python -I -S supervisor.py`` with one JSON argument. It ends soon after the jail, and it ends the jail
when the owner's process ends (the zygote inside watches the owner as well, so user code is gone at once).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time


def main() -> int:
    """Runs the jail to its end."""
    settings = json.loads(sys.argv[1])
    # nsjail waits for signals that an owner may have blocked or ignored: its choice survives exec.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    owner = settings["owner_pidfd"]
    config = os.memfd_create("nsjail.cfg")
    os.write(config, settings["jail"].encode())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = [settings["binary"], "--config", f"/proc/self/fd/{config}"]
    jail = subprocess.Popen(command, pass_fds=[config, *settings["pass_fds"]], stdin=subprocess.DEVNULL)
    for fd in (config, *settings["pass_fds"]):
        os.close(fd)
    jail_pidfd = os.pidfd_open(jail.pid)
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.register(jail_pidfd, select.POLLIN)
    ended = {fd for fd, _ in poll.poll()}
    if jail_pidfd not in ended:
        # The zygote ends by itself; this is for a jail that never came that far.
        poll.unregister(owner)
        if not poll.poll(500):
            jail.kill()
    code = jail.wait()
    for folder in settings["cgroups"]:
        remove_cgroup(folder)
    return code


def remove_cgroup(folder: str) -> None:
    """Removes a cgroup and its children; the kernel needs a moment after their last process has gone."""
    deadline = time.monotonic() + 2
    while os.path.isdir(folder) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(entry.path)
        with contextlib.suppress(OSError):
            os.rmdir(folder)
            return
        select.select([], [], [], 0.005)


if __name__ == "__main__":
    sys.exit(main())
