"""``shared_sandbox``: one for all attempts of a process, and another process's own."""

import os
from collections.abc import Iterator

import pytest

from retool_env.sandbox import SandboxConfig
from retool_env.shared_sandbox import close_shared_sandboxes, shared_sandbox


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    close_shared_sandboxes()


def test_equal_configurations_share_one() -> None:
    assert shared_sandbox(SandboxConfig(timeout_s=3)) is shared_sandbox(SandboxConfig(timeout_s=3.0))
    assert shared_sandbox() is shared_sandbox(SandboxConfig())
    assert shared_sandbox() is not shared_sandbox(SandboxConfig(timeout_s=3))


def test_nothing_starts_before_it_is_used() -> None:
    sandbox = shared_sandbox()
    assert sandbox.own is None
    assert sandbox.get().run("print(6 * 7)").stdout == "42\n"
    assert shared_sandbox().own is sandbox.own


def test_closing_ends_them_and_the_next_one_is_new() -> None:
    sandbox = shared_sandbox()
    running = sandbox.get()
    close_shared_sandboxes()
    assert running.closed
    assert shared_sandbox() is not sandbox


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_its_own() -> None:
    parents = shared_sandbox()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if shared_sandbox() is not parents else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert shared_sandbox() is parents
