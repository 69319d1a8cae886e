"""The host's reader of what a child sends, over socket pairs whose other end is the test's: thousands of examples."""

from __future__ import annotations

import os
import signal

from hypothesis import given
from hypothesis import strategies as st

from retool_env.sandbox import wire

from .conftest import Puppet, claim, output_of
from .fuzzing import PACKETS, assert_well_formed, fixed, is_clean, verdict_of_claim

PUPPET_STEPS = st.one_of(
    st.tuples(st.just("out"), st.binary(min_size=1, max_size=700)),
    st.tuples(st.just("err"), st.binary(min_size=1, max_size=700)),
    st.tuples(st.just("send"), st.one_of(PACKETS, st.just(b""), st.integers(300, 5000).map(bytes))),
    st.tuples(st.just("hear"), st.none()),
    st.tuples(st.just("hang up"), st.none()),
)
WAIT_STATUSES = st.integers(0, 255).map(lambda code: code << 8) | st.integers(1, 64)


class TestJobs:
    """The reader alone: thousands of examples, in the order in which the host's thread would come to them."""

    @fixed(2000)
    @given(st.lists(PUPPET_STEPS, max_size=10), WAIT_STATUSES, st.floats(0, 100))
    def test_any_bytes_in_any_order(self, script, wait_status, cpu_s):
        puppet = Puppet(max_output=4096)
        out, err, first, open_ = b"", b"", None, True
        outcome = None
        try:
            for what, value in script:
                if what == "hear":
                    outcome = puppet.hear()
                elif what == "hang up" and open_:
                    puppet.control.shutdown(1)
                    open_ = False
                elif what == "send" and open_:
                    puppet.control.send(value)
                    first = first or value
                elif what in ("out", "err"):
                    os.write(puppet.out if what == "out" else puppet.err, value)
                    out, err = (out + value, err) if what == "out" else (out, err + value)
                if outcome is not None:
                    break
            outcome = outcome or puppet.hear()
            empty = any(step == ("send", b"") for step in script)
            if first and not (empty and not open_):
                assert outcome is not None
            claimed = outcome is not None
            if claimed and not puppet.job.silent:
                out, err = (said + more for said, more in zip((out, err), output_of(first), strict=True))
            if outcome is None:
                outcome = puppet.job.exited(wait_status, cpu_s)
            result = puppet.result(outcome)
        finally:
            puppet.close()
        assert_well_formed(result)
        whole = len(out) + len(err) <= 4096
        assert result.truncated is not whole
        if whole:
            assert (outcome.stdout, outcome.stderr) == (out, err)
        else:
            assert len(outcome.stdout) + len(outcome.stderr) == 4096
            assert out.startswith(outcome.stdout)
            assert err.startswith(outcome.stderr)
        if not whole and not (wait_status == signal.SIGKILL and not claimed):
            assert (result.status, result.exit_code, result.error_class) == ("output_limit", None, "")
        elif claimed and whole:
            assert (result.status, result.exit_code) == verdict_of_claim(first)
        elif whole and os.WIFEXITED(wait_status):
            assert result.exit_code == os.WEXITSTATUS(wait_status)
            assert result.status == ("error" if result.exit_code else "ok")
        elif whole:
            assert result.status in ("killed", "timeout")
            assert result.exit_code is None

    @fixed(1000)
    @given(st.lists(PUPPET_STEPS.filter(lambda step: step[0] != "hear"), max_size=10))
    def test_any_bytes_to_a_thread_that_waits_for_itself(self, script):
        """What ``run`` does in the caller's thread: it hears the end, or leaves the rest to the host's thread."""
        puppet = Puppet(max_output=4096, begun=False)
        child, job = puppet.child, puppet.job
        sent = []
        try:
            for what, value in script:
                if what == "send":
                    puppet.control.send(value)
                    sent.append(value)
                elif what in ("out", "err"):
                    os.write(puppet.out if what == "out" else puppet.err, value)
            puppet.control.shutdown(1)
            outcome = job.run_borrowed(child)
        finally:
            puppet.close()
        if outcome is None:
            assert job.over_cap or job.silent
        else:
            assert_well_formed(puppet.result(outcome))
            assert (outcome.status, outcome.exit_code) == verdict_of_claim(next(filter(None, sent)))

    @fixed(500)
    @given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 300)), max_size=80))
    def test_only_claims_of_this_call_or_a_later_one_count(self, claims):
        """What is left of an earlier call is passed over; a session that sends too much of it is not listened to."""
        puppet = Puppet(call=3)
        try:
            for call, code in claims:
                puppet.control.send(claim(code, b"Name", call=call))
            outcome = puppet.hear()
        finally:
            puppet.close()
        valid = next(((index, code & 0xFF) for index, (call, code) in enumerate(claims) if call >= 3), None)
        if valid is not None and valid[0] < 60:
            assert outcome is not None
            assert outcome.exit_code == valid[1]
            assert outcome.claimed
        elif valid is None and len(claims) < 60:
            assert outcome is None

    @fixed(500)
    @given(*[st.binary(max_size=3000)] * 4, st.integers(0, (1 << 32) - 1) | st.none())
    def test_output_in_a_claim(self, out, err, late_out, late_err, size):
        """It follows what was written before; a wrong length only moves the border between the two."""
        packet = claim(0) + wire.CLAIM_OUTPUT.pack(len(late_out) if size is None else size) + late_out + late_err
        puppet = Puppet(max_output=1 << 20)
        try:
            os.write(puppet.out, out)
            os.write(puppet.err, err)
            puppet.control.send(packet)
            outcome = puppet.hear()
        finally:
            puppet.close()
        assert outcome is not None
        assert (outcome.status, outcome.exit_code, outcome.truncated) == ("ok", 0, False)
        split = len(late_out) if size is None else size
        late = late_out + late_err
        assert (outcome.stdout, outcome.stderr) == (out + late[:split], err + late[split:])


def test_thousands_of_claims_are_read_alike():
    """The whole range of exit codes, and each length a claim can be cut to."""
    for code in range(-300, 300):
        assert read_one(claim(code, b"Name")) == verdict_of_claim(claim(code, b"Name"))
    for size in range(1, 320):
        packet = claim(1, b"N" * 400)[:size]
        assert read_one(packet) == verdict_of_claim(packet)


def read_one(packet: bytes) -> tuple[str, int | None]:
    puppet = Puppet()
    try:
        puppet.control.send(packet)
        outcome = puppet.hear()
    finally:
        puppet.close()
    assert outcome is not None
    assert is_clean(outcome.error_class)
    assert outcome.error_class in ("", "Name", "N" * min(256, max(0, len(packet) - wire.CLAIM_HEAD.size)))
    return outcome.status.value, outcome.exit_code
