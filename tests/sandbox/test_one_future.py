"""A program that is awaited has one future: its caller's and the host's thread do not each make their own."""

from collections.abc import Callable

import pytest

from retool_env.errors import ForkError
from retool_env.sandbox import Sandbox
from retool_env.sandbox.execution import Job
from retool_env.sandbox.host import Host


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The futures of the jobs that are given to the host, as they are then."""
    futures: list[object] = []
    submit = Host.submit

    def noting(self: Host, job: Job, block: bool = True) -> None:
        futures.append(job._future)
        submit(self, job, block)

    monkeypatch.setattr(Host, "submit", noting)
    return futures


async def test_a_program_that_is_awaited(given: list[object], make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox()
    assert (await sandbox.arun("print(1)")).stdout == "1\n"
    sandbox.submit("print(2)").result()
    assert len(given) == 2
    assert None not in given


async def test_a_call_and_a_fork_of_a_session_that_are_awaited(
    given: list[object], make_sandbox: Callable[..., Sandbox]
) -> None:
    sandbox = make_sandbox()
    try:
        session = sandbox.session(forkable=True)
    except ForkError as error:
        pytest.skip(f"sessions cannot be forked here: {error}")
    with session:
        await session.arun("x = 1")
        with await session.afork() as branch:
            assert (await branch.arun("print(x)")).stdout == "1\n"
    assert len(given) == 3
    assert None not in given
