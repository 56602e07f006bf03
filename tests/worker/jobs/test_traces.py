"""An attempt, its stages and its child process join the trace of the request that created the job, on a real OTLP
receiver.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import worker.jobs.runner
from shared.database.job_states import Stage
from shared.database.records import Kind
from shared.errors import Code, Unavailable
from shared.observability import tracing
from tests.support.otlp_receiver import OtlpReceiver, running_receiver
from tests.support.waiting import eventually
from worker.jobs.child_process import ChildProcess

pytestmark = pytest.mark.network
TRACE = "0af7651916cd43dd8448eb211c80319c"
SUBMIT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_receiver() as receiver:
        monkeypatch.setenv("MENS_OTLP_ENDPOINT", receiver.url)
        yield receiver


def work(attempt) -> None:
    attempt.enter(Stage.PREFLIGHT, "Checking.")
    attempt.enter(Stage.TRAINING, "Training.")
    attempt.run_dir.mkdir(parents=True)
    attempt.follow(ChildProcess("tests.support.quiet_child", attempt.run_dir))
    if attempt.lease.token == 1:
        raise Unavailable(Code.SERVING_UNAVAILABLE, "Away.")
    attempt.enter(Stage.PUBLISHING, "Publishing.")
    attempt.leases.finish(attempt.lease, {})


def test_every_attempt_is_part_of_the_trace_that_made_the_job(installation, monkeypatch, receiver):
    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, work)
    job = installation.submit()
    with installation.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET traceparent = ?", (SUBMIT,))
    tracing.start_tracing(receiver.url, "mens-worker")
    try:
        installation.worker.run_job(job.id)
        installation.skip_backoff(job.id)
        installation.worker.run_job(job.id)
    finally:
        tracing.stop_tracing()
    attempts = receiver.named("attempt finetune")
    assert [span.attributes["mens.attempt"] for span in attempts] == ["1", "2"]
    assert {span.parent_id for span in attempts} == {"b7ad6b7169203331"}
    assert {span.attributes["mens.job_id"] for span in attempts} == {job.id}
    for span, stages in zip(
        attempts, (["preflight", "training"], ["preflight", "training", "publishing"]), strict=True
    ):
        inside = [s.name for s in receiver.spans if s.parent_id == span.span_id and s.service == "mens-worker"]
        assert inside == [f"stage {stage}" for stage in stages]
        (child,) = [s for s in receiver.named("quiet_child") if s.parent_id == span.span_id]
        assert child.service == "mens-quiet_child"
    assert {span.trace_id for span in receiver.spans} == {TRACE}


def test_job_remembers_the_trace_that_it_was_made_in(installation, receiver):
    tracing.start_tracing(receiver.url, "mens-api")
    try:
        with tracing.span("POST /v1/jobs"):
            installation.submit()
        installation.submit()
    finally:
        tracing.stop_tracing()
    (made,) = receiver.spans
    leases = [installation.leases.claim_next("first", 1), installation.leases.claim_next("second", 1)]
    first, second = [lease.traceparent for lease in leases]
    assert first.split("-")[1:3] == [made.trace_id, made.span_id]
    assert second is None, "it was made outside of any trace"


def test_receiver_that_is_away_costs_the_job_nothing(installation, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, lambda a: a.leases.finish(a.lease, {}))
    job = installation.submit()
    tracing.start_tracing("http://127.0.0.1:9", "mens-worker")
    try:
        installation.worker.run_job(job.id)
    finally:
        tracing.stop_tracing()
    eventually(lambda: installation.jobs.get(job.id).state == "succeeded")
