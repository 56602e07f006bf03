"""Costs: GPU time and tokens by day, tenant, key and base, on both databases."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

from shared.database.audit.actors import AuditActor, acting
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lists.job_filter import JobFilter
from shared.database.overview.costs import Costs, Payer, Prices
from shared.database.usage import Amount, Period, Usage, UsageAccount
from shared.errors import InvalidRequest
from tests.support.builders import claimed, new_adapter
from tests.support.clock import Clock

PRICES = Prices("EUR", Decimal("1.80"), Decimal("0.20"), Decimal("0.60"))
EVERYONE = Payer(None)
GROUPS = ("day", "tenant", "key", "base")


@pytest.fixture
def today(clock: Clock) -> date:
    return clock.now.date()


@pytest.fixture
def used(database: Database, jobs: Jobs, leases: Leases, clock: Clock, today: date) -> None:
    """Two jobs of different tenants, one of which made an adapter; requests to it and to its base; one job that runs.

    Alice is a person who signs in at an identity provider, Bob a key.
    """
    keys = Keys(database)
    alice, _ = keys.create("alice", "acme")
    bob, _ = keys.create("bob, =1+1", "other")
    with acting(AuditActor.of_key(alice.id, alice.name, "00u1", "::1")):
        lease = claimed(jobs.of("acme"), leases, base_model="tiny")
        clock.advance(120)
        leases.finish(lease, {"adapter_id": "demo@1"}, adapters=[new_adapter("demo@1")])
    with acting(AuditActor.of_key(bob.id, bob.name, None, "::1")):
        lease = claimed(jobs.of("other"), leases, base_model="large")
        clock.advance(60)
        leases.finish(lease, {})
        claimed(jobs.of("other"), leases)
    day = today.isoformat()
    Usage(database).add(
        {
            UsageAccount(day, alice.id, "demo@1", "acme"): Amount(2, 1_000_000, 10, 500_000),
            UsageAccount(day, alice.id, "tiny", "acme"): Amount(1, 1_000_000, 0, 0),
            UsageAccount(day, bob.id, "tiny", "other"): Amount(1, 7, 0, 3),
        }
    )


@pytest.mark.usefixtures("used")
def test_gpu_time_and_tokens_of_a_group_are_one_line(database: Database, today: date) -> None:
    costs = Costs(database, PRICES)
    period = Period(today - timedelta(days=1), today + timedelta(days=1))
    first, *others = costs.lines(EVERYONE, period, GROUPS)
    assert first.model_dump() == {
        "id": f"{today},acme,alice,tiny",
        "day": today.isoformat(),
        "tenant": "acme",
        "key_name": "alice",
        "base": "tiny",
        "model": None,
        "job_id": None,
        "attempts": 1,
        "gpu_minutes": 2.0,
        "requests": 3,
        "prompt_tokens": 2_000_000,
        "cached_tokens": 10,
        "completion_tokens": 500_000,
        "gpu_cost": "0.0600",
        "token_cost": "0.7000",
        "currency": "EUR",
    }
    assert [(line.key_name, line.base, line.gpu_minutes, line.requests) for line in others] == [
        ("bob, =1+1", "large", 1.0, 0),
        ("bob, =1+1", "tiny", 0.0, 1),
    ]
    pages, after = [], None
    while page := costs.lines(EVERYONE, period, GROUPS, after=after, limit=1)[:1]:
        pages += page
        after = page[0].id
    assert pages == [first, *others], "ids with commas are cursors, too"
    by_base = costs.lines(EVERYONE, period, ["base"])
    assert [(line.base, line.gpu_minutes, line.day) for line in by_base] == [("large", 1.0, None), ("tiny", 2.0, None)]
    [all_together] = costs.lines(EVERYONE, period, [])
    assert (all_together.id, all_together.attempts, all_together.gpu_minutes) == ("", 2, 3.0)
    for wrong in ("2026-01-01", "2026-01-01,%00"):
        with pytest.raises(InvalidRequest):
            costs.lines(EVERYONE, period, ["day", "key"], after=wrong)


@pytest.mark.usefixtures("used")
def test_training_and_requests_of_a_model_or_a_job_are_one_line(database: Database, jobs: Jobs, today: date) -> None:
    costs, period = Costs(database, PRICES), Period(today, today)
    by_model = costs.lines(EVERYONE, period, ["model"])
    assert [(line.model, line.gpu_minutes, line.requests) for line in by_model] == [
        ("demo@1", 2.0, 2),
        ("large", 1.0, 0),
        ("tiny", 0.0, 2),
    ]
    assert (by_model[0].gpu_cost, by_model[0].token_cost) == ("0.0600", "0.5000")
    by_job = {line.job_id: (line.gpu_minutes, line.requests) for line in costs.lines(EVERYONE, period, ["job"])}
    (acme,) = jobs.of("acme").list(JobFilter())
    assert by_job.pop(acme.id) == (2.0, 2)
    assert by_job.pop("") == (0.0, 2), "a base answered"
    assert list(by_job.values()) == [(1.0, 0)]
    [line] = costs.lines(Payer("acme"), period, ["base", "model", "job"], after=f"tiny,demo%401,{acme.id[:-1]}")[:1]
    assert line.id == f"tiny,demo%401,{acme.id}"


@pytest.mark.usefixtures("used")
def test_costs_of_one_tenant_key_or_day_alone(database: Database, today: date) -> None:
    costs, period = Costs(database, Prices()), Period(today, today)
    [acme] = costs.lines(Payer("acme"), period, ["key"])
    assert (acme.key_name, acme.gpu_minutes, acme.requests) == ("alice", 2.0, 3)
    assert (acme.gpu_cost, acme.token_cost, acme.currency) == (None, None, None), "no price is never a guess"
    assert costs.lines(Payer("acme", "key-other", "carol"), period, ["key"]) == []
    yesterday = today - timedelta(days=1)
    assert costs.lines(EVERYONE, Period(yesterday, yesterday), ["day"]) == []
    assert costs.lines(Payer("nobody"), period, []) == []


def test_gpu_price_alone_prices_no_tokens() -> None:
    prices = Prices("EUR", gpu_hour=Decimal(2))
    assert (prices.of_gpu(1800), prices.of_tokens(10, 10)) == (Decimal("1.0000"), None)
