"""Every outcome of an attempt is one database write; small functions replace the real work."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import worker.jobs.runner
from shared.database.attempt_failures import MAX_FAILURES
from shared.database.job_states import JobState
from shared.database.queueing.queue_state import QueueReader
from shared.database.queueing.quotas import Quotas
from shared.database.records import Kind
from shared.database.tables.files import UploadPartRow
from shared.database.tables.jobs import JobRow
from shared.errors import Code, ContractRejected, JobFailed, LeaseLost, Unavailable
from shared.worker_registry import WorkerMachine
from tests.support.builders import submission

FINAL_ERRORS = [JobFailed(Code.TRAINER_CRASHED, "It crashed.")]


@pytest.fixture
def work(monkeypatch):
    """Puts a function in place of the fine-tune runner."""

    def replace(function) -> None:
        monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, function)

    return replace


@pytest.fixture
def long_backoff(monkeypatch):
    """No retry is due before the test says so."""
    for delays in ("BACKOFF_SECONDS", "OUTAGE_BACKOFF_SECONDS"):
        monkeypatch.setattr(f"shared.database.attempt_failures.{delays}", (3600,))
    monkeypatch.setattr("shared.database.leases.LONGEST_DELAY_SECONDS", 3600)


@pytest.fixture
def run(installation, work):
    """Runs a new job with a function as its work; returns the job's row afterwards."""

    def go(function):
        work(function)
        job = installation.submit()
        installation.worker.run_job(job.id)
        return installation.jobs.get(job.id)

    return go


def raising(error: Exception):
    def function(attempt) -> None:
        raise error

    return function


def until_stopped(request):
    """Work that sends a request and then continues until the attempt must stop."""

    def function(attempt) -> None:
        request(attempt.lease.job.id)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            attempt.raise_if_stopped()
            time.sleep(0.01)

    return function


def test_success(run, installation):
    job = run(lambda attempt: attempt.leases.finish(attempt.lease, {"adapter_id": "tiny@1"}))
    assert job.state is JobState.SUCCEEDED
    assert job.result["adapter_id"] == "tiny@1"
    assert job.attempt == 1
    assert job.finished_at
    assert installation.messages(job.id) == ["Job created and queued.", "Attempt 1 started.", "Job succeeded."]


def test_each_kind_has_its_runner(installation, monkeypatch):
    seen = []
    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.MERGE, lambda attempt: seen.append(attempt.lease.job.kind))
    installation.worker.run_job(installation.submit(Kind.MERGE).id)
    assert seen == [Kind.MERGE]
    assert set(worker.jobs.runner.RUNNERS) == set(Kind)


def test_coded_failure(run):
    error = JobFailed(Code.LOSS_NOT_FINITE, "It was NaN.", remedy="Lower it.", details={"step": 3})
    job = run(raising(error))
    assert (job.state, job.error) == (JobState.FAILED, error.as_dict())


def test_retryable_failure_goes_back_to_the_queue(run, installation, long_backoff):
    job = run(raising(Unavailable(Code.SERVING_UNAVAILABLE, "No answer.")))
    assert job.state is JobState.QUEUED
    assert job.error is None
    assert "Trying again in 3600 s." in installation.messages(job.id)[-1]
    assert installation.leases.claim(job.id, "second") is None
    installation.skip_backoff(job.id)
    assert installation.leases.claim(job.id, "second").token == 2


def test_full_disk_of_the_worker_itself_is_tried_again(run, installation):
    def function(attempt) -> None:
        Path("/dev/full").write_text("x")

    job = run(function)
    assert (job.state, job.error) == (JobState.QUEUED, None)
    assert "no space left" in installation.messages(job.id)[-1]


def test_job_fails_after_its_last_retry(run, installation):
    job = run(raising(JobFailed(Code.TRAINER_STALLED, "It was silent.", retryable=True)))
    for _ in range(MAX_FAILURES - 1):
        installation.skip_backoff(job.id)
        installation.worker.run_job(job.id)
    job = installation.jobs.get(job.id)
    assert (job.state, job.attempt, job.error["code"]) == (JobState.FAILED, MAX_FAILURES, Code.ATTEMPTS_EXHAUSTED)
    assert job.error["details"]["last"]["code"] == Code.TRAINER_STALLED


