"""The ledger as workers use it, on both databases: one owner at a time, and a stale one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared import lease as lease_module
from shared.aliases import Aliases
from shared.db import Database
from shared.errors import Code, JobFailed, LeaseLost, NotFound
from shared.job import NewEvent
from shared.jobstate import Stage, State
from shared.lease import BACKOFF_SECONDS, MAX_FAILURES, Lease, LeaseLedger, ResultFile
from shared.ledger import Ledger
from shared.registry import Registry
from tests.shared.conftest import LEASE_SECONDS, Clock
from tests.shared.samples import at_once, claimed, job_in, new_adapter, snapshot, submission

CRASH = JobFailed(Code.TRAINER_CRASHED, "The trainer crashed.", remedy="Read its log.")
RETRYABLE = JobFailed(Code.TRAINER_KILLED, "The trainer was killed.", retryable=True)
METRICS = ResultFile("metrics.csv", 10, "e" * 64)

WRITES: dict[str, Callable[[LeaseLedger, Lease], object]] = {
    "heartbeat": lambda leases, lease: leases.heartbeat(lease),
    "report": lambda leases, lease: leases.report(lease, progress={"step": 1}, events=[NewEvent(message="stale")]),
    "finish": lambda leases, lease: leases.finish(
        lease, {"x": 1}, adapters=[new_adapter()], alias="a", files=[METRICS]
    ),
    "quarantine": lambda leases, lease: leases.quarantine(
        lease, new_adapter(published=False, certificates={"replica": {"passed": False}})
    ),
    "fail": lambda leases, lease: leases.fail(lease, CRASH),
    "fail, retryable": lambda leases, lease: leases.fail(lease, RETRYABLE),
    "stop": lambda leases, lease: leases.stop(lease),
    "confirm_pause": lambda leases, lease: leases.confirm_pause(lease),
    "release": lambda leases, lease: leases.release(lease, "shutdown"),
}


def claim(leases: LeaseLedger, job_id: str, worker: str = "worker-1") -> Lease:
    lease = leases.claim(job_id, worker)
    assert lease is not None
    return lease


def expire(leases: LeaseLedger, clock: Clock) -> list[str]:
    """Let every lease run out, and sweep."""
    clock.advance(LEASE_SECONDS + 1)
    return leases.sweep()


# -- claim ---------------------------------------------------------------------------------------------------------


def test_claim_starts_an_attempt(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    lease = claimed(ledger, leases)
    job = ledger.get(lease.job.id)
    assert lease.job == job
    assert (lease.token, job.attempt, job.state, job.started_at) == (1, 1, State.RUNNING, clock.now)
    assert ledger.events(job.id)[-1].data == {"attempt": 1, "worker": "worker-1"}


def test_unknown_job_is_not_claimed(leases: LeaseLedger) -> None:
    assert leases.claim("ftjob-none", "worker-1") is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.QUEUED])
def test_only_queued_jobs_are_claimed(ledger: Ledger, leases: LeaseLedger, database: Database, state: State) -> None:
    job, _ = job_in(state, ledger, leases)
    before = snapshot(database)
    assert leases.claim(job.id, "worker-2") is None
    assert snapshot(database) == before


def test_claimed_once_from_eight_threads(ledger: Ledger, leases: LeaseLedger) -> None:
    for _ in range(3):
        job, _ = ledger.submit(submission())
        won = [lease for lease in at_once(8, lambda index: leases.claim(job.id, f"worker-{index}")) if lease]  # noqa: B023
        assert [lease.token for lease in won] == [1]
        assert ledger.get(job.id).attempt == 1


# -- fencing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", list(WRITES))
def test_stale_token_changes_nothing_while_another_attempt_runs(
    ledger: Ledger, leases: LeaseLedger, clock: Clock, database: Database, write: str
) -> None:
    stale = claimed(ledger, leases)
    expire(leases, clock)
    clock.advance(60)
    current = claim(leases, stale.job.id, "worker-2")
    before = snapshot(database)
    with pytest.raises(LeaseLost) as caught:
        WRITES[write](leases, stale)
    assert caught.value.code is Code.LEASE_LOST
    assert snapshot(database) == before
    WRITES[write](leases, current)
    assert snapshot(database) != before or write == "heartbeat"


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUEUED])
def test_token_of_an_attempt_that_is_over_changes_nothing(
    ledger: Ledger, leases: LeaseLedger, database: Database, state: State
) -> None:
    lease = claimed(ledger, leases) if state is State.QUEUED else job_in(state, ledger, leases)[1]
    assert lease is not None
    if state is State.QUEUED:
        leases.release(lease, "shutdown")
    assert ledger.get(lease.job.id).state is state
    before = snapshot(database)
    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            write(leases, lease)
        assert snapshot(database) == before


def test_lease_of_no_job_is_not_found(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    lost = Lease(lease.job.model_copy(update={"id": "ftjob-none"}), 1)
    with pytest.raises(NotFound):
        leases.heartbeat(lost)


# -- heartbeat, report ---------------------------------------------------------------------------------------------


def test_heartbeat_keeps_the_lease(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    lease = claimed(ledger, leases)
    for _ in range(5):
        clock.advance(LEASE_SECONDS - 1)
        assert leases.sweep() == []
        assert leases.heartbeat(lease) is None
    assert ledger.get(lease.job.id).state is State.RUNNING


@pytest.mark.parametrize("request_", ["cancel", "pause"])
def test_heartbeat_says_what_was_asked_for(ledger: Ledger, leases: LeaseLedger, request_: str) -> None:
    lease = claimed(ledger, leases)
    getattr(ledger, request_)(lease.job.id)
    assert leases.heartbeat(lease) == request_


def test_report_merges_progress_and_keeps_the_stage(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    leases.report(lease, stage=Stage.TRAINING, progress={"step": 1, "of": 9}, events=[])
    leases.report(lease, progress={"step": 2}, events=[NewEvent(message="two")])
    job = ledger.get(lease.job.id)
    assert (job.stage, job.progress) == (Stage.TRAINING, {"step": 2, "of": 9})
    assert job.version > lease.job.version
    assert ledger.events(job.id)[-1].message == "two"


# -- the ends of an attempt ----------------------------------------------------------------------------------------


def test_finish_writes_job_adapters_alias_and_files(
    ledger: Ledger, leases: LeaseLedger, registry: Registry, clock: Clock
) -> None:
    lease = claimed(ledger, leases)
    checkpoint = new_adapter("demo@0", final=False, step=3, published=False)
    leases.report(lease, stage=Stage.PUBLISHING, events=[])
    job = leases.finish(lease, {"loss": 0.5}, adapters=[checkpoint, new_adapter()], alias="prod", files=[METRICS])
    assert job == ledger.get(lease.job.id)
    assert (job.state, job.stage, job.finished_at, job.error) == (State.SUCCEEDED, None, clock.now, None)
    assert job.result["loss"] == 0.5
    assert job.result["adapters"] == ["demo@0", "demo@1"]
    [file_id] = job.result["result_files"]
    assert (registry.file(file_id).filename, registry.file(file_id).purpose) == ("metrics.csv", "fine-tune-results")
    assert registry.adapter("prod").id == "demo@1"
    assert registry.adapter("demo@0").job_id == job.id
    assert "demo@1" in ledger.events(job.id)[-1].message


@pytest.mark.parametrize("step", ["register_adapters", "move_alias", "add_file", "move"])
def test_finish_that_fails_in_the_middle_writes_nothing(
    ledger: Ledger, leases: LeaseLedger, database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lease = claimed(ledger, leases)
    before = snapshot(database)
    real = getattr(lease_module, step)

    def write_then_fail(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise RuntimeError("power cut")

    monkeypatch.setattr(lease_module, step, write_then_fail)
    with pytest.raises(RuntimeError, match="power cut"):
        WRITES["finish"](leases, lease)
    assert snapshot(database) == before
    monkeypatch.undo()
    assert WRITES["finish"](leases, lease)


def test_finish_without_an_adapter_moves_no_alias(ledger: Ledger, leases: LeaseLedger, database: Database) -> None:
    leases.finish(claimed(ledger, leases), {}, alias="prod")
    assert Aliases(database).all() == []


def test_the_same_adapter_of_a_second_job_is_no_fault(ledger: Ledger, leases: LeaseLedger, registry: Registry) -> None:
    first, second = claimed(ledger, leases), claimed(ledger, leases)
    for lease in (first, second):
        assert leases.finish(lease, {}, adapters=[new_adapter()], alias="prod").state is State.SUCCEEDED
    assert registry.adapter("prod").job_id == first.job.id


# Fails while register_adapters leaves an adapter unpublished that a later job has published.
def test_adapter_that_a_second_job_published_is_published(
    ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    leases.finish(claimed(ledger, leases), {}, adapters=[new_adapter(published=False)])
    leases.finish(claimed(ledger, leases), {}, adapters=[new_adapter(certificates={"replica": 1})], alias="prod")
    assert registry.adapter("prod").published


def test_a_quarantined_adapter_is_there_to_look_at_and_a_later_job_may_publish_it(
    ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    lease, failed = claimed(ledger, leases), {"http://replica": {"passed": False}}
    leases.quarantine(lease, new_adapter(published=False, certificates=failed))
    leases.fail(lease, CRASH)
    found = registry.adapter("demo@1")
    assert (found.state, found.published, found.certificates) == ("quarantined", False, failed)
    assert registry.adapters(published_only=True) == []

    leases.finish(claimed(ledger, leases), {}, adapters=[new_adapter(certificates={"replica": 1})], alias="prod")
    assert (registry.adapter("prod").state, registry.adapter("prod").certificates) == ("published", {"replica": 1})

    leases.quarantine(claimed(ledger, leases), new_adapter(published=False, certificates=failed))
    assert registry.adapter("prod").state == "published", "what another job published stays published"


def test_failure_for_good(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    job = leases.fail(claimed(ledger, leases), CRASH)
    assert (job.state, job.error, job.finished_at) == (State.FAILED, CRASH.as_dict(), clock.now)
    event = ledger.events(job.id)[-1]
    assert (event.level, event.data) == ("error", {"error": CRASH.as_dict()})


def test_retryable_failure_waits_longer_each_time_and_is_then_final(
    ledger: Ledger, leases: LeaseLedger, clock: Clock
) -> None:
    lease = claimed(ledger, leases)
    for failure in range(1, MAX_FAILURES):
        assert leases.fail(lease, RETRYABLE).state is State.QUEUED
        delay = BACKOFF_SECONDS[failure - 1]
        clock.advance(delay - 0.1)
        assert leases.sweep() == []
        assert leases.claim(lease.job.id, "early") is None
        clock.advance(0.1)
        assert leases.sweep() == [lease.job.id]
        lease = claim(leases, lease.job.id)
        assert lease.token == failure + 1
    job = leases.fail(lease, RETRYABLE)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error["code"] == Code.ATTEMPTS_EXHAUSTED
    assert not job.error["retryable"]
    assert job.error["details"]["last"] == RETRYABLE.as_dict()


def test_expired_leases_are_requeued_and_then_fail_the_job(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    job, _ = ledger.submit(submission())
    for attempt in range(1, MAX_FAILURES + 1):
        lease = claim(leases, job.id)
        assert lease.token == attempt
        assert expire(leases, clock) == []
        if attempt < MAX_FAILURES:
            assert ledger.get(job.id).state is State.QUEUED
            assert ledger.events(job.id)[-1].data["error"]["code"] == Code.LEASE_EXPIRED
            clock.advance(BACKOFF_SECONDS[-1])
            assert leases.sweep() == [job.id]
    failed = ledger.get(job.id)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert failed.error["code"] == Code.ATTEMPTS_EXHAUSTED
    assert failed.error["details"]["last"]["code"] == Code.LEASE_EXPIRED


@pytest.mark.parametrize(("request_", "state"), [("cancel", State.CANCELLED), ("pause", State.PAUSED)])
def test_worker_confirms_what_was_asked_for(ledger: Ledger, leases: LeaseLedger, request_: str, state: State) -> None:
    lease = claimed(ledger, leases)
    getattr(ledger, request_)(lease.job.id)
    (leases.stop if request_ == "cancel" else leases.confirm_pause)(lease)
    job = ledger.get(lease.job.id)
    assert (job.state, job.requested) == (state, None)


# The two cases that give a job back fail while `move` forgets the request of the job's owner on requeue.
@pytest.mark.parametrize("end", ["expire", "release", "fail, retryable"])
@pytest.mark.parametrize(("request_", "state"), [("cancel", State.CANCELLED), ("pause", State.PAUSED)])
def test_request_is_kept_however_the_attempt_ends(
    ledger: Ledger, leases: LeaseLedger, clock: Clock, request_: str, state: State, end: str
) -> None:
    lease = claimed(ledger, leases)
    getattr(ledger, request_)(lease.job.id)
    expire(leases, clock) if end == "expire" else WRITES[end](leases, lease)
    assert ledger.get(lease.job.id).state is state


def test_paused_job_goes_on_with_a_new_token(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    ledger.pause(lease.job.id)
    leases.confirm_pause(lease)
    assert leases.claim(lease.job.id, "worker-2") is None
    ledger.resume(lease.job.id)
    assert claim(leases, lease.job.id, "worker-2").token == 2


def test_giving_back_is_no_failure(ledger: Ledger, leases: LeaseLedger) -> None:
    lease = claimed(ledger, leases)
    for _ in range(MAX_FAILURES + 2):
        leases.release(lease, "shutdown")
        assert leases.sweep() == [lease.job.id]
        lease = claim(leases, lease.job.id)
    assert ledger.get(lease.job.id).state is State.RUNNING


# -- sweep ---------------------------------------------------------------------------------------------------------


def test_sweep_names_queued_jobs_oldest_first(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(ledger.submit(submission())[0].id)
        clock.advance(1)
    ledger.cancel(made[1])
    ledger.pause(made[2])
    assert leases.sweep() == [made[0], made[3]]


def test_sweep_leaves_living_leases(ledger: Ledger, leases: LeaseLedger, clock: Clock, database: Database) -> None:
    claimed(ledger, leases)
    clock.advance(LEASE_SECONDS)
    before = snapshot(database)
    assert leases.sweep() == []
    assert snapshot(database) == before


def test_sweeps_at_the_same_moment_take_a_lease_back_once(ledger: Ledger, leases: LeaseLedger, clock: Clock) -> None:
    jobs = [claimed(ledger, leases).job.id for _ in range(4)]
    clock.advance(LEASE_SECONDS + 1)
    at_once(4, lambda _: leases.sweep())
    for job_id in jobs:
        messages = [event.message for event in ledger.events(job_id) if "stopped answering" in event.message]
        assert len(messages) == 1
        assert ledger.get(job_id).state is State.QUEUED


def test_real_clock_of_the_database_is_used(ledger: Ledger, database: Database) -> None:
    instant = LeaseLedger(database, -1)
    lease = claimed(ledger, instant)
    instant.sweep()
    assert ledger.get(lease.job.id).state is State.QUEUED
