"""What is left when a sandbox ends, however it ends: no process, mount, cgroup, descriptor or file."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from retool_env.sandbox import Sandbox, cgroups

from .conftest import is_gone, state_of, wait_until

OWNER = """
import json, os, sys, threading
from retool_env.sandbox import Sandbox

def start():
    global sandbox
    # With its libraries in a zygote of their own in the plain case.
    sandbox = Sandbox(tier=sys.argv[1], preload=() if sys.argv[2:] else None)
    sandbox.submit("import os, time\\nprint(1)\\nwhile True: pass", timeout_s=600)

if "thread" in sys.argv:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
if "fork" in sys.argv:
    holder = os.fork()
    if holder == 0:
        import signal
        signal.pause()
else:
    holder = 0
host = sandbox._host
while not host.running:
    os.sched_yield()
zygote = host.nurseries[0].zygote
pids = [zygote.pid, zygote.process.pid, *(child.pid for child in host.nurseries[0].children.values())]
started = zygote.process.pid  # nsjail is a child of the supervisor
pids[2:2] = map(int, open(f"/proc/{started}/task/{started}/children").read().split() if sys.argv[1] == "nsjail" else ())
folder = zygote.memory.folder if zygote.memory else ""
print(json.dumps({"pids": pids, "cgroup": folder, "holder": holder}), flush=True)
if "exit" not in sys.argv:
    sys.stdin.read()
"""


def start_owner(tier: str, *ways: str, temp: Path | None = None) -> tuple[subprocess.Popen[str], dict]:
    environment = os.environ | ({} if temp is None else {"TMPDIR": str(temp)})
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tier, *ways], **pipes, text=True, env=environment)
    return owner, json.loads(owner.stdout.readline())


def mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


def temp_files() -> set[str]:
    """Lists what is ours in the folders that all processes share; others come and go there as well."""
    paths = (entry.path for folder in ("/tmp", "/dev/shm", "/var/tmp") for entry in os.scandir(folder))
    return {path for path in paths if "retool" in path or "nsjail" in path}


@pytest.fixture
def needs(tier, start_sandbox):
    start_sandbox(tier=tier).close()


@pytest.mark.usefixtures("needs")
class TestOwnerIsKilled:
    @pytest.mark.parametrize(
        "ways", [(), ("thread",), ("fork",)], ids=["plain", "made-in-a-thread", "forked-worker-lives"]
    )
    def test_nothing_survives(self, tier, ways, tmp_path):
        mounted, files = mounts(), temp_files()
        owner, seen = start_owner(tier, *ways, temp=tmp_path)
        programs = seen["pids"][3 if tier == "nsjail" else 2 :]
        assert all(state_of(pid) for pid in seen["pids"])
        owner.kill()
        wait_until(lambda: all(map(is_gone, programs)), "user code is gone")
        owner.wait()
        wait_until(lambda: all(map(is_gone, seen["pids"])), "all processes are gone")
        wait_until(lambda: not os.path.exists(seen["cgroup"]), "the cgroup is gone")
        if seen["holder"]:
            os.kill(seen["holder"], signal.SIGKILL)
        assert mounts() == mounted
        assert temp_files() - files == set()
        assert os.listdir(tmp_path) == []
        for pipe in (owner.stdin, owner.stdout, owner.stderr):
            pipe.close()

    def test_something_unread_does_not_delay_the_end(self, tier):
        """The zygote finds its socket reset then. Raised, that would end its interpreter in order, which takes long."""
        owner, seen = start_owner(tier)
        zygote, programs = seen["pids"][0], seen["pids"][3 if tier == "nsjail" else 2 :]
        owner.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(owner.pid) == "T", "it is stopped")
        os.kill(programs[-1], signal.SIGKILL)
        wait_until(lambda: not state_of(programs[-1]), "the zygote has reported its end")
        with open(f"/proc/{zygote}/fd/2") as log:
            owner.kill()
            wait_until(lambda: all(map(is_gone, programs)), "user code is gone")
            owner.wait()
            wait_until(lambda: all(map(is_gone, seen["pids"])), "all processes are gone")
            assert "Traceback" not in log.read()
        for pipe in (owner.stdin, owner.stdout, owner.stderr):
            pipe.close()

    def test_an_owner_that_exits_without_closing(self, tier):
        owner, seen = start_owner(tier, "exit")
        assert owner.wait(30) == 0
        wait_until(lambda: all(map(is_gone, seen["pids"])), "all processes are gone")
        wait_until(lambda: not os.path.exists(seen["cgroup"]), "the cgroup is gone")
        for pipe in (owner.stdin, owner.stdout, owner.stderr):
            pipe.close()


def below(pid: int) -> list[int]:
    """Lists the processes below one."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(one for child in children for one in below(child))]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.usefixtures("needs")