def test_job_outlives_more_outages_than_failures(run, installation):
    job = run(raising(Unavailable(Code.STORAGE_UNAVAILABLE, "The storage cannot be used: Stale file handle.")))
    for _ in range(2 * MAX_FAILURES):
        installation.skip_backoff(job.id)
        installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.QUEUED


@pytest.fixture
def bad_disk(installation, monkeypatch):
    """Run folders that nothing can be written to, until the worker has looked at them a second time."""
    sound, checks = installation.worker.disks.runs_dir, []

    def wait(_seconds) -> bool:
        checks.append(installation.jobs.list()[0].state)
        installation.worker.disks.runs_dir = sound
        return False

    installation.worker.disks.runs_dir = Path("/sys/mens")
    monkeypatch.setattr(installation.worker.stopping, "wait", wait)
    return checks


def test_worker_with_a_bad_disk_claims_no_job_until_it_is_sound(run, bad_disk):
    job = run(lambda attempt: attempt.leases.finish(attempt.lease, {}))
    assert bad_disk == [JobState.QUEUED], "it was not claimed meanwhile"
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


def test_worker_with_a_bad_disk_can_be_stopped(installation, work):
    work(raising(AssertionError("claimed")))
    job = installation.submit()
    installation.worker.disks.runs_dir = Path("/sys/mens")
    threading.Timer(0.2, installation.worker.stopping.set).start()
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.QUEUED


@pytest.mark.parametrize("error", [KeyError("metrics"), JobFailed(Code.TRAINER_CRASHED, "It crashed.")])
def test_unexplained_failure_on_a_bad_disk_is_an_outage(run, installation, error):
    def function(attempt) -> None:
        installation.worker.disks.runs_dir = Path("/sys/mens")
        raise error

    job = run(function)
    assert (job.state, job.error) == (JobState.QUEUED, None)
    assert installation.jobs.events(job.id)[-1].data["error"]["code"] == Code.STORAGE_UNAVAILABLE


def test_read_only_disk_is_an_outage_without_its_path(run, installation):
    job = run(raising(OSError(errno.EROFS, "Read-only file system", "/secret/place")))
    assert (job.state, job.error) == (JobState.QUEUED, None)
    assert "Read-only file system" in installation.messages(job.id)[-1]
    assert "secret" not in installation.messages(job.id)[-1]


def test_end_of_a_failed_attempts_log_is_kept_without_folders(run, installation):
    def function(attempt) -> None:
        attempt.run_dir.mkdir(parents=True)
        lines = [f"line {number} of {attempt.run_dir}/plan.json" for number in range(3000)]
        (attempt.run_dir / "engine.log").write_text("\n".join([*lines, 'File "/opt/mens/worker/train.py", line 3', ""]))
        raise JobFailed(Code.TRAINER_CRASHED, "It crashed.")

    job = run(function)
    log = installation.jobs.log(job.id)
    assert log is not None and log.attempt == 1
    first, *_, last = log.text.splitlines()
    assert first.startswith("line ") and first.endswith(" of …/plan.json")
    assert last == 'File "…/train.py", line 3'
    assert str(installation.worker.settings.runs_dir) not in log.text


def test_attempt_without_a_log_keeps_none(run, installation):
    assert installation.jobs.log(run(raising(KeyError("metrics"))).id) is None


