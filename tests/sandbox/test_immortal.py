"""Immortal objects, each test in a process of its own: on the running interpreter and on others that are installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from retool_env.sandbox import immortal

ROOT = Path(__file__).parents[2]

_PRELUDE = """
import gc, importlib.util, os, sys, weakref
sys.stdout.reconfigure(line_buffering=True)
spec = importlib.util.spec_from_file_location("immortal", sys.argv[1])
immortal = importlib.util.module_from_spec(spec)
spec.loader.exec_module(immortal)
import asyncio, decimal, fractions, json, random, re, statistics, typing
third_party = all(importlib.util.find_spec(name) for name in ("numpy", "sympy"))
if third_party:
    import numpy as np, numpy.linalg, numpy.random, sympy as sp
"""


def _interpreter(version: str) -> str | None:
    """Returns an interpreter of that version, this one where it is of that version: it has numpy and sympy."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    found = subprocess.run([ROOT / "scripts/find_python.sh", version], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


@pytest.fixture(scope="module", params=["3.12", "3.13"])
def interpreter(request):
    python = _interpreter(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here")
    return python


def run(python: str, program: str) -> str:
    """Runs a program after the prelude; returns what it printed. It has to end well, by an ordinary exit too."""
    code = _PRELUDE + textwrap.dedent(program)
    command = [python, "-c", code, immortal.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_supported_on_this_interpreter_or_refused():
    assert immortal.supported() == (sys.version_info[:2] in ((3, 12), (3, 13)))
    if not immortal.supported():
        with pytest.raises(RuntimeError, match=r"3\.12 and 3\.13"):
            immortal.immortalize()


@pytest.mark.parametrize(
    ("attribute", "value"), [("version_info", (3, 14, 0)), ("maxsize", 2**31 - 1), ("abiflags", "t"), ("abiflags", "d")]
)
def test_unknown_interpreters_are_refused(monkeypatch, attribute, value):
    monkeypatch.setattr(sys, attribute, value)
    assert not immortal.supported()


def test_counts_of_what_was_loaded_do_not_move(interpreter):
    run(
        interpreter,
        """
        def function(argument, other=1.5):
            return "a constant of its own", argument
        shared = [json, json.dumps, json.dumps.__code__, function.__defaults__, function.__defaults__[0],
                  function.__code__.co_consts, function.__code__.co_name, decimal.Decimal, sys.modules, object(),
                  {"k": [1000001]}, "text %d" % 7, re.compile("a+"), typing.List[int]]
        if third_party:
            shared += [np, np.array, np.linalg.solve, np.ndarray, sp, sp.solve, sp.Symbol, sp.pi]
        before = [sys.getrefcount(thing) for thing in shared]
        assert all(count < 1 << 31 for count in before if count != 0xFFFFFFFF)
        assert immortal.immortalize() > len(shared)
        assert immortal.immortalize() < 20  # what this line and the one before have made
        marked = [sys.getrefcount(thing) for thing in shared]
        holders = [list(shared) for _ in range(100)]
        assert [sys.getrefcount(thing) for thing in shared] == marked == [0xFFFFFFFF] * len(shared)
        holders.clear()
        assert [sys.getrefcount(thing) for thing in shared] == marked
        """,
    )


def test_frozen_objects_too_and_the_collector_is_left_as_it_was(interpreter):
    run(
        interpreter,
        """
        thing = {"frozen": [object()]}
        gc.freeze()
        gc.disable()
        immortal.immortalize()
        assert not gc.isenabled() and gc.get_freeze_count() > 0
        assert sys.getrefcount(thing) == sys.getrefcount(thing["frozen"][0]) == 0xFFFFFFFF
        gc.enable()
        immortal.immortalize()
        assert gc.isenabled()
        """,
    )


def test_frames_and_generators_are_left_out(interpreter):
    run(
        interpreter,
        """
        def generate():
            yield object()
            yield object()
        async def wait():
            pass
        generator, coroutine, frame = generate(), wait(), sys._getframe()
        next(generator)
        immortal.immortalize()
        for thing in (generator, coroutine, frame):
            assert sys.getrefcount(thing) < 1000
        next(generator)
        assert next(generator, None) is None
        coroutine.close()
        """,
    )


def test_programs_free_their_own_memory(interpreter):
    run(
        interpreter,
        """
        gc.collect()
        immortal.immortalize()
        gc.freeze()
        class Node: pass
        node = Node()
        gone = weakref.ref(node)
        del node
        assert gone() is None  # at once, by its count
        a, b = Node(), Node()
        a.other, b.other = b, a
        ended = []
        weakref.finalize(a, ended.append, True)
        del a, b
        gc.collect()
        assert ended == [True]  # a cycle, by the collector
        assert not gc.garbage

        def work():
            table = {i: [str(i)] * 3 for i in range(20000)}
            text = json.loads(json.dumps({str(k): v for k, v in table.items()}))
            if third_party:
                x = sp.symbols("x")
                sp.expand((x + 1) ** 7), np.ones(100000).sum()
            return len(text)
        def resident():
            return int(open("/proc/self/statm").read().split()[1])
        for _ in range(5):
            work()
        before, blocks = resident(), sys.getallocatedblocks()
        for _ in range(20):
            assert work() == 20000
        assert resident() - before < 5000, "pages"  # each round alone takes some thousands
        assert sys.getallocatedblocks() - blocks < 2000
        """,
    )


def test_what_was_loaded_still_works(interpreter):
    out = run(
        interpreter,
        """
        immortal.immortalize()
        gc.freeze()
        gc.collect()
        for _ in range(3):  # also after bytecode is specialised
            print(json.dumps({"a": [1, 2.5, None]}), fractions.Fraction(1, 3) + 1, decimal.Decimal("1.1") * 2)
            print(re.sub("b+", "-", "abbc"), statistics.mean([1, 2, 3]), f"{1/3:.3f}", sorted({"b": 1, "a": 2}))
            print(asyncio.run(asyncio.sleep(0, "slept")), sum(i for i in range(10)), "".join(["x"] * 3))
            class Own(decimal.Decimal):
                pass
            print(Own("2") + 1, isinstance(Own("2"), decimal.Decimal))
            json.own = object()
            del json.own
            try:
                1 / 0
            except ZeroDivisionError as error:
                print(repr(error))
            exec("import math as m\\nprint(m.gcd(12, 18))", {})
        """,
    )
    assert out.count("slept 45 xxx") == 3
    assert out.count("3 True") == 3
    assert out.count("\n") == 18


def test_numpy_and_sympy_still_work(interpreter):
    out = run(
        interpreter,
        """
        if not third_party:
            print("none")
            sys.exit()
        immortal.immortalize()
        gc.freeze()
        x, n = sp.symbols("x"), sp.symbols("n", integer=True)
        for _ in range(3):
            assert sp.solve(x**2 - 5*x + 6, x) == [2, 3]
            assert str(sp.integrate(sp.exp(x) * x, x)) == "(x - 1)*exp(x)"
            assert sp.summation(n**2, (n, 1, 10)) == 385
            assert sp.simplify(sp.sin(x)**2 + sp.cos(x)**2) == 1
            assert str(sp.expand((x + 1)**3)) == "x**3 + 3*x**2 + 3*x + 1"
            assert sp.Matrix([[1, 2], [3, 4]]).det() == -2
            a = np.arange(9.0).reshape(3, 3)
            assert np.allclose(np.linalg.eigvals(a).sum(), a.trace())
            assert np.allclose(np.linalg.solve(a + np.eye(3), np.ones(3)) @ (a + np.eye(3)).T, 1)
            np.random.seed(3)
            first = np.random.rand()
            np.random.seed(3)
            assert np.random.rand() == first
            a = a.copy()
            a.resize((4, 3))
            assert a.shape == (4, 3) and sp.lambdify(x, x**2 + 1)(np.array([2])) == 5
            from sympy.core.cache import clear_cache
            clear_cache()
        print("done")
        """,
    )
    # Another interpreter than the one of this run may have neither; the one of this run has both.
    assert out.strip() == "done" or (out.strip() == "none" and interpreter != sys.executable)


def test_a_forked_child_copies_less(interpreter):
    """Minor faults of a child that touches 200000 preloaded objects: the reason for all this."""
    out = run(
        interpreter,
        """
        import resource
        things = [[i] for i in range(200_000)]
        gc.collect()
        gc.freeze()
        gc.disable()
        def faults_of_child():
            pid = os.fork()
            if pid == 0:
                for thing in things:
                    pass
                os._exit(0)
            _, status, usage = os.wait4(pid, 0)
            assert status == 0
            return usage.ru_minflt
        mortal = faults_of_child()
        immortal.immortalize()
        print(mortal, faults_of_child())
        """,
    )
    mortal, shared = map(int, out.split())
    assert mortal > 2000
    assert shared < mortal / 4
