"""Options and fixtures for the whole suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import Sandbox, landlock

TIERS = ("nsjail", "landlock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-tiers",
        default="",
        help="comma-separated sandbox tiers whose tests fail, instead of being skipped, where the tier cannot run",
    )
    parser.addoption(
        "--require-engines",
        action="store_true",
        help="tests against real engines fail, instead of being skipped, where an engine or the small model is missing",
    )
    parser.addoption(
        "--require-verl",
        action="store_true",
        help="tests in the real verl fail, instead of being skipped, where it is not installed",
    )
    parser.addoption(
        "--require-openrlhf",
        action="store_true",
        help="tests in the real OpenRLHF fail, instead of being skipped, where it is not installed",
    )
    parser.addoption("--landlock-abi", type=int, help="use at most this Landlock ABI, as an older kernel would")


def pytest_configure(config: pytest.Config) -> None:
    landlock.mask_abi(config.getoption("--landlock-abi"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tier" in metafunc.fixturenames:
        tiers = [pytest.param(tier, marks=getattr(pytest.mark, tier)) for tier in TIERS]
        metafunc.parametrize("tier", tiers, scope="session")


@pytest.fixture(scope="session")
def start_sandbox(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    """Returns a function that starts a sandbox; a tier that cannot run skips the test or, if required, fails it.

    Nothing is preloaded unless the test asks for it: that takes seconds each time, and few tests are about it.
    """
    required = request.config.getoption("--require-tiers").split(",")

    def start(**options: object) -> Sandbox:
        try:
            return Sandbox(**{"preload": ()} | options)
        except SandboxUnavailableError as error:
            if options.get("tier") in required:
                pytest.fail(f"tier {options['tier']} is required and does not run here: {error}", pytrace=False)
            pytest.skip(f"tier {options.get('tier')} does not run here: {error}")

    return start


@pytest.fixture(scope="session")
def tier_sandbox(tier: str, start_sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    """One sandbox of each tier, shared by the tests that do not change it."""
    with start_sandbox(tier=tier, timeout_s=5.0, preload=None) as sandbox:
        yield sandbox


@pytest.fixture
def make_sandbox(start_sandbox: Callable[..., Sandbox]) -> Iterator[Callable[..., Sandbox]]:
    """Returns a function that makes sandboxes, closed after the test."""
    made: list[Sandbox] = []

    def make(**options: object) -> Sandbox:
        made.append(start_sandbox(**options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()