@pytest.mark.parametrize(
    "error",
    [
        ContractRejected(Code.GPU_UNUSABLE, "The GPU cannot be used.", remedy="Correct it."),
        JobFailed(Code.GPU_MEMORY_HELD, "Another program holds it.", remedy="End it.", retryable=True),
    ],
    ids=lambda error: error.code,
)
def test_worker_without_a_gpu_to_use_gives_jobs_back_and_lets_others_take_them(run, installation, error):
    job = run(raising(error))
    assert (job.state, job.error) == (JobState.QUEUED, None)
    with installation.leases.database.read() as session:
        row = session.get(JobRow, job.id)
        assert (row.failures, row.outages) == (0, 1)
    other, _ = installation.jobs.submit(submission())
    with ThreadPoolExecutor() as pool:
        pausing = pool.submit(installation.worker.run_job, other.id)
        time.sleep(0.2)
        assert not pausing.done()
        installation.worker.stopping.set()
        pausing.result()
    assert installation.jobs.get(other.id).state is JobState.QUEUED


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cuda"]], ids=" ".join)
def test_job_that_requires_a_gpu_waits_only_while_another_worker_has_one(run, installation, devices):
    installation.worker.machines = lambda: [WorkerMachine(device=device) for device in devices]
    job = run(raising(ContractRejected(Code.GPU_REQUIRED, "The contract requires a GPU.", remedy="Allow the CPU.")))
    assert job.state is (JobState.QUEUED if "cuda" in devices else JobState.FAILED)
    assert installation.worker._pauses_until == 0, "it takes other jobs at once"


def test_unexpected_exception_fails_the_job_with_a_code(run):
    job = run(raising(KeyError("metrics")))
    assert (job.state, job.error["code"]) == (JobState.FAILED, Code.INTERNAL_ERROR)
    assert "KeyError" in job.error["message"]


def test_cancel(run, installation):
    assert run(until_stopped(installation.jobs.cancel)).state is JobState.CANCELLED


def test_pause_and_resume(run, installation, work):
    job = run(until_stopped(installation.jobs.pause))
    assert job.state is JobState.PAUSED
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.PAUSED
    installation.jobs.resume(job.id)
    work(lambda attempt: attempt.leases.finish(attempt.lease, {}))
    installation.worker.run_job(job.id)
    assert (installation.jobs.get(job.id).state, installation.jobs.get(job.id).attempt) == (JobState.SUCCEEDED, 2)


def test_shutdown_returns_the_job_without_counting_a_failure(run, installation):
    job = run(until_stopped(lambda _: installation.worker.stopping.set()))
    assert job.state is JobState.QUEUED
    assert installation.messages(job.id)[-1] == "Returned to the queue: the worker stops."
    assert installation.leases.claim(job.id, "second").token == 2


def test_stopping_worker_claims_nothing(installation, work):
    work(lambda attempt: pytest.fail("it was claimed"))
    installation.worker.stopping.set()
    job = installation.submit()
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.QUEUED


@pytest.mark.parametrize(
    "ending",
    [
        lambda attempt: attempt.leases.finish(attempt.lease, {"adapter_id": "stale@1"}),
        lambda attempt: attempt.enter("training", "stale"),
        lambda attempt: None,
        raising(JobFailed(Code.TRAINER_CRASHED, "stale")),
        raising(KeyError("stale")),
    ],
    ids=["finish", "report", "return", "failure", "bug"],
)
def test_lost_lease_writes_nothing(installation, work, ending):
    versions = []

    def function(attempt) -> None:
        installation.expire_lease(attempt.lease.job.id)
        assert installation.leases.claim(attempt.lease.job.id, "second")
        versions.append(installation.jobs.get(attempt.lease.job.id).version)
        ending(attempt)

    work(function)
    job = installation.submit()
    installation.worker.run_job(job.id)
    after = installation.jobs.get(job.id)
    assert (after.state, after.attempt, after.version, after.error) == (JobState.RUNNING, 2, versions[0], None)
    assert not any("stale" in message for message in installation.messages(job.id))


def test_raise_if_stopped_raises_the_lost_lease(run, installation):
    def lose(job_id: str) -> None:
        installation.expire_lease(job_id)

    raised = []

    def function(attempt) -> None:
        try:
            until_stopped(lose)(attempt)
        except LeaseLost as error:
            raised.append(error.code)
            raise

    assert run(function).state is JobState.QUEUED
    assert raised == [Code.LEASE_LOST]


