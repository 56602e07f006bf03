"""Webhooks counted over all tenants: a delivery that is due and not sent is late; one that waits for its time or its
turn is not.
"""

from __future__ import annotations

import pytest

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.overview.webhook_counts import WebhookCounts, count_webhooks
from shared.database.webhooks.deliveries import LEASE, Deliveries, Outcome
from shared.database.webhooks.endpoints import EndpointFields, Endpoints
from shared.webhooks.events import EventType
from tests.support.builders import submission
from tests.support.clock import Clock

NONE = {"pending": 0, "delivered": 0, "failed": 0}
DOWN, TAKEN, GONE = Outcome(500, "HTTP 500"), Outcome(204, None), Outcome(410, "HTTP 410")


@pytest.fixture
def deliveries(database: Database) -> Deliveries:
    return Deliveries(database, jitter=lambda: 0.0)


def add(database: Database, tenant: str) -> str:
    return Endpoints(database, tenant).create("x", "https://hooks.example/x", list(EventType))[0].id


def end_a_job(jobs: Jobs, tenant: str) -> None:
    of_tenant = jobs.of(tenant)
    of_tenant.cancel(of_tenant.submit(submission())[0].id)


def oldest(database: Database) -> float:
    return count_webhooks(database).oldest_seconds


def test_without_webhooks_every_count_is_zero(database: Database) -> None:
    assert count_webhooks(database) == WebhookCounts(NONE, {"enabled": 0, "disabled": 0, "failed": 0}, 0.0)


def test_deliveries_and_endpoints_of_all_tenants_are_counted(
    database: Database, deliveries: Deliveries, jobs: Jobs
) -> None:
    outcomes = {add(database, tenant): outcome for tenant, outcome in (("a", TAKEN), ("b", DOWN), ("c", GONE))}
    Endpoints(database, "d").update(add(database, "d"), EndpointFields(enabled=False))
    for tenant in "abc":
        end_a_job(jobs, tenant)
    for claimed in deliveries.claim(16):
        deliveries.settle(claimed, outcomes[claimed.endpoint_id])
    found = count_webhooks(database)
    assert found.deliveries == {"pending": 1, "delivered": 1, "failed": 1}
    assert found.endpoints == {"enabled": 2, "disabled": 1, "failed": 1}


def test_delivery_is_late_from_when_it_is_due(
    database: Database, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    add(database, "a")
    end_a_job(jobs, "a")
    clock.advance(40)
    assert oldest(database) == 40
    (attempt,) = deliveries.claim(16)
    assert oldest(database) == 0, "it is being sent"
    deliveries.settle(attempt, DOWN)
    clock.advance(4)
    assert oldest(database) == 0, "it waits for its next attempt"
    clock.advance(3)
    assert oldest(database) == 2


def test_delivery_behind_a_slow_one_of_its_endpoint_is_not_late(
    database: Database, deliveries: Deliveries, jobs: Jobs, clock: Clock
) -> None:
    add(database, "a")
    for _ in range(2):
        end_a_job(jobs, "a")
    assert len(deliveries.claim(16)) == 1
    clock.advance(LEASE.total_seconds() - 1)
    assert oldest(database) == 0
    clock.advance(1)
    assert oldest(database) == LEASE.total_seconds(), "who sent it is gone"
