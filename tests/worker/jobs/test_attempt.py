"""One attempt with a small program as the trainer: telemetry to the database, stop requests, and every ending."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

import worker.jobs.runner
from shared.contract.plan import PlannedBase
from shared.database.job_states import JobState, Stage
from shared.database.records import Kind, NewEvent
from shared.errors import Code, LeaseLost, MensError, Unavailable
from worker.jobs.attempt import Attempt
from worker.jobs.child_process import ChildProcess
from worker.jobs.heartbeat import LeaseKeeper
from worker.jobs.stall import StallWatch

STEP = (
    "emit('step', step=3, total_steps=9, epoch=0, loss=1.5, token_accuracy=.5, learning_rate=.1, tokens_per_sec=7.0,"
    " eta_seconds_remaining=None, progress_fraction=.3)\n"
)
OBEDIENT = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(10))\n"
)
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
SLOW_TO_PAUSE = (
    "received = []\nsignal.signal(signal.SIGUSR1, lambda *_: received.append(10))\n"
    "signal.signal(signal.SIGTERM, lambda *_: received.append(11))\nemit('ready')\n"
    "while not received: time.sleep(.01)\ntime.sleep(1.0)\nsys.exit(max(received))\n"
)
RUN_ON = "emit('ready')\ntime.sleep(60)\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("worker.jobs.attempt.POLL_SECONDS", 0.02)


def run(installation, monkeypatch, module: str, when_ready=lambda job_id: None, stall: StallWatch | None = None):
    """Run a job whose work is to follow that module as a child process; returns the job's row afterwards."""
    job = installation.submit()
    children = []

    def work(attempt: Attempt) -> None:
        attempt.run_dir.mkdir(parents=True)
        children.append(ChildProcess(module, attempt.run_dir))
        deadline = time.monotonic() + 20
        while not (attempt.run_dir / "telemetry.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        when_ready(job.id)
        attempt.follow(children[0], stall)
        attempt.leases.finish(attempt.lease, {})

    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, work)
    installation.worker.run_job(job.id)
    assert children[0]._process.poll() is not None
    return installation.jobs.get(job.id)


def test_telemetry_reaches_the_database(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP))
    assert job.state is JobState.SUCCEEDED
    assert job.progress["step"] == 3
    assert job.progress["fraction"] == 0.3
    assert "Step 3/9: training loss=1.5000" in installation.messages(job.id)


def test_crash_of_the_child_fails_the_job(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP + "raise ValueError('odd shape')"))
    assert (job.state, job.error["code"]) == (JobState.FAILED, Code.TRAINER_CRASHED)


def test_killed_child_is_retried(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP + "os.kill(os.getpid(), 9)"))
    assert job.state is JobState.QUEUED
    assert any("TRAINER_KILLED" in message for message in installation.messages(job.id))


HANG = "while True: time.sleep(60)\n"


@pytest.mark.parametrize(
    ("code", "stall"),
    [("emit('ready')\n" + HANG, StallWatch(0.2, 1e9)), (STUBBORN + STEP + HANG, StallWatch(1e9, 0.2))],
    ids=["before its first step", "after a step"],
)
def test_a_trainer_that_hangs_is_killed_and_the_job_tried_again(installation, monkeypatch, fake_trainer, code, stall):
    job = run(installation, monkeypatch, fake_trainer(code), stall=stall)
    assert job.state is JobState.QUEUED
    assert any("TRAINER_STALLED" in message for message in installation.messages(job.id))


def test_a_trainer_that_is_slow_but_moves_is_left_alone(installation, monkeypatch, fake_trainer):
    steps = "for _ in range(5):\n    time.sleep(.1)\n    " + STEP
    job = run(installation, monkeypatch, fake_trainer(steps), stall=StallWatch(1e9, 0.4))
    assert job.state is JobState.SUCCEEDED


def test_cancel(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), installation.jobs.cancel)
    assert job.state is JobState.CANCELLED