def test_message_for_a_missing_job_is_harmless(installation, work):
    work(lambda attempt: pytest.fail("it was claimed"))
    installation.worker.run_job("ftjob-unknown")
    job = installation.submit()
    installation.jobs.cancel(job.id)
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.CANCELLED


@pytest.mark.parametrize("ending", [None, *FINAL_ERRORS], ids=["succeeded", "failed"])
def test_message_of_a_finished_job_does_nothing(installation, work, ending):
    """A queue may deliver a message again at any time: nothing is run, and the job does not change."""
    runs = []

    def function(attempt) -> None:
        runs.append(attempt.lease.token)
        if ending:
            raise ending
        attempt.leases.finish(attempt.lease, {"optimizer_steps": 3})

    work(function)
    job = installation.submit()
    installation.worker.run_job(job.id)
    finished, events = installation.jobs.get(job.id), installation.jobs.events(job.id)
    for worker_ in (installation.worker, installation.second_worker()):
        worker_.run_job(job.id)
    assert runs == [1]
    assert installation.jobs.get(job.id) == finished
    assert installation.jobs.events(job.id) == events


def test_messages_delivered_at_the_same_time_run_the_job_once(installation, work):
    runs, both = [], threading.Barrier(2)

    def function(attempt) -> None:
        runs.append(attempt.lease.token)
        attempt.leases.finish(attempt.lease, {})

    work(function)
    job = installation.submit()

    def deliver(worker_) -> None:
        both.wait()
        worker_.run_job(job.id)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(deliver, [installation.worker, installation.second_worker()]))
    assert runs == [1]
    assert installation.jobs.get(job.id).attempt == 1


def test_job_is_claimed_once(installation, work):
    claimed = []

    def function(attempt) -> None:
        claimed.append(attempt.lease.token)
        installation.second_worker().run_job(attempt.lease.job.id)
        attempt.leases.finish(attempt.lease, {})

    work(function)
    job = installation.submit()
    installation.worker.run_job(job.id)
    installation.worker.run_job(job.id)
    assert claimed == [1]


def test_final_write_waits_for_the_database(run, installation, monkeypatch):
    monkeypatch.setattr(worker.jobs.runner, "WRITE_RETRY_SECONDS", 0.01)
    real, tries = installation.leases.fail, []

    def fail(*args):
        tries.append(1)
        if len(tries) < 4:
            raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")
        return real(*args)

    monkeypatch.setattr(installation.leases, "fail", fail)
    assert run(raising(JobFailed(Code.TRAINER_CRASHED, "It crashed."))).state is JobState.FAILED
    assert len(tries) == 4


