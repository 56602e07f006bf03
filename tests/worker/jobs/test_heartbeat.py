"""The heartbeat, with leases whose responses the test sets."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from shared.errors import Code, LeaseLost, Unavailable
from tests.support.waiting import eventually
from worker.jobs.heartbeat import LeaseKeeper

LOST = LeaseLost(Code.LEASE_LOST, "Another attempt owns it.")
UNAVAILABLE = Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")


class FakeLeases:
    """Returns or raises its outcomes one by one, and repeats the last one."""

    def __init__(self, *outcomes) -> None:
        self._outcomes = list(outcomes)
        self.beats = 0
        self._beat = threading.Condition()

    def heartbeat(self, lease):
        with self._beat:
            self.beats += 1
            self._beat.notify_all()
            outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait_for(self, beats: int) -> None:
        with self._beat:
            assert self._beat.wait_for(lambda: self.beats >= beats, timeout=60)


def keeper(leases, requested=None, every: float = 0.01) -> LeaseKeeper:
    lease = SimpleNamespace(job=SimpleNamespace(id="ftjob-1", requested=requested), token=1)
    return LeaseKeeper(leases, lease, every)


def test_heartbeats_are_sent_while_the_block_runs():
    leases = FakeLeases(None)
    with keeper(leases) as kept:
        leases.wait_for(3)
        assert kept.lost is None
        assert kept.requested is None
    beats = leases.beats
    time.sleep(0.05)
    assert leases.beats == beats
    assert not kept._thread.is_alive()


@pytest.mark.parametrize("request_", ["cancel", "pause"])
def test_requests_are_passed_on(request_):
    with keeper(FakeLeases(None, request_)) as kept:
        eventually(lambda: kept.requested == request_)


def test_request_from_before_the_first_heartbeat_is_known():
    assert keeper(FakeLeases(None), requested="cancel").requested == "cancel"


def test_lost_lease_ends_the_heartbeats():
    leases = FakeLeases(None, LOST)
    with keeper(leases) as kept:
        eventually(lambda: kept.lost is LOST)
        time.sleep(0.05)
        assert leases.beats == 2


def test_heartbeats_continue_after_database_outage():
    leases = FakeLeases(UNAVAILABLE, UNAVAILABLE, "pause")
    with keeper(leases) as kept:
        eventually(lambda: kept.requested == "pause")
        assert kept.lost is None
    assert leases.beats >= 3


def test_heartbeats_continue_after_unexpected_fault():
    """A thread that died would let the lease run out under a worker that believes it holds it."""
    leases = FakeLeases(RuntimeError("odd"), None)
    with keeper(leases):
        leases.wait_for(3)


def test_error_in_the_block_ends_the_thread():
    with pytest.raises(ValueError, match="odd"), keeper(FakeLeases(None), every=60) as kept:
        raise ValueError("odd")
    assert not kept._thread.is_alive()
