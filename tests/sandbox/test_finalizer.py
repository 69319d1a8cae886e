from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

import pytest

from retool_env.sandbox.finalizer import Finalizer, Living

from .conftest import is_gone, nurseries, wait_until


class Thing:
    pass


def functions_run_by(work: Callable[[], None]) -> list[str]:
    """Names the functions written in Python that are run: a signal's handler may run in each."""
    names = []

    def look(frame, event, argument):
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [name for name in names if name != work.__name__]


class TestCollecting:
    """An interrupt that comes as a sandbox or a session is collected is not lost in its finalizer."""

    def test_a_session(self, tier_sandbox):
        session = tier_sandbox.session()
        session.run("1")
        pid = session._seat.child.pid

        def drop():
            nonlocal session
            session = None

        assert functions_run_by(drop) == []
        wait_until(lambda: is_gone(pid), "its process is gone")

    def test_a_sandbox(self, tier, start_sandbox):
        sandbox = start_sandbox(tier=tier, preload=())
        zygote = nurseries(sandbox)[0].zygote.pid

        def drop():
            nonlocal sandbox
            sandbox = None

        assert functions_run_by(drop) == []
        wait_until(lambda: is_gone(zygote), "its zygote is gone")


class TestFinalizer:
    def test_it_runs_in_another_thread(self):
        threads, done = [], threading.Event()

        def act():
            threads.append(threading.current_thread())
            done.set()

        thing = Thing()
        Finalizer(thing, act)
        assert not done.is_set()
        del thing
        assert done.wait(30)
        assert threading.current_thread() not in threads

    def test_in_a_cycle(self):
        done = threading.Event()
        thing = Thing()
        thing.itself, thing.finalizer = thing, Finalizer(thing, done.set)
        del thing
        gc.collect()
        assert done.wait(30)

    def test_detached(self):
        done, last = [], threading.Event()
        thing, other = Thing(), Thing()
        finalizer = Finalizer(thing, lambda: done.append(1))
        finalizer.detach()
        finalizer.detach()
        Finalizer(other, last.set)
        del thing, other
        assert last.wait(30)
        assert done == []

    def test_one_that_fails_is_logged_and_others_follow(self, caplog):
        def fail():
            raise OSError("no room")

        done = threading.Event()
        thing, other = Thing(), Thing()
        Finalizer(thing, fail)
        Finalizer(other, done.set)
        del thing
        del other
        assert done.wait(30)
        assert "no room" in caplog.text

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    def test_in_a_forked_process(self):
        """What its parent has open is not its own to close; what it opens itself is."""
        inherited, thing = [], Thing()
        Finalizer(thing, lambda: inherited.append(1))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                done, own = threading.Event(), Thing()
                Finalizer(own, done.set)
                del thing, own
                status = 0 if done.wait(10) and not inherited else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_living():
    living, one, two = Living(), Thing(), Thing()
    living.add(one)
    living.add(two)
    assert living.all() == [one, two]
    del one
    assert living.all() == [two]
    for _ in range(1000):
        living.add(Thing())
    assert len(living._references) <= 2
