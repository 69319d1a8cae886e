"""What ``Sandbox`` promises, on both tiers."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import wait

import pytest

from retool_env.errors import ConfigurationError, SandboxClosedError, SandboxUnavailableError
from retool_env.sandbox import ExecutionStatus, Sandbox, SandboxConfig

from .conftest import assert_at_rest, n_begun, nurseries, wait_until


class TestRun:
    def test_output_and_exit(self, tier_sandbox):
        result = tier_sandbox.run("import sys\nprint('out')\nprint('err', file=sys.stderr)")
        assert (result.status, result.stdout, result.stderr) == (ExecutionStatus.OK, "out\n", "err\n")
        assert (result.exit_code, result.error_class, result.truncated) == (0, "", False)
        assert result.wall_s > 0

    @pytest.mark.parametrize(
        ("code", "shown"),
        [
            ("x = 3\nx**2", "9\n"),
            ("print(1)\nNone", "1\n"),
            ("print(2)", "2\n"),
            ("'text'", "'text'\n"),
            ("x = 5", ""),
            ("for i in range(2):\n    print(i)", "0\n1\n"),
            ("1;2", "2\n"),
            ("if True:\n    7", ""),
            ("from __future__ import annotations\ndef f(x: nothing): pass\nf.__annotations__", "{'x': 'nothing'}\n"),
            ('"""\n  kept\n"""', "'\\n  kept\\n'\n"),
            ("", ""),
            ("# only a comment", ""),
        ],
    )
    def test_the_last_expression_is_shown(self, tier_sandbox, code, shown):
        assert tier_sandbox.run(code).stdout == shown

    def test_echo_off(self, tier, make_sandbox):
        assert make_sandbox(tier=tier, echo=False).run("1 + 1").stdout == ""

    def test_each_program_is_fresh(self, tier_sandbox):
        assert tier_sandbox.run("import math; math.pi = 3; leak = 1").status == "ok"
        result = tier_sandbox.run("import math; print(math.pi > 3.1, 'leak' in globals(), __name__)")
        assert result.stdout == "True False __main__\n"

    @pytest.mark.parametrize(
        ("code", "error_class", "exit_code"),
        [
            ("1/0", "ZeroDivisionError", 1),
            ("x = (", "SyntaxError", 1),
            ("import sys; sys.exit(3)", "SystemExit", 3),
            ("import sys; sys.exit('bye')", "SystemExit", 1),
            ("raise KeyboardInterrupt", "KeyboardInterrupt", 1),
            ("import os; os._exit(9)", "SystemExit", 9),
            ("class Mine(BaseException): pass\nraise Mine", "Mine", 1),
            ("input()", "EOFError", 1),
            ("import no_such_module", "ModuleNotFoundError", 1),
            ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", 1),
        ],
    )
    def test_errors(self, tier_sandbox, code, error_class, exit_code):
        result = tier_sandbox.run(code)
        assert (result.status, result.error_class, result.exit_code) == ("error", error_class, exit_code)

    @pytest.mark.parametrize("code", ["exit()", "quit()", "import sys; sys.exit()", "raise SystemExit(0)"])
    def test_a_clean_exit_is_ok(self, tier_sandbox, code):
        assert tier_sandbox.run(code).status == "ok"

    @pytest.mark.parametrize(
        ("code", "signal"),
        [("import ctypes; ctypes.string_at(0)", "SIGSEGV"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")],
    )
    def test_a_crash_is_killed(self, tier, tier_sandbox, code, signal):
        if tier == "nsjail" and signal == "SIGKILL":
            code = (
                "import ctypes; ctypes.string_at(8)"  # there it is init of its namespace, which ignores its own SIGKILL
            )
            signal = "SIGSEGV"
        result = tier_sandbox.run(code)
        assert (result.status, result.error_class, result.exit_code) == ("killed", signal, None)

    def test_a_timeout_keeps_what_was_printed(self, tier_sandbox):
        result = tier_sandbox.run("print('before')\nwhile True: pass", timeout_s=0.5)
        assert (result.status, result.stdout, result.exit_code) == ("timeout", "before\n", None)
        assert 0.5 <= result.wall_s < 30
        assert result.cpu_s > 0.2

    def test_a_timeout_is_one_also_without_the_handler_that_writes_out(self, tier_sandbox):
        """Shortly before its deadline a program is asked for its output by a signal, which it may have left to kill."""
        code = "import signal\nsignal.signal(signal.SIGRTMAX, signal.SIG_DFL)\nwhile True: pass"
        result = tier_sandbox.run(code, timeout_s=0.5)
        assert (result.status, result.error_class) == ("timeout", "TimeoutError")

    def test_memory(self, tier, tier_sandbox):
        result = tier_sandbox.run("kept = []\nwhile True: kept.append(bytearray(b'x' * (8 << 20)))")
        if tier == "nsjail" and tier_sandbox._host.nurseries[0].zygote.memory is not None:
            assert (result.status, result.error_class) == ("memory", "MemoryError")
        else:
            assert (result.status, result.error_class) == ("error", "MemoryError")

    def test_memory_within_the_limit_is_there(self, tier_sandbox):
        result = tier_sandbox.run("x = bytearray(b'x') * (400 << 20); print(len(x) >> 20)")
        assert result.stdout == "400\n"

    def test_output_limit(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_output_bytes=10_000)
        result = sandbox.run("import os\nwhile True: os.write(1, b'a' * 1000); os.write(2, b'b' * 1000)")
        assert (result.status, result.truncated) == ("output_limit", True)
        assert len(result.stdout) + len(result.stderr) == 10_000
        exact = sandbox.run("print('a' * 9_999)")
        assert (exact.status, len(exact.stdout), exact.truncated) == ("ok", 10_000, False)
        assert sandbox.run("print('a' * 10_000)").status == "output_limit"

    def test_bytes_that_are_not_utf8(self, tier_sandbox):
        assert tier_sandbox.run("import os; os.write(1, b'caf\\xe9\\n'); None").stdout == "caf\ufffd\n"

    def test_odd_sources(self, tier_sandbox):
        assert tier_sandbox.run("print('\ud800')").error_class == "UnicodeEncodeError"
        assert tier_sandbox.run("print('a\0b')").status == "error"
        assert tier_sandbox.run("#" * 3_000_000 + "\nprint('long')").stdout == "long\n"

    def test_seeded(self, tier, make_sandbox, tier_sandbox):
        code = "import random, numpy\nprint(random.random(), numpy.random.rand(), list({'a', 'b', 'c', 'd'}))"
        first, again = tier_sandbox.run(code), tier_sandbox.run(code)
        other, same = (make_sandbox(tier=tier, preload=("numpy",), seed=1) for _ in range(2))
        assert first.stdout == again.stdout != other.run(code).stdout
        assert other.run(code).stdout == same.run(code).stdout

    def test_a_child_that_was_warmed_is_like_any_other(self, tier, make_sandbox):
        code = (
            "import gc, random, sys, threading, numpy, sympy\n"
            "print(sorted(sys.modules), sorted(globals()), random.random(), numpy.random.rand(), gc.isenabled())\n"
            "print(threading.active_count(), sorted(vars(sys.modules['__main__'])), {'p', 'q', 'r', 's'})\n"
            "b = sympy.Symbol('b', positive=True)\nprint(sympy.solve(b**2 - 9, b), sympy.expand((b + 1)**2))"
        )
        cold = make_sandbox(tier=tier, preload=None, standby=0)
        warm = make_sandbox(tier=tier, preload=None, standby=1)
        wait_until(lambda: any(child.warm for child in list(warm._host.nurseries[0].idle)), "a child is warm")
        results = [cold.run(code), warm.run(code)]
        assert results[0].stdout == results[1].stdout
        assert results[0].status == "ok"

    def test_a_traceback_shows_the_programs_own_frames_only(self, tier_sandbox):
        result = tier_sandbox.run("import json\ndef f():\n    return json.loads('{')\nf()")
        lines = [line for line in result.stderr.splitlines() if line.startswith("  File")]
        assert lines == ['  File "main.py", line 4, in <module>', '  File "main.py", line 3, in f']
        assert "return json.loads('{')" in result.stderr
        assert "retool" not in result.stderr
        assert "sandbox" not in result.stderr

    def test_what_python_does_at_exit(self, tier_sandbox):
        code = (
            "import atexit, threading\natexit.register(print, 'last')\n"
            "threading.Thread(target=lambda: print('thread')).start()"
        )
        assert tier_sandbox.run(code).stdout == "thread\nlast\n"

    def test_files_are_private_to_a_program(self, tier, tier_sandbox):
        result = tier_sandbox.run("open('mine', 'w').write('x'); import os; print(os.listdir('.'))")
        if tier == "nsjail":
            assert result.stdout == "['mine']\n"
            assert tier_sandbox.run("import os; os.listdir('.')").stdout == "[]\n"
        else:
            assert result.error_class == "PermissionError"

    def test_threads_cannot_multiply_cpu_time(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        code = (
            "import threading, hashlib\nblock = bytes(1 << 20)\n"
            "def burn():\n    while True: hashlib.sha256(block).digest()\n"
            "for _ in range(8): threading.Thread(target=burn).start()"
        )
        result = sandbox.run(code, timeout_s=1.0)
        assert result.status == "timeout"
        assert result.cpu_s <= 4.5


class TestPackages:
    @pytest.mark.parametrize(
        "name", ["numpy", "sympy", "mpmath", "scipy.optimize", "pandas", "decimal", "sqlite3", "ssl"]
    )
    def test_allowed(self, tier_sandbox, name):
        result = tier_sandbox.run(f"import {name}", timeout_s=30)
        assert (result.status, result.stderr) == ("ok", "")

    @pytest.mark.parametrize("name", ["reasoning_gym", "retool_env", "pytest", "pydantic", "gymnasium", "math_verify"])
    def test_installed_here_but_out_of_reach(self, tier_sandbox, outside, name):
        __import__(name)
        site = outside.values["SITE"]
        attempts = [
            f"import {name}",
            f"import sys; sys.path.insert(0, {site!r}); import {name}",
            f"print(open({site!r} + '/{name}/__init__.py').read())",
            f"from importlib.machinery import *\nSourceFileLoader('x', {site!r} + '/{name}/__init__.py').load_module()",
        ]
        for code in attempts:
            result = tier_sandbox.run(code)
            assert result.status == "error", code
            assert result.error_class in ("ModuleNotFoundError", "ImportError", "FileNotFoundError", "PermissionError")

    def test_the_interpreters_own_site_packages_are_out_of_reach(self, tier_sandbox):
        code = (
            "import sysconfig, os\nfolder = sysconfig.get_path('stdlib') + '/site-packages'\n"
            "open(folder + '/pip/__init__.py').read()"
        )
        assert tier_sandbox.run(code).error_class in ("FileNotFoundError", "PermissionError")

    def test_a_narrower_list(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=None, packages=("mpmath",))
        assert sandbox.run("import mpmath; print(mpmath.mpf(2))").stdout == "2.0\n"
        assert sandbox.run("import numpy").error_class == "ModuleNotFoundError"

    def test_a_wider_list_brings_dependencies(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=None, packages=("hypothesis",))
        assert sandbox.run("import hypothesis, sortedcontainers; print(1)", timeout_s=30).stdout == "1\n"

    def test_preload(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=("fractions",))
        assert (
            sandbox.run("import sys; print('fractions' in sys.modules, 'sympy' in sys.modules)").stdout
            == "True False\n"
        )

    def test_preload_of_a_forbidden_module(self, tier):
        with pytest.raises(SandboxUnavailableError, match="pytest"):
            Sandbox(tier=tier, preload=("pytest",))


class TestConcurrency:
    def test_many_at_once_each_gets_its_own(self, tier_sandbox):
        futures = [tier_sandbox.submit(f"print({i})") for i in range(100)]
        wait(futures)
        assert [future.result().stdout for future in futures] == [f"{i}\n" for i in range(100)]
        assert_at_rest(tier_sandbox)

    def test_sleeping_programs_run_side_by_side(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_concurrency=16)
        futures = [sandbox.submit("import time; time.sleep(100)", timeout_s=200) for _ in range(16)]
        wait_until(lambda: n_begun(sandbox) == 16, "all run at the same time")
        assert all(future.cancel() for future in futures)
        assert_at_rest(sandbox)

    def test_nobody_times_out_by_waiting(self, tier, make_sandbox):
        """Queued programs start later, and those that share a core get as much of it as they would alone."""
        sandbox = make_sandbox(tier=tier, max_concurrency=8)
        code = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
        results = [future.result() for future in [sandbox.submit(code, timeout_s=0.7) for _ in range(16)]]
        assert [result.status for result in results] == ["ok"] * 16
        assert max(result.wall_s for result in results) > 0.7

    def test_threads(self, tier_sandbox):
        seen = {}

        def work(i):
            seen[i] = tier_sandbox.run(f"print({i})").stdout

        threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {i: f"{i}\n" for i in range(20)}

    def test_several_event_loops(self, tier_sandbox):
        async def main(start):
            results = await asyncio.gather(*(tier_sandbox.arun(f"print({start + i})") for i in range(10)))
            return [result.stdout for result in results]

        for start in (0, 100):
            assert asyncio.run(main(start)) == [f"{start + i}\n" for i in range(10)]

    async def test_arun_does_not_block_the_loop(self, tier_sandbox):
        task = asyncio.ensure_future(tier_sandbox.arun("import time; time.sleep(0.3)"))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 5  # and not one, which would be all of a loop that is held up

    async def test_cancelling_kills_the_program(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_concurrency=1)
        task = asyncio.ensure_future(sandbox.arun("while True: pass", timeout_s=60))
        queued = asyncio.ensure_future(sandbox.arun("while True: pass", timeout_s=60))
        while not sandbox._host.running:
            await asyncio.sleep(0.001)
        for each in (task, queued):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        assert (await sandbox.arun("print(1)")).stdout == "1\n"
        assert_at_rest(sandbox)

    def test_cancelling_a_future_kills_the_program(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, max_concurrency=1)
        future = sandbox.submit("while True: pass", timeout_s=60)
        wait_until(lambda: bool(sandbox._host.running), "the program runs")
        assert future.cancel()
        assert sandbox.run("print(1)").stdout == "1\n"
        assert_at_rest(sandbox)


class TestLife:
    def test_closed(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        running = sandbox.submit("while True: pass", timeout_s=60)
        sandbox.close()
        sandbox.close()
        assert sandbox.closed
        assert running.result().status == "unavailable"
        with pytest.raises(SandboxClosedError):
            sandbox.run("1")

    def test_a_killed_zygote(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier)
        running = sandbox.submit("while True: pass", timeout_s=60)
        wait_until(lambda: n_begun(sandbox) == 1, "the program runs")
        os.kill(sandbox._host.nurseries[0].zygote.pid, signal.SIGKILL)
        assert running.result().status == "unavailable"
        assert sandbox.run("print(1)").stdout == "1\n"
        assert_at_rest(sandbox)

    def test_deepcopy_shares_and_pickle_makes_anew(self, tier_sandbox):
        assert copy.deepcopy(tier_sandbox) is tier_sandbox
        with pickle.loads(pickle.dumps(tier_sandbox)) as other:
            assert other.config == tier_sandbox.config
            assert other is not tier_sandbox
            assert other.run("print(1)").stdout == "1\n"

    def test_tier_is_what_was_asked_for(self, tier, tier_sandbox):
        assert tier_sandbox.tier == tier


class TestConfiguration:
    @pytest.mark.parametrize(
        "options",
        [
            {"tier": "docker"},
            {"timeout_s": 0},
            {"timeout_s": float("nan")},
            {"memory_mb": -1},
            {"no_such_option": 1},
            {"max_output_bytes": "many"},
            {"seed": -1},
        ],
    )
    def test_mistakes_are_named_at_once(self, options):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            Sandbox(**options)

    @pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan")])
    def test_limit_of_a_call(self, tier_sandbox, limit):
        with pytest.raises(ConfigurationError, match="timeout_s"):
            tier_sandbox.run("1", timeout_s=limit)

    def test_code_that_is_not_text(self, tier_sandbox):
        with pytest.raises(TypeError, match="bytes"):
            tier_sandbox.run(b"1")

    def test_options_replace_those_of_a_config(self, tier, make_sandbox):
        config = SandboxConfig(timeout_s=3, seed=7)
        sandbox = make_sandbox(config=config, tier=tier, seed=8)
        assert (sandbox.config.timeout_s, sandbox.config.seed) == (3, 8)

    def test_no_such_interpreter(self, tier):
        with pytest.raises(ConfigurationError, match="no interpreter"):
            Sandbox(tier=tier, python="/no/such/python")

    def test_tier_none_warns_and_limits(self):
        with pytest.warns(RuntimeWarning, match="only limits resources"):
            sandbox = Sandbox(tier="none", timeout_s=0.5)
        with sandbox:
            assert sandbox.run("print(1)").stdout == "1\n"
            assert sandbox.run("while True: pass").status == "timeout"

    def test_auto_never_takes_none(self, make_sandbox):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make_sandbox().tier in ("nsjail", "landlock")


class TestZygotes:
    def test_several_of_each_kind_share_the_work(self, tier, make_sandbox):
        sandbox = make_sandbox(tier=tier, preload=None, zygotes=2, standby=1)
        wait_until(lambda: all(nursery.zygote for nursery in nurseries(sandbox)), "all have started")
        assert [nursery.light for nursery in nurseries(sandbox)] == [False, False, True, True]
        futures = [sandbox.submit("print(1)" if i % 2 else "import sympy; print(1)") for i in range(40)]
        assert {future.result().stdout for future in futures} == {"1\n"}
        zygotes = [nursery.zygote.pid for nursery in nurseries(sandbox)]
        os.kill(zygotes[1], signal.SIGKILL)
        wait_until(lambda: nurseries(sandbox)[1].restarts == 1, "its death is noticed")
        assert sandbox.run("import numpy; print(2)").stdout == "2\n"
        wait_until(lambda: nurseries(sandbox)[1].zygote is not None, "another takes its place")
        assert nurseries(sandbox)[0].zygote.pid == zygotes[0]
        assert_at_rest(sandbox)

    @pytest.mark.parametrize(
        "code", ["__import__('num' + 'py')", "import importlib; importlib.import_module('sym' + 'py')"]
    )
    def test_a_program_that_hides_its_imports_works_in_the_light_one(self, tier, make_sandbox, code):
        sandbox = make_sandbox(tier=tier, preload=None, memory_mb=64)
        wait_until(lambda: all(nursery.zygote for nursery in nurseries(sandbox)), "all have started")
        assert sandbox.run(f"{code}\nprint('there')").stdout == "there\n"

    def test_no_light_one_where_it_is_not_wanted(self, tier, make_sandbox):
        for options in ({"light": False, "preload": None}, {"preload": ()}):
            assert len(nurseries(make_sandbox(tier=tier, **options))) == 1