def test_a_learner_ends_with_its_zygote(tier):
    """One that is killed while it starts leaves nobody behind that runs programs, typical as they are."""
    script = "import sys; from retool_env.sandbox import Sandbox; Sandbox(tier=sys.argv[1], preload=['numpy'])"
    with subprocess.Popen([sys.executable, "-c", script, tier], stderr=subprocess.DEVNULL) as owner:
        found = None
        while found is None and owner.poll() is None:
            for zygote in below(owner.pid):
                learner = next(iter(below(zygote)), None)
                if learner is not None and command_of(learner) == command_of(zygote) != b"":
                    found = zygote, learner
        assert found is not None
        os.kill(found[0], signal.SIGKILL)
        wait_until(lambda: is_gone(found[1]), "the learner is gone")
        owner.wait(60)


CLOSER = """
import json, os, sys, threading, time
from retool_env.sandbox import Sandbox

def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return ""

def descriptors():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path).split(":")[0] for path in paths if os.path.lexists(path))

preload = () if sys.argv[2:] else None
Sandbox(tier=sys.argv[1], preload=preload).close()  # whatever is opened once and for all is open now
before = descriptors(), threading.active_count()
sandbox = Sandbox(tier=sys.argv[1], preload=preload)
sandbox.run("print(1)")
sandbox.submit("while True: pass", timeout_s=600)
zygote = sandbox._host.nurseries[0].zygote
pids = [zygote.pid, zygote.process.pid, *(child.pid for child in sandbox._host.nurseries[0].children.values())]
started = zygote.process.pid
pids += map(int, open(f"/proc/{started}/task/{started}/children").read().split())
folder = zygote.memory.folder if zygote.memory else ""
if len(sys.argv) > 2:
    os.kill({"supervisor": zygote.process.pid, "zygote": zygote.pid}[sys.argv[2]], int(sys.argv[3]))
sandbox.close()
deadline = time.monotonic() + 60  # orphans of a killed zygote are reaped by init, when it comes to it
while (left := [pid for pid in pids if state(pid) not in ("", "Z")]) and time.monotonic() < deadline:
    os.sched_yield()
after = descriptors(), threading.active_count()
print(json.dumps({"before": before, "after": after, "left": left, "cgroup": os.path.exists(folder)}))
"""


@pytest.mark.usefixtures("needs")
class TestClosing:
    def test_close_leaves_nothing(self, tier, tmp_path):
        mounted, files = mounts(), temp_files()
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", CLOSER, tier]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        seen = json.loads(done.stdout)
        assert seen["before"] == seen["after"]
        assert (seen["left"], seen["cgroup"], done.stderr) == ([], False, "")
        assert (mounts(), temp_files() - files, os.listdir(tmp_path)) == (mounted, set(), [])

    @pytest.mark.parametrize("who", ["supervisor", "zygote"])
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_close_copes_with_what_was_killed_or_stopped(self, tier, who, number):
        command = [sys.executable, "-c", CLOSER, tier, who, str(int(number))]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        seen = json.loads(done.stdout)
        assert (seen["left"], seen["cgroup"], done.stderr) == ([], False, "")

    def test_garbage_collection_closes(self, tier, make_sandbox):
        make_sandbox(tier=tier).close()
        sandbox = Sandbox(tier=tier, preload=())
        zygote = sandbox._host.nurseries[0].zygote
        pids = [zygote.pid, zygote.process.pid]
        del sandbox, zygote
        gc.collect()
        wait_until(lambda: all(map(is_gone, pids)), "all processes are gone")

    def test_descriptors_stay_flat(self, tier):
        command = [sys.executable, "-c", COUNTER, tier]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        first, last = json.loads(done.stdout)
        assert last <= first


