"""Odd owners and odd programs: neither may cost anybody else a result."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from retool_env.errors import ConfigurationError
from retool_env.sandbox import Sandbox

from .conftest import assert_at_rest


def run_owner(tier: str, before: str, after: str = "", **options: object) -> str:
    """Runs an owner of its own: code before and after it has made a sandbox; returns what it prints."""
    script = f"import os, resource, signal, sys\n{textwrap.dedent(before)}\n"
    script += f"from retool_env.sandbox import Sandbox\nsandbox = Sandbox(tier={tier!r}, preload=())\n"
    script += textwrap.dedent(after or "print([sandbox.run(f'print({i})').stdout for i in range(3)])")
    # nsjail is a child of what was started; the zygote's children are gone with it.
    script += (
        "\nstarted = next(each.zygote for each in sandbox._host.nurseries if each.zygote).process.pid\n"
        "below = open(f'/proc/{started}/task/{started}/children').read().split()\nsandbox.close()\n"
        "assert not [pid for pid in below if os.path.exists(f'/proc/{pid}')], below\n"
        "from retool_env.sandbox import cgroups\nbase = cgroups.find_base()\n"
        "names = os.listdir(base.folder) if base else []\n"
        "own = [name for name in names if name.startswith(f'retool-{os.getpid()}-')]\n"
        "assert not own, own\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def needs(tier_sandbox):
    """The tier runs here; every test that follows may rely on it."""


class TestOddOwners:
    def test_ignored_child_signals(self, tier):
        many = "print({f.result().status for f in [sandbox.submit('print(1)') for _ in range(30)]})"
        assert "'ok'" in run_owner(tier, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)", many)

    def test_blocked_signals(self, tier):
        after = "print(sandbox.run('print(\"before\")\\nwhile True: pass', timeout_s=0.5).stdout)"
        blocked = "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())"
        assert run_owner(tier, blocked, after) == "before\n\n"

    def test_closed_standard_files(self, tier):
        before = "keep = os.dup(1)\nfor fd in range(3): os.close(fd)"
        after = "os.write(keep, sandbox.run('print(1)').stdout.encode())"
        assert run_owner(tier, before, after) == "1\n"

    @pytest.mark.parametrize("limit", [64, 256, 512])
    def test_few_descriptors(self, tier, limit):
        before = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))"
        after = "print({str(f.result().status) for f in [sandbox.submit('print(1)') for _ in range(40)]})"
        assert run_owner(tier, before, after) == "{'ok'}\n"

    def test_running_out_of_descriptors(self, tier):
        after = """
            held = []
            try:
                while True: held.append(os.dup(0))
            except OSError:
                pass
            during = {str(f.result().status) for f in [sandbox.submit('print(1)') for _ in range(60)]}
            for fd in held: os.close(fd)
            sandbox.run('print(1)')
            print(during <= {'ok', 'unavailable'}, sandbox.run('print(1)').stdout)
        """
        before = "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
        assert run_owner(tier, before, after) == "True 1\n\n"

    def test_deleted_folder_and_odd_environment(self, tier, tmp_path):
        # numpy first: CPython 3.13.0 cannot import it in a folder that is gone.
        before = "import numpy, retool_env.sandbox.sandbox\n"
        before += f"os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd())"
        environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "1", "LANG": "C", "PYTHONSAFEPATH": ""}
        assert "'2\\n'" in run_owner(tier, before, env=environment)

    def test_submitting_in_a_signal_handler(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        futures = []
        before = signal.signal(signal.SIGALRM, lambda *_: futures.append(sandbox.submit("print(1)")))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for _ in range(300):
                sandbox.submit("print(2)").cancel()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert futures
        assert {future.result(60).stdout for future in futures} == {"1\n"}


class TestCallbacks:
    def test_running_in_a_callback_is_an_error_and_not_a_deadlock(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        raised, told = [], threading.Event()

        def callback(future):
            try:
                sandbox.run("print(2)")
            except BaseException as error:
                raised.append(error)
            told.set()

        sandbox.submit("import time; time.sleep(0.2)").add_done_callback(callback)
        assert told.wait(30)
        assert "would wait for itself" in str(raised[0])
        assert sandbox.run("print(3)").stdout == "3\n"

    def test_a_callback_that_exits(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        future = sandbox.submit("import time; time.sleep(0.2)")
        future.add_done_callback(lambda _: sys.exit(1))
        assert future.result(30).status == "ok"
        assert sandbox.run("print(3)").stdout == "3\n"


class TestBounds:
    @pytest.mark.parametrize("limit", [3e6, 86401])
    def test_a_limit_longer_than_a_day(self, tier_sandbox, limit):
        with pytest.raises(ConfigurationError, match="86400"):
            tier_sandbox.run("print(1)", timeout_s=limit)
        assert tier_sandbox.run("print(1)", timeout_s=86400).stdout == "1\n"

    def test_finished_programs_are_forgotten_while_a_long_one_runs(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        long = sandbox.submit("import time; time.sleep(600)", timeout_s=600)
        for _ in range(200):
            assert sandbox.submit("print(1)", timeout_s=700).result().status == "ok"
        assert len(sandbox._host.running.deadlines) < 100
        long.cancel()

    def test_many_children(self, tier, make_sandbox):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft < 1024:
            pytest.skip(f"the limit on open files is {soft}")
        sandbox = make_sandbox(tier=tier, max_concurrency=100, standby=20)
        futures = [sandbox.submit("import time; time.sleep(0.3)", timeout_s=60) for _ in range(150)]
        assert {str(future.result().status) for future in futures} == {"ok"}
        assert_at_rest(sandbox)


class TestOddPrograms:
    @pytest.mark.parametrize("ending", ["sys.exit(0)", "pass"], ids=["exit", "end"])
    def test_output_of_threads_and_atexit_is_not_lost(self, tier_sandbox, ending):
        code = (
            "import atexit, sys, threading, time\natexit.register(print, 'bye')\n"
            "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        )
        result = tier_sandbox.run(code + ending)
        assert (result.status, result.stdout) == ("ok", "thread\nbye\n")
        failed = tier_sandbox.run(code + "1/0")
        assert (failed.error_class, failed.stdout) == ("ZeroDivisionError", "thread\nbye\n")

    def test_alarms_belong_to_the_program(self, tier_sandbox):
        code = (
            "import signal, time\ndef stop(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, stop)\n"
            "end = time.monotonic() + 0.7\nwhile time.monotonic() < end: pass\nprint('done')"
        )
        assert tier_sandbox.run(code, timeout_s=1.0).stdout == "done\n"
        assert tier_sandbox.run("import signal; print(signal.getsignal(signal.SIGALRM))").stdout == "0\n"
        own = tier_sandbox.run("import signal\nsignal.alarm(0)\nprint('kept')\nwhile True: pass", timeout_s=0.5)
        assert (own.status, own.stdout) == ("timeout", "kept\n")

    @pytest.mark.parametrize(("code", "exit_code"), [("-1", 255), ("256", 0), ("257", 1), ("10**30", 0)])
    def test_exit_codes_are_bytes(self, tier_sandbox, code, exit_code):
        result = tier_sandbox.run(f"import sys; sys.exit({code})")
        assert (result.exit_code, result.status) == (exit_code, "error" if exit_code else "ok")

    def test_an_empty_packet_is_no_end(self, tier_sandbox):
        code = "import socket\ns = socket.socket(fileno=3)\ns.send(b'')\ns.detach()\nprint(2)"
        result = tier_sandbox.run(code, timeout_s=60)
        assert (result.status, result.stdout) == ("ok", "2\n")
        assert result.wall_s < 50

    def test_a_program_larger_than_its_memory(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, memory_mb=64)
        assert sandbox.run("#" * (7 << 20) + "\nprint(1)").stdout == "1\n"
        for result in (sandbox.run("#" * (9 << 20)), sandbox.submit("#" * (120 << 20)).result()):
            assert (result.status, result.error_class) == ("error", "MemoryError")
            assert "8388608 are the most" in result.stderr
        assert sandbox.run("print(1)").stdout == "1\n"


class TestDistributions:
    def make(self, folder, name: str, files: dict[str, str]) -> None:
        record = []
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            record.append(f"{path},,")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("\n".join([*record, f"{name}-1.0.dist-info/METADATA,,"]))

    def test_a_shared_namespace_opens_only_what_was_allowed(self, tier, make_sandbox, tmp_path, monkeypatch):
        self.make(tmp_path, "part-a", {"shared_space/a/__init__.py": "value = 'a'", "shared_space/one.py": "value = 1"})
        self.make(tmp_path, "part-b", {"shared_space/b/__init__.py": "value = 'b'"})
        self.make(tmp_path, "part-c", {"shared_space/c/deep/__init__.py": "value = 'c'"})
        monkeypatch.syspath_prepend(str(tmp_path))
        sandbox = make_sandbox(tier=tier, packages=("part-c", "part-b"))
        code = "import shared_space.c.deep as c, shared_space.b as b; print(c.value, b.value)"
        assert sandbox.run(code).stdout == "c b\n"
        assert sandbox.run("import shared_space.a").error_class == "ModuleNotFoundError"
        for path in (f"{tmp_path}/shared_space/a/__init__.py", "/opt/site/shared_space/a/__init__.py"):
            assert sandbox.run(f"open({path!r})").error_class in ("FileNotFoundError", "PermissionError")

    def test_an_install_that_lists_no_files_is_an_error(self, tier, tmp_path, monkeypatch):
        self.make(tmp_path, "ghost", {})
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigurationError, match="ghost"):
            Sandbox(tier=tier, packages=("ghost",))


def test_a_fork_at_any_moment_leaves_nothing_open(tier, make_sandbox):
    sandbox = make_sandbox(tier=tier)
    futures = [sandbox.submit("print(1)") for _ in range(200)]
    leaks = []
    for _ in range(20):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
                kinds = [os.readlink(path) for path in paths if os.path.lexists(path)]
                os.write(write, b"%d" % sum("pidfd" in kind or "eventpoll" in kind for kind in kinds))
            finally:
                os._exit(0)
        os.close(write)
        leaks.append(os.read(read, 16))
        os.close(read)
        os.waitpid(pid, 0)
    assert {future.result().stdout for future in futures} == {"1\n"}
    assert max(map(int, leaks)) <= min(map(int, leaks)) + 1


def test_an_owner_with_limits_of_its_own(tier):
    """Limits that are lower than ours stay; they cannot be raised."""
    before = "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    assert run_owner(tier, before) == "['0\\n', '1\\n', '2\\n']\n"
