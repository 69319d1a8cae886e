"""What ``retool doctor`` finds out about this machine is what a sandbox then does."""

from __future__ import annotations

import re

import pytest

from retool_env.errors import ConfigurationError, ForkError
from retool_env.sandbox import SandboxConfig, doctor, immortal
from retool_env.sandbox.doctor import Check, Report


@pytest.fixture(scope="module")
def report() -> Report:
    return doctor.examine(SandboxConfig(preload=()))


def check_of(checks: tuple[Check, ...], name: str) -> Check:
    (check,) = (check for check in checks if check.name == name)
    return check


def test_whether_sessions_can_be_forked(report, tier, tier_sandbox):
    (of_tier,) = (each for each in report.tiers if each.tier == tier)
    check = check_of(of_tier.checks, "sessions can be forked")
    if check.ok:
        assert (check.detail, check.mend) == ("yes", "")
        tier_sandbox.session(forkable=True).close()
    else:
        with pytest.raises(ForkError, match=re.escape(check.detail)):
            tier_sandbox.session(forkable=True)


def test_why_sessions_cannot_be_forked():
    check = doctor._fork_check("none")
    assert not check.ok
    assert "contains nothing" in check.detail


def test_whether_immortal_objects_are_possible(report, tier, make_sandbox):
    check = check_of(report.system, "immortal objects")
    assert check.ok is immortal.supported()
    if check.ok:
        assert make_sandbox(tier=tier, preload=(), immortal=True).run("print(1)").stdout == "1\n"
    else:
        assert "3.12" in check.mend
        with pytest.raises(ConfigurationError, match="immortal"):
            make_sandbox(tier=tier, preload=(), immortal=True)


def test_versions_with_immortal_objects():
    versions = ("3.11.9", "3.12.0", "3.12.11", "3.13.0rc1", "3.14.0", "3.1.2")
    assert [version for version in versions if immortal.supports(version)] == ["3.12.0", "3.12.11", "3.13.0rc1"]