COUNTER = """
import json, os, sys
from retool_env.sandbox import Sandbox

def own_descriptors():
    host, last, times = sandbox._host, None, 0
    while times < 200:  # the host's thread may be in the middle of anything: until it stays the same
        os.sched_yield()
        if host.scheduler.busy or any(
            nursery.starting or nursery.requested or nursery._warming or len(nursery.children) != len(nursery.idle)
            for nursery in host.nurseries
        ):
            times = 0
            continue
        now = len(os.listdir("/proc/self/fd")) - 4 * sum(len(nursery.children) for nursery in host.nurseries)
        times = times + 1 if now == last else 0
        last = now
    return last

sandbox = Sandbox(tier=sys.argv[1], preload=())
seen = []
for i in range(200):
    sandbox.run("print(1)" if i % 10 else "import os; os.abort()")
    if i in (20, 199):
        seen.append(own_descriptors())
print(json.dumps(seen))
sandbox.close()
"""


class TestOtherProcesses:
    def test_a_forked_worker_gets_a_zygote_of_its_own(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        assert sandbox.run("print(1)").stdout == "1\n"
        mine = sandbox._host.nurseries[0].zygote.pid
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def work():
            outputs = [sandbox.run(f"print({i})").stdout for i in range(3)]
            queue.put((outputs, sandbox._host.nurseries[0].zygote.pid))
            sandbox.close()

        worker = context.Process(target=work)
        worker.start()
        worker.join(60)
        outputs, zygote = queue.get()
        assert (outputs, worker.exitcode) == (["0\n", "1\n", "2\n"], 0)
        assert zygote != mine == sandbox._host.nurseries[0].zygote.pid
        assert sandbox.run("print(2)").stdout == "2\n"

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_a_started_worker_makes_its_own(self, tier, make_sandbox, method):
        sandbox = make_sandbox(tier=tier)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            futures = [pool.submit(Sandbox.run, sandbox, f"print({i})") for i in range(4)]
            assert [future.result(60).stdout for future in futures] == ["0\n", "1\n", "2\n", "3\n"]
        assert sandbox.run("print(4)").stdout == "4\n"

    def test_a_forked_worker_that_only_exits_disturbs_nothing(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        running = sandbox.submit("import time; time.sleep(0.5); print('whole')")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        assert running.result().stdout == "whole\n"
        assert sandbox.run("print(1)").stdout == "1\n"


def test_cgroups_are_found_where_they_can_be_made():
    base = cgroups.find_base()
    if base is None:
        pytest.skip("no memory cgroup can be made here")
    memory = cgroups.MemoryCgroups(base, limit_mb=64)
    try:
        cgroup = memory.take()
        enter = "import sys; open(sys.argv[1], 'w').write('0'); x = bytearray(b'x') * (int(sys.argv[2]) << 20)"
        for size, status in (("16", 0), ("200", -signal.SIGKILL), ("16", 0)):
            assert subprocess.run([sys.executable, "-c", enter, cgroup.procs, size]).returncode == status
            assert cgroup.oom_killed() is (status != 0)
        cgroup.release()
        assert memory.take() is cgroup
    finally:
        memory.remove()
    assert not os.path.exists(memory.folder)
