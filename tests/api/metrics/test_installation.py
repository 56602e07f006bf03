"""Values read from the installation at a scrape: jobs and queue of the real database, replicas of the pool."""

from __future__ import annotations

import time

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.metrics.bounded_label import BoundedLabel
from api.metrics.installation import JobsCollector, ReplicaNow, ReplicasCollector, WebhooksCollector
from shared.database.overview.job_counts import JobCount, JobCounts, QueueAge
from shared.database.overview.webhook_counts import WebhookCounts
from shared.errors import Code, Unavailable

WORKERS = 2


def registry_of(*read: JobCounts | Exception, most: int = 5) -> CollectorRegistry:
    answers = iter(read)

    def count() -> JobCounts:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry = CollectorRegistry()
    registry.register(JobsCollector(count, lambda: WORKERS, BoundedLabel(most=most)))
    return registry


def test_jobs_of_the_database_are_shown(
    app: FastAPI, client: TestClient, job_body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert client.post("/v1/jobs", json=job_body).status_code == 201
    registry = app.state.services.metrics.registry
    monkeypatch.setattr(app.state.services.workers, "machines", list)
    labels = {"kind": "finetune", "state": "queued", "tenant": "shared"}
    assert registry.get_sample_value("mens_jobs", labels) == 2
    assert registry.get_sample_value("mens_queue_jobs", {"kind": "finetune"}) == 2
    assert registry.get_sample_value("mens_queue_jobs", {"kind": "merge"}) == 0
    assert registry.get_sample_value("mens_database_reachable") == 1
    assert registry.get_sample_value("mens_webhook_deliveries", {"status": "pending"}) == 0


def test_oldest_has_waited_since_it_was_queued() -> None:
    registry = registry_of(JobCounts([JobCount("a", "merge", "queued", 1)], [QueueAge("merge", 61.5)]))
    assert registry.get_sample_value("mens_queue_oldest_seconds", {"kind": "merge"}) == 61.5


def test_tenants_beyond_the_bound_are_summed_and_the_largest_keep_theirs() -> None:
    counts = [JobCount(f"t{number}", "finetune", "failed", number) for number in range(1, 9)]
    families = {family.name: family for family in registry_of(JobCounts(counts, []), most=2).collect()}
    jobs = {sample.labels["tenant"]: sample.value for sample in families["mens_jobs"].samples}
    assert jobs == {"t8": 8, "t7": 7, "other": sum(range(1, 7))}


def test_scrape_while_the_database_is_away_says_so() -> None:
    registry = registry_of(Unavailable(Code.DATABASE_UNAVAILABLE, "gone"))
    names = {family.name for family in registry.collect()}
    assert names == {"mens_database_reachable", "mens_workers"}
    assert registry.get_sample_value("mens_database_reachable") == 0, "the second scrape has not asked again"


def test_scrapes_in_a_moment_share_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("api.metrics.installation.time.monotonic", lambda: now)
    registry = registry_of(JobCounts([], []), Unavailable(Code.DATABASE_UNAVAILABLE, "gone"))
    assert [registry.get_sample_value("mens_database_reachable") for _ in range(3)] == [1, 1, 1]
    now += 6
    assert registry.get_sample_value("mens_database_reachable") == 0


def test_webhooks_are_shown_while_the_database_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = WebhookCounts(
        {"pending": 3, "delivered": 5, "failed": 0}, {"enabled": 2, "disabled": 0, "failed": 1}, 12.5
    )
    answers = iter([counts, Unavailable(Code.DATABASE_UNAVAILABLE, "gone")])

    def count() -> WebhookCounts:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    now = time.monotonic()
    monkeypatch.setattr("api.metrics.installation.time.monotonic", lambda: now)
    registry = CollectorRegistry()
    registry.register(WebhooksCollector(count))
    assert registry.get_sample_value("mens_webhook_deliveries", {"status": "pending"}) == 3
    assert registry.get_sample_value("mens_webhook_endpoints", {"state": "failed"}) == 1
    assert registry.get_sample_value("mens_webhook_oldest_seconds") == 12.5
    now += 6
    assert list(registry.collect()) == [], "a number that is not known is none"


def test_every_state_of_a_replica_is_a_series() -> None:
    registry = CollectorRegistry()
    registry.register(ReplicasCollector(lambda: [ReplicaNow("http://a", "down", 3)], ["up", "down"]))
    assert registry.get_sample_value("mens_replica_state", {"replica": "http://a", "state": "down"}) == 1
    assert registry.get_sample_value("mens_replica_state", {"replica": "http://a", "state": "up"}) == 0
    assert registry.get_sample_value("mens_replica_requests_in_flight", {"replica": "http://a"}) == 3
