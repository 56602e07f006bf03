"""The metrics of a worker, read from its registry after attempts with every outcome."""

from __future__ import annotations

import pytest

import worker.jobs.runner
from shared.database.job_states import Stage
from shared.database.records import Kind
from shared.database.webhooks.deliveries import Outcome
from shared.errors import Code, JobFailed, Unavailable
from shared.gpus.driver import Gpu
from worker.jobs.attempt import Stopped
from worker.jobs.child_process import ExitReason
from worker.metrics.counters import WorkerMetrics
from worker.metrics.live import GpuMemory


def raising(error):
    def function(attempt) -> None:
        raise error

    return function


def lose(installation):
    def function(attempt) -> None:
        installation.expire_lease(attempt.lease.job.id)
        attempt.leases.heartbeat(attempt.lease)

    return function


@pytest.fixture
def value(installation):
    def read(name: str, **labels: str) -> float:
        return installation.worker.metrics.registry.get_sample_value(name, labels) or 0.0

    return read


@pytest.mark.parametrize(
    ("work", "outcome", "code"),
    [
        (lambda attempt: attempt.leases.finish(attempt.lease, {}), "succeeded", None),
        (raising(JobFailed(Code.LOSS_NOT_FINITE, "NaN.")), "failed", "LOSS_NOT_FINITE"),
        (raising(KeyError("x")), "failed", "INTERNAL_ERROR"),
        (raising(Unavailable(Code.SERVING_UNAVAILABLE, "Away.")), "retried", "SERVING_UNAVAILABLE"),
        (raising(Stopped(ExitReason.CANCELLED)), "cancelled", None),
        (raising(Stopped(ExitReason.PAUSED)), "released", None),
    ],
    ids=["succeeded", "failed", "bug", "retried", "cancelled", "released"],
)
def test_attempt_is_counted_by_how_it_ended(installation, monkeypatch, value, work, outcome, code):
    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, work)
    installation.worker.run_job(installation.submit().id)
    assert value("mens_attempts_total", kind="finetune", outcome=outcome) == 1
    assert code is None or value("mens_attempt_failures_total", kind="finetune", code=code) == 1
    registry = installation.worker.metrics.registry
    ended = [s for f in registry.collect() if f.name == "mens_attempts" for s in f.samples if s.name.endswith("_total")]
    assert sum(sample.value for sample in ended) == 1


def test_lost_lease_is_counted_once(installation, monkeypatch, value):
    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, lose(installation))
    installation.worker.run_job(installation.submit().id)
    assert value("mens_attempts_total", kind="finetune", outcome="lost") == 1


def test_sweep_counts_what_it_took_back_and_sent_again(installation, value):
    job = installation.submit()
    assert installation.leases.claim(job.id, "dead")
    assert value("mens_sweep_last_success_timestamp_seconds") == 0
    with installation.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
    installation.worker.sweep()
    assert value("mens_leases_expired_total", kind="finetune") == 1
    assert value("mens_sweep_seconds_count") == 1
    assert value("mens_sweep_last_success_timestamp_seconds") > 1e9


def test_time_in_a_stage_ends_with_the_next_or_with_the_attempt(installation, monkeypatch, value):
    def work(attempt) -> None:
        attempt.enter(Stage.PREFLIGHT, "Checking.")
        attempt.enter(Stage.TRAINING, "Training.")
        raise JobFailed(Code.TRAINER_CRASHED, "It crashed.")

    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, work)
    installation.worker.run_job(installation.submit().id)
    for stage in ("preflight", "training"):
        assert value("mens_stage_seconds_count", kind="finetune", stage=stage) == 1
    assert value("mens_stage_seconds_count", kind="finetune", stage="publishing") == 0


def step(**fields: object) -> dict[str, object]:
    return {"event": "step", "payload": {"tokens": 100, "tokens_per_sec": 50.0, "mfu": None, **fields}}


def test_speed_of_training_is_there_while_it_runs_and_no_longer():
    metrics = WorkerMetrics()
    read = metrics.registry.get_sample_value
    assert read("mens_training_tokens_per_second") is None
    metrics.trained("job-1", [step(), {"event": "checkpoint", "payload": {}}, step(tokens_per_sec=70.0, mfu=0.31)])
    assert read("mens_training_tokens_per_second") == 70.0
    assert read("mens_training_mfu") == 0.31
    assert read("mens_training_peak_memory_bytes") is None, "not known, so not 0"
    assert (read("mens_training_steps_total"), read("mens_training_tokens_total")) == (2, 200)
    metrics.training.forget("job-1")
    assert read("mens_training_tokens_per_second") is None
    assert read("mens_training_tokens_total") == 200


@pytest.mark.parametrize(
    ("outcome", "label"),
    [(Outcome(204, None), "delivered"), (Outcome(302, "HTTP 302"), "refused"), (Outcome(None, "late"), "unanswered")],
)
def test_attempt_at_a_webhook_is_counted_by_its_outcome(outcome: Outcome, label: str):
    metrics = WorkerMetrics()
    metrics.attempted_webhook(outcome)
    attempts = {"delivered": 0.0, "refused": 0.0, "unanswered": 0.0} | {label: 1.0}
    read = metrics.registry.get_sample_value
    found = {name: read("mens_webhook_attempts_total", {"outcome": name}) or 0.0 for name in attempts}
    assert found == attempts


def test_memory_of_the_gpus_is_queried_only_if_the_machine_has_some():
    asked = []

    def query() -> list[Gpu]:
        asked.append(1)
        return [Gpu("0", "GPU-1", 80 << 30, 8 << 30, "580.65.06", "H200")]

    total, free = GpuMemory(query, lambda: 1).collect()
    assert [(s.labels, s.value) for s in total.samples] == [({"gpu": "0", "name": "H200"}, 80 << 30)]
    assert [s.value for s in free.samples] == [8 << 30]
    assert [family.samples for family in GpuMemory(query, lambda: 0).collect()] == [[], []]
    several = GpuMemory(query, lambda: 1)
    list(several.collect()), list(several.collect())
    assert len(asked) == 2, "scrapes in a moment share an answer"