def test_final_write_gives_up_when_the_lease_is_over(open_installation, work, monkeypatch):
    installation = open_installation(lease_seconds=0.1)
    monkeypatch.setattr(worker.jobs.runner, "WRITE_RETRY_SECONDS", 0.01)

    def fail(*_: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    monkeypatch.setattr(installation.leases, "fail", fail)
    work(raising(JobFailed(Code.TRAINER_CRASHED, "It crashed.")))
    with pytest.raises(Unavailable):
        installation.worker.run_job(installation.submit().id)


def test_sweep_enqueues_what_is_ready(installation, long_backoff):
    queued, running, waiting = installation.submit(), installation.submit(), installation.submit()
    installation.leases.claim(running.id, "gone")
    lease = installation.leases.claim(waiting.id, "first")
    installation.leases.fail(lease, Unavailable(Code.SERVING_UNAVAILABLE, "No answer."))
    assert installation.worker.sweep() == [queued.id]
    assert installation.job_queue.enqueued == [queued.id]
    installation.expire_lease(running.id)
    assert installation.worker.sweep() == [queued.id, running.id]


def test_sweep_without_enqueueing_takes_leases_back(installation):
    job = installation.submit()
    installation.leases.claim(job.id, "gone")
    with installation.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
    assert installation.worker.sweep(enqueue=False) == []
    assert installation.job_queue.enqueued == []
    assert installation.jobs.get(job.id).state is JobState.QUEUED


def test_sweep_deletes_expired_files(installation, tmp_path):
    digests = []
    for name, expires_at in (("old", datetime(2020, 1, 1, tzinfo=UTC)), ("kept", None)):
        (tmp_path / name).write_text(name)
        digests.append(installation.storage.put_file(tmp_path / name))
        installation.files.add(name, "fine-tune", 3, digests[-1], expires_at)
    installation.worker.sweep()
    assert [installation.storage.blob_path(digest).exists() for digest in digests] == [False, True]


def test_storage_that_is_away_keeps_no_lease_from_being_taken_back(installation, tmp_path, monkeypatch):
    job = installation.submit()
    installation.leases.claim(job.id, "gone")
    installation.files.add("old", "fine-tune", 3, "0" * 64, datetime(2020, 1, 1, tzinfo=UTC))

    def away(_: str) -> None:
        raise Unavailable(Code.STORAGE_UNAVAILABLE, "away")

    monkeypatch.setattr(installation.worker, "storage", SimpleNamespace(delete_blob=away))
    with installation.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
    installation.worker.sweep(enqueue=False)
    assert installation.jobs.get(job.id).state is JobState.QUEUED


def test_sweep_deletes_parts_of_expired_uploads(installation):
    storage, uploads = installation.storage, installation.worker.uploads
    kept, late = (uploads.create("a", "fine-tune", 9, timedelta(hours=hours)) for hours in (1, -1))
    with storage.writer() as writer:
        writer.write(b"part")
        sha256 = writer.commit()
    with installation.database.write() as session:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        session.add(UploadPartRow(id="part-1", upload_id=late.id, bytes=4, sha256=sha256, created_at=moment))
    installation.worker.sweep()
    assert not storage.has_blob(sha256)
    assert [uploads.get(upload.id).status for upload in (kept, late)] == ["pending", "expired"]


# -- the queue ----------------------------------------------------------------------------------------------------------


def test_a_message_runs_the_job_that_is_next_whichever_it_names(installation, work):
    ran = []

    def function(attempt) -> None:
        ran.append(attempt.lease.job.id)
        attempt.leases.finish(attempt.lease, {})

    work(function)
    normal, _ = installation.jobs.submit(submission())
    raised, _ = installation.jobs.submit(submission(priority=1))
    cancelled, _ = installation.jobs.submit(submission())
    installation.jobs.cancel(cancelled.id)
    for message in (normal.id, cancelled.id, raised.id, normal.id):
        installation.worker.run_job(message)
    assert ran == [raised.id, normal.id]


def test_the_end_of_a_job_enqueues_one_that_waited_for_its_tenants_quota(installation, work):
    work(lambda attempt: attempt.leases.finish(attempt.lease, {}))
    quotas = Quotas(installation.database)
    quotas.set("shared", {"running_jobs": 1})
    first, second = installation.submit(), installation.submit()

    def function(attempt) -> None:
        installation.second_worker().run_job(second.id)
        assert installation.jobs.get(second.id).state is JobState.QUEUED
        attempt.leases.finish(attempt.lease, {})

    work(function)
    installation.job_queue.enqueued.clear()
    installation.worker.run_job(first.id)
    assert installation.job_queue.enqueued == [second.id]
    quotas.set("shared", {"running_jobs": None})
    work(lambda attempt: attempt.leases.finish(attempt.lease, {}))
    installation.submit()
    installation.worker.run_job(second.id)
    assert installation.job_queue.enqueued == [second.id], "without a limit no message is missing"


def test_the_sweep_notes_when_waiting_jobs_are_expected_to_start(installation):
    worker_ = installation.worker
    worker_.machines = lambda: [WorkerMachine(device="cpu")]
    installation.jobs.submit(submission(expected_seconds=5.0))
    lease = installation.leases.claim_next("busy")
    waiting, _ = installation.jobs.submit(submission(expected_seconds=5.0))
    worker_.sweep()
    installation.leases.finish(lease, {})
    assert installation.leases.claim_next("busy").job.id == waiting.id
    assert QueueReader(installation.database).places(1).error.jobs == 1
