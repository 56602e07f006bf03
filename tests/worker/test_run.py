"""Every ending of an attempt is one write of the ledger, with small functions in place of the real work."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

import worker.run
from shared.errors import Code, JobFailed, LeaseLost, Unavailable
from shared.job import Kind
from shared.jobstate import State
from shared.lease import MAX_FAILURES


@pytest.fixture
def work(monkeypatch):
    """Puts a function in place of the fine-tune runner."""

    def replace(function) -> None:
        monkeypatch.setitem(worker.run.RUNNERS, Kind.FINETUNE, function)

    return replace


@pytest.fixture
def run(shop, work):
    """Runs a new job with a function as its work; returns the job as the ledger then has it."""

    def go(function):
        work(function)
        job = shop.submit()
        shop.worker.run_job(job.id)
        return shop.ledger.get(job.id)

    return go


def raising(error: Exception):
    def function(attempt) -> None:
        raise error

    return function


def heeding(request):
    """Work that asks for something and then goes on until it hears of it."""

    def function(attempt) -> None:
        request(attempt.lease.job.id)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            attempt.heed()
            time.sleep(0.01)

    return function


def test_success(run, shop):
    job = run(lambda attempt: attempt.ledger.finish(attempt.lease, {"adapter_id": "tiny@1"}))
    assert job.state is State.SUCCEEDED
    assert job.result["adapter_id"] == "tiny@1"
    assert job.attempt == 1
    assert job.finished_at
    assert shop.messages(job.id) == ["Job created and queued.", "Attempt 1 started.", "Job succeeded."]


def test_each_kind_has_its_runner(shop, monkeypatch):
    seen = []
    monkeypatch.setitem(worker.run.RUNNERS, Kind.MERGE, lambda attempt: seen.append(attempt.lease.job.kind))
    shop.worker.run_job(shop.submit(Kind.MERGE).id)
    assert seen == [Kind.MERGE]
    assert set(worker.run.RUNNERS) == set(Kind)


def test_coded_failure(run):
    error = JobFailed(Code.LOSS_NOT_FINITE, "It was NaN.", remedy="Lower it.", details={"step": 3})
    job = run(raising(error))
    assert (job.state, job.error) == (State.FAILED, error.as_dict())


def test_retryable_failure_goes_back_to_the_queue(run, shop):
    job = run(raising(Unavailable(Code.SERVING_UNAVAILABLE, "No answer.")))
    assert job.state is State.QUEUED
    assert job.error is None
    assert "Trying again in 1 s." in shop.messages(job.id)[-1]
    assert shop.leases.claim(job.id, "second") is None
    shop.skip_backoff(job.id)
    assert shop.leases.claim(job.id, "second").token == 2


def test_a_job_that_fails_again_and_again_fails(run, shop):
    job = run(raising(Unavailable(Code.SERVING_UNAVAILABLE, "No answer.")))
    for _ in range(MAX_FAILURES - 1):
        shop.skip_backoff(job.id)
        shop.worker.run_job(job.id)
    job = shop.ledger.get(job.id)
    assert (job.state, job.attempt, job.error["code"]) == (State.FAILED, MAX_FAILURES, Code.ATTEMPTS_EXHAUSTED)
    assert job.error["details"]["last"]["code"] == Code.SERVING_UNAVAILABLE


def test_a_bug_fails_the_job_with_a_code(run):
    job = run(raising(KeyError("metrics")))
    assert (job.state, job.error["code"]) == (State.FAILED, Code.INTERNAL_ERROR)
    assert "KeyError" in job.error["message"]


def test_cancel(run, shop):
    assert run(heeding(shop.ledger.cancel)).state is State.CANCELLED


def test_pause_and_resume(run, shop, work):
    job = run(heeding(shop.ledger.pause))
    assert job.state is State.PAUSED
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.PAUSED
    shop.ledger.resume(job.id)
    work(lambda attempt: attempt.ledger.finish(attempt.lease, {}))
    shop.worker.run_job(job.id)
    assert (shop.ledger.get(job.id).state, shop.ledger.get(job.id).attempt) == (State.SUCCEEDED, 2)


def test_shutdown_gives_the_job_back_without_counting_a_failure(run, shop):
    job = run(heeding(lambda _: shop.worker.stopping.set()))
    assert job.state is State.QUEUED
    assert shop.messages(job.id)[-1] == "Given back to the queue: the worker stops."
    assert shop.leases.claim(job.id, "second").token == 2


def test_a_worker_that_stops_takes_nothing_more(shop, work):
    work(lambda attempt: pytest.fail("it was taken"))
    shop.worker.stopping.set()
    job = shop.submit()
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.QUEUED


@pytest.mark.parametrize(
    "ending",
    [
        lambda attempt: attempt.ledger.finish(attempt.lease, {"adapter_id": "stale@1"}),
        lambda attempt: attempt.enter("training", "stale"),
        lambda attempt: None,
        raising(JobFailed(Code.TRAINER_CRASHED, "stale")),
        raising(KeyError("stale")),
    ],
    ids=["finish", "report", "return", "failure", "bug"],
)
def test_lost_lease_writes_nothing(shop, work, ending):
    versions = []

    def function(attempt) -> None:
        shop.expire_lease(attempt.lease.job.id)
        assert shop.leases.claim(attempt.lease.job.id, "second")
        versions.append(shop.ledger.get(attempt.lease.job.id).version)
        ending(attempt)

    work(function)
    job = shop.submit()
    shop.worker.run_job(job.id)
    after = shop.ledger.get(job.id)
    assert (after.state, after.attempt, after.version, after.error) == (State.RUNNING, 2, versions[0], None)
    assert not any("stale" in message for message in shop.messages(job.id))


def test_heed_raises_the_loss_that_the_keeper_saw(run, shop):
    def lose(job_id: str) -> None:
        shop.expire_lease(job_id)

    heard = []

    def function(attempt) -> None:
        try:
            heeding(lose)(attempt)
        except LeaseLost as error:
            heard.append(error.code)
            raise

    assert run(function).state is State.QUEUED
    assert heard == [Code.LEASE_LOST]


def test_a_bell_for_a_job_that_is_not_there_is_harmless(shop, work):
    work(lambda attempt: pytest.fail("it was taken"))
    shop.worker.run_job("ftjob-unknown")
    job = shop.submit()
    shop.ledger.cancel(job.id)
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.CANCELLED


def test_a_job_is_taken_once(shop, work):
    taken = []

    def function(attempt) -> None:
        taken.append(attempt.lease.token)
        shop.second_worker().run_job(attempt.lease.job.id)
        attempt.ledger.finish(attempt.lease, {})

    work(function)
    job = shop.submit()
    shop.worker.run_job(job.id)
    shop.worker.run_job(job.id)
    assert taken == [1]


def test_the_last_write_waits_for_the_database(run, shop, monkeypatch):
    monkeypatch.setattr(worker.run, "WRITE_RETRY_SECONDS", 0.01)
    real, tries = shop.leases.fail, []

    def fail(*args):
        tries.append(1)
        if len(tries) < 4:
            raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")
        return real(*args)

    monkeypatch.setattr(shop.leases, "fail", fail)
    assert run(raising(JobFailed(Code.TRAINER_CRASHED, "It crashed."))).state is State.FAILED
    assert len(tries) == 4


def test_the_last_write_gives_up_when_the_lease_is_over(open_shop, work, monkeypatch):
    shop = open_shop(lease_seconds=0.1)
    monkeypatch.setattr(worker.run, "WRITE_RETRY_SECONDS", 0.01)

    def fail(*_: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    monkeypatch.setattr(shop.leases, "fail", fail)
    work(raising(JobFailed(Code.TRAINER_CRASHED, "It crashed.")))
    with pytest.raises(Unavailable):
        shop.worker.run_job(shop.submit().id)


def test_sweep_rings_for_what_is_ready(shop):
    queued, running, waiting = shop.submit(), shop.submit(), shop.submit()
    shop.leases.claim(running.id, "gone")
    lease = shop.leases.claim(waiting.id, "first")
    shop.leases.fail(lease, Unavailable(Code.SERVING_UNAVAILABLE, "No answer."))
    assert shop.worker.sweep() == [queued.id]
    assert shop.bell.rung == [queued.id]
    shop.expire_lease(running.id)
    assert shop.worker.sweep() == [queued.id, running.id]


def test_sweep_that_shall_not_ring_takes_leases_back_all_the_same(shop):
    job = shop.submit()
    shop.leases.claim(job.id, "gone")
    with shop.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
    assert shop.worker.sweep(ring=False) == []
    assert shop.bell.rung == []
    assert shop.ledger.get(job.id).state is State.QUEUED


def test_sweep_deletes_expired_files(shop, tmp_path):
    digests = []
    for name, expires_at in (("old", datetime(2020, 1, 1, tzinfo=UTC)), ("kept", None)):
        (tmp_path / name).write_text(name)
        digests.append(shop.storage.put_file(tmp_path / name))
        shop.registry.add_file(name, "fine-tune", 3, digests[-1], expires_at)
    shop.worker.sweep()
    assert [shop.storage.blob_path(digest).exists() for digest in digests] == [False, True]
