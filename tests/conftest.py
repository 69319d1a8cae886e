"""Options and fixtures for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retool_env.errors import SandboxUnavailableError
from retool_env.sandbox import Sandbox

TIERS = ("nsjail", "landlock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-tiers",
        default="",
        help="comma-separated sandbox tiers that must run here: their tests fail, instead of being skipped, where they cannot",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tier" in metafunc.fixturenames:
        tiers = [pytest.param(tier, marks=getattr(pytest.mark, tier)) for tier in TIERS]
        metafunc.parametrize("tier", tiers, scope="session")


@pytest.fixture(scope="session")
def tier_sandbox(tier: str, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox of each tier, shared by the tests that do not change it."""
    with start_or_skip(request, tier=tier, timeout_s=5.0) as sandbox:
        yield sandbox


@pytest.fixture
def make_sandbox(request: pytest.FixtureRequest) -> Iterator[object]:
    """Returns a function that makes sandboxes, closed after the test."""
    made: list[Sandbox] = []

    def make(**options: object) -> Sandbox:
        made.append(start_or_skip(request, **options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


def start_or_skip(request: pytest.FixtureRequest, **options: object) -> Sandbox:
    try:
        return Sandbox(**options)
    except SandboxUnavailableError as error:
        required = request.config.getoption("--require-tiers").split(",")
        if options.get("tier") in required:
            pytest.fail(f"tier {options['tier']} is required and does not run here: {error}", pytrace=False)
        pytest.skip(f"tier {options.get('tier')} does not run here: {error}")