def test_pause(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), installation.jobs.pause)
    assert job.state is JobState.PAUSED


def test_shutdown_of_the_worker_returns_the_job_to_the_queue(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), lambda _: installation.worker.stopping.set())
    assert job.state is JobState.QUEUED
    assert "Given back to the queue: the worker stops." in installation.messages(job.id)


def test_cancel_that_has_to_kill_is_still_a_cancel(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(stop_grace_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), installation.jobs.cancel)
    assert job.state is JobState.CANCELLED


def test_pause_that_has_to_kill_is_still_a_pause(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(stop_grace_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), installation.jobs.pause)
    assert job.state is JobState.PAUSED


def test_cancel_while_the_child_pauses_takes_effect(installation, monkeypatch, fake_trainer):
    def pause_then_cancel(job_id: str) -> None:
        installation.jobs.pause(job_id)
        threading.Timer(0.4, installation.jobs.cancel, [job_id]).start()

    job = run(installation, monkeypatch, fake_trainer(SLOW_TO_PAUSE), pause_then_cancel)
    assert job.state is JobState.CANCELLED


def test_lost_lease_kills_the_child_and_writes_nothing(installation, monkeypatch, fake_trainer):
    seen = {}

    def lose(job_id: str) -> None:
        installation.expire_lease(job_id)
        assert installation.leases.claim(job_id, "second")
        seen["version"] = installation.jobs.get(job_id).version

    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), lose)
    assert (job.state, job.attempt, job.version) == (JobState.RUNNING, 2, seen["version"])


# -- without a child process --------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(installation) -> Attempt:
    lease = installation.leases.claim(installation.submit().id, "first")
    keeper = LeaseKeeper(installation.leases, lease, 60)
    return Attempt(
        installation.settings,
        installation.leases,
        installation.storage,
        lease,
        keeper,
        installation.worker.stopping.is_set,
    )


def test_every_attempt_has_a_folder_of_its_own(attempt, installation):
    job_dir = installation.settings.runs_dir / attempt.lease.job.id
    assert attempt.run_dir == job_dir / "attempt-0001"
    for name in ("attempt-0001", "attempt-0003", "attempt-0002", "notes"):
        (job_dir / name).mkdir(parents=True)
    assert [run.name for run in attempt.earlier_runs()] == ["attempt-0003", "attempt-0002"]


def test_entering_a_stage_is_reported(attempt, installation):
    attempt.enter(Stage.TRAINING, "Starting.")
    job = installation.jobs.get(attempt.lease.job.id)
    assert job.stage is Stage.TRAINING
    assert installation.messages(job.id)[-1] == "Starting."


def test_events_wait_while_the_database_is_unavailable(attempt, installation, monkeypatch):
    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    with monkeypatch.context() as patch:
        patch.setattr(installation.leases, "report", unavailable)
        attempt.report(events=[NewEvent(message="one")])
        attempt.report(events=[NewEvent(message="two")])
    attempt.report(events=[NewEvent(message="three")])
    attempt.report()
    assert installation.messages(attempt.lease.job.id)[-3:] == ["one", "two", "three"]


def test_report_of_a_lost_lease_raises(attempt, installation):
    installation.expire_lease(attempt.lease.job.id)
    with pytest.raises(LeaseLost):
        attempt.report(events=[NewEvent(message="late")])
    assert "late" not in installation.messages(attempt.lease.job.id)


def test_base_is_located_and_verified(attempt, installation, tiny, tmp_path):
    planned = PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests)
    assert attempt.locate_base(planned) == tiny.base
    changed = PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests | {"config.json": "0" * 64})
    for other, code in (
        (changed, Code.BASE_DIGEST_MISMATCH),
        (PlannedBase(name="unknown", digests=tiny.entry.digests), Code.MODEL_NOT_FOUND),
    ):
        with pytest.raises(MensError) as failed:
            attempt.locate_base(other)
        assert failed.value.code == code
    shutil.rmtree(tmp_path / "home")
