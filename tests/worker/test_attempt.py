"""One attempt with a stand-in for the engine: telemetry to the ledger, requests to the engine, and every ending."""

from __future__ import annotations

import shutil
import time

import pytest

import worker.run
from shared.errors import Code, LeaseLost, MensError, Unavailable
from shared.job import Kind, NewEvent
from shared.jobstate import Stage, State
from shared.planner import PlannedBase
from worker.attempt import Attempt
from worker.engine import Engine
from worker.lease_keeper import LeaseKeeper

STEP = (
    "tell('step', step=3, total_steps=9, epoch=0, loss=1.5, token_accuracy=.5, learning_rate=.1, tokens_per_sec=7.0,"
    " eta_seconds_remaining=None, progress_fraction=.3)\n"
)
OBEDIENT = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(10))\n"
)
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
SLOW_TO_PAUSE = (
    "asked = []\nsignal.signal(signal.SIGUSR1, lambda *_: asked.append(10))\n"
    "signal.signal(signal.SIGTERM, lambda *_: asked.append(11))\ntell('ready')\n"
    "while not asked: time.sleep(.01)\ntime.sleep(1.0)\nsys.exit(max(asked))\n"
)
RUN_ON = "tell('ready')\ntime.sleep(60)\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("worker.attempt.POLL_SECONDS", 0.02)


def run(shop, monkeypatch, module: str, when_ready=lambda job_id: None):
    """Run a job whose work is to follow a stand-in engine; returns the job as the ledger then has it."""
    job = shop.submit()
    engines = []

    def work(attempt: Attempt) -> None:
        attempt.run_dir.mkdir(parents=True)
        engines.append(Engine(module, attempt.run_dir))
        deadline = time.monotonic() + 20
        while not (attempt.run_dir / "telemetry.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        when_ready(job.id)
        attempt.follow(engines[0])
        attempt.ledger.finish(attempt.lease, {})

    monkeypatch.setitem(worker.run.RUNNERS, Kind.FINETUNE, work)
    shop.worker.run_job(job.id)
    assert engines[0]._process.poll() is not None
    return shop.ledger.get(job.id)


def test_telemetry_reaches_the_ledger(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(STEP))
    assert job.state is State.SUCCEEDED
    assert job.progress["step"] == 3
    assert job.progress["fraction"] == 0.3
    assert "Step 3/9: training loss=1.5000" in shop.messages(job.id)


def test_failure_of_the_engine_fails_the_job(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(STEP + "raise ValueError('odd shape')"))
    assert (job.state, job.error["code"]) == (State.FAILED, Code.TRAINER_CRASHED)


def test_killed_engine_is_tried_again(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(STEP + "os.kill(os.getpid(), 9)"))
    assert job.state is State.QUEUED
    assert any("TRAINER_KILLED" in message for message in shop.messages(job.id))


def test_cancel(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(OBEDIENT + RUN_ON), shop.ledger.cancel)
    assert job.state is State.CANCELLED


def test_pause(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(OBEDIENT + RUN_ON), shop.ledger.pause)
    assert job.state is State.PAUSED


def test_shutdown_of_the_worker_gives_the_job_back(shop, monkeypatch, fake_engine):
    job = run(shop, monkeypatch, fake_engine(OBEDIENT + RUN_ON), lambda _: shop.worker.stopping.set())
    assert job.state is State.QUEUED
    assert "Given back to the queue: the worker stops." in shop.messages(job.id)


def test_cancel_of_an_engine_that_must_be_killed_is_still_a_cancel(open_shop, monkeypatch, fake_engine):
    shop = open_shop(stop_grace_seconds=0.2)
    job = run(shop, monkeypatch, fake_engine(STUBBORN + RUN_ON), shop.ledger.cancel)
    assert job.state is State.CANCELLED


def test_pause_of_an_engine_that_must_be_killed_is_still_a_pause(open_shop, monkeypatch, fake_engine):
    shop = open_shop(stop_grace_seconds=0.2)
    job = run(shop, monkeypatch, fake_engine(STUBBORN + RUN_ON), shop.ledger.pause)
    assert job.state is State.PAUSED


def test_cancel_while_the_engine_is_pausing_is_not_forgotten(shop, monkeypatch, fake_engine):
    def pause_then_cancel(job_id: str) -> None:
        import threading

        shop.ledger.pause(job_id)
        threading.Timer(0.4, shop.ledger.cancel, [job_id]).start()

    job = run(shop, monkeypatch, fake_engine(SLOW_TO_PAUSE), pause_then_cancel)
    assert job.state is State.CANCELLED


def test_lost_lease_kills_the_engine_and_writes_nothing(shop, monkeypatch, fake_engine):
    seen = {}

    def lose(job_id: str) -> None:
        shop.expire_lease(job_id)
        assert shop.leases.claim(job_id, "second")
        seen["version"] = shop.ledger.get(job_id).version

    job = run(shop, monkeypatch, fake_engine(STUBBORN + RUN_ON), lose)
    assert (job.state, job.attempt, job.version) == (State.RUNNING, 2, seen["version"])


# -- without an engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(shop) -> Attempt:
    lease = shop.leases.claim(shop.submit().id, "first")
    keeper = LeaseKeeper(shop.leases, lease, 60)
    return Attempt(shop.settings, shop.leases, shop.storage, lease, keeper, shop.worker.stopping.is_set)


def test_every_attempt_has_a_folder_of_its_own(attempt, shop):
    job_dir = shop.settings.runs_dir / attempt.lease.job.id
    assert attempt.run_dir == job_dir / "attempt-0001"
    for name in ("attempt-0001", "attempt-0003", "attempt-0002", "notes"):
        (job_dir / name).mkdir(parents=True)
    assert [run.name for run in attempt.earlier_runs()] == ["attempt-0003", "attempt-0002"]


def test_entering_a_stage_is_told(attempt, shop):
    attempt.enter(Stage.TRAINING, "Starting.")
    job = shop.ledger.get(attempt.lease.job.id)
    assert job.stage is Stage.TRAINING
    assert shop.messages(job.id)[-1] == "Starting."


def test_events_wait_while_the_database_is_away(attempt, shop, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    with monkeypatch.context() as patch:
        patch.setattr(shop.leases, "report", away)
        attempt.report(events=[NewEvent(message="one")])
        attempt.report(events=[NewEvent(message="two")])
    attempt.report(events=[NewEvent(message="three")])
    attempt.report()
    assert shop.messages(attempt.lease.job.id)[-3:] == ["one", "two", "three"]


def test_report_of_a_lost_lease_raises(attempt, shop):
    shop.expire_lease(attempt.lease.job.id)
    with pytest.raises(LeaseLost):
        attempt.report(events=[NewEvent(message="late")])
    assert "late" not in shop.messages(attempt.lease.job.id)


def test_base_is_located_and_verified(attempt, shop, lab, tmp_path):
    planned = PlannedBase(name=lab.entry.name, digests=lab.entry.digests)
    assert attempt.locate_base(planned) == lab.base
    changed = PlannedBase(name=lab.entry.name, digests=lab.entry.digests | {"config.json": "0" * 64})
    for other, code in (
        (changed, Code.BASE_DIGEST_MISMATCH),
        (PlannedBase(name="unknown", digests=lab.entry.digests), Code.MODEL_NOT_FOUND),
    ):
        with pytest.raises(MensError) as failed:
            attempt.locate_base(other)
        assert failed.value.code == code
    shutil.rmtree(tmp_path / "home")
