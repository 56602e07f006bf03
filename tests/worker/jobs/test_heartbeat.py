"""The lease keeper, on a ledger that does what the test says."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from shared.errors import Code, LeaseLost, Unavailable
from worker.lease_keeper import LeaseKeeper

LOST = LeaseLost(Code.LEASE_LOST, "Another attempt owns it.")
AWAY = Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")


class FakeLedger:
    """Answers heartbeats one by one; the last answer for ever."""

    def __init__(self, *answers) -> None:
        self._answers = list(answers)
        self.beats = 0
        self._beat = threading.Condition()

    def heartbeat(self, lease):
        with self._beat:
            self.beats += 1
            self._beat.notify_all()
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_for(self, beats: int) -> None:
        with self._beat:
            assert self._beat.wait_for(lambda: self.beats >= beats, timeout=5)


def keeper(ledger, requested=None, every: float = 0.01) -> LeaseKeeper:
    lease = SimpleNamespace(job=SimpleNamespace(id="ftjob-1", requested=requested), token=1)
    return LeaseKeeper(ledger, lease, every)


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_beats_while_its_block_runs_and_not_after():
    ledger = FakeLedger(None)
    with keeper(ledger) as kept:
        ledger.wait_for(3)
        assert kept.lost is None
        assert kept.requested is None
    beats = ledger.beats
    time.sleep(0.05)
    assert ledger.beats == beats
    assert not kept._thread.is_alive()


@pytest.mark.parametrize("request_", ["cancel", "pause"])
def test_passes_requests_on(request_):
    with keeper(FakeLedger(None, request_)) as kept:
        until(lambda: kept.requested == request_)


def test_a_request_that_stood_before_the_first_beat_is_known():
    assert keeper(FakeLedger(None), requested="cancel").requested == "cancel"


def test_loss_is_kept_and_ends_the_beats():
    ledger = FakeLedger(None, LOST)
    with keeper(ledger) as kept:
        until(lambda: kept.lost is LOST)
        time.sleep(0.05)
        assert ledger.beats == 2


def test_absence_of_the_database_is_lived_through():
    ledger = FakeLedger(AWAY, AWAY, "pause")
    with keeper(ledger) as kept:
        until(lambda: kept.requested == "pause")
        assert kept.lost is None
    assert ledger.beats >= 3


def test_an_unexpected_fault_does_not_end_the_beats():
    """A thread that died would let the lease run out under a worker that believes it holds it."""
    ledger = FakeLedger(RuntimeError("odd"), None)
    with keeper(ledger):
        ledger.wait_for(3)


def test_an_error_in_the_block_ends_the_thread_too():
    with pytest.raises(ValueError, match="odd"), keeper(FakeLedger(None), every=60) as kept:
        raise ValueError("odd")
    assert not kept._thread.is_alive()
