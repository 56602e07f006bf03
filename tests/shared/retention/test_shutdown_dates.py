"""Dates that the API announces are those on which retention deletes an adapter."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from shared.database.connection import Database
from shared.database.lending.checkpoint_permissions import CheckpointPermissions
from shared.database.names.aliases import Actor
from shared.database.routing import Routing
from shared.database.tenancy import SHARED
from shared.retention.inventory import stored_adapters
from shared.retention.shutdown_dates import shutdown_dates
from shared.settings import AdapterRetentionSettings
from tests.support.builders import claimed, new_adapter
from tests.support.clock import Clock
from tests.support.retention_home import Home, named

BY = Actor(id="key-1", name="alice")
DAY = timedelta(days=1).total_seconds()


@pytest.fixture
def home(tmp_path: Path, database: Database, clock: Clock) -> Home:
    return Home(tmp_path, database, clock)


def jobs_of(home: Home) -> set[str]:
    with home.database.read() as session:
        return {one.job_id for one in stored_adapters(session)}


def dates(home: Home, **policy: float) -> dict[str, date]:
    found = shutdown_dates(home.database, AdapterRetentionSettings(home=home.folder, **policy), jobs_of(home))
    assert {tenant for tenant, _ in found} <= {SHARED}
    return {name.partition("@")[2][:1]: day for (_, name), day in found.items()}


def test_no_rule_announces_nothing(home: Home) -> None:
    home.train("a", "b")
    assert dates(home) == {}


def test_an_adapter_ends_when_no_name_has_pointed_to_it_for_long_enough(home: Home) -> None:
    home.train("a", "b")
    home.aliases.set("prod", Routing.to(f"demo@{'b' * 64}"), BY)
    made = home.clock.now
    assert dates(home, retain_unaliased_days=30) == {"a": (made + timedelta(days=30)).date()}
    home.clock.advance(10 * DAY)
    home.train("c")
    home.aliases.set("prod", Routing.to(f"demo@{'c' * 64}"), BY)
    assert dates(home, retain_unaliased_days=30).keys() == {"a"}, "the alias can be rolled back to b"
    left = dates(home, retain_unaliased_days=30, retain_alias_moves=0)
    assert left["b"] == (made + timedelta(days=40)).date()


def test_a_checkpoint_of_a_cancelled_job_ends_a_month_later(home: Home) -> None:
    lease = claimed(home.jobs, home.leases)
    for letter in "ab":
        home.leases.register(lease, new_adapter(f"demo@{letter * 64}", digest=letter * 64, final=False))
    home.clock.advance(DAY)
    assert dates(home) == {}
    home.leases.stop(lease)
    home.aliases.set("prod", Routing.to(f"demo@{'b' * 64}"), BY)
    assert dates(home) == {"a": (home.clock.now + timedelta(days=30)).date()}


def test_what_is_due_ends_today_and_is_what_retention_deletes(home: Home) -> None:
    home.train("a", "b", "c", "d")
    home.clock.advance(3 * DAY)
    found = dates(home, retain_checkpoints=1)
    assert found == dict.fromkeys("ab", home.clock.now.date())
    assert [letter for _, letter in named(home.keep(retain_checkpoints=1).find())] == ["a", "b"]


def test_an_adapter_that_another_tenant_may_use_has_no_date(home: Home) -> None:
    home.train("a", "b", tenant="acme")
    policy = AdapterRetentionSettings(home=home.folder, retain_unaliased_days=1)
    CheckpointPermissions(home.database, "acme").grant(f"demo@{'b' * 64}", ["guest"])
    assert [name[5] for _, name in shutdown_dates(home.database, policy, jobs_of(home))] == ["a"]


def test_only_the_adapters_of_the_jobs_are_read(home: Home) -> None:
    """One model's date must not cost the reading of every tenant's adapters."""
    home.train("a", "b")
    home.train("c", "d", tenant="acme")
    policy = AdapterRetentionSettings(home=home.folder, retain_checkpoints=1)
    with home.database.read() as session:
        jobs = {one.job_id for one in stored_adapters(session) if one.tenant == "acme"}
        assert {one.tenant for one in stored_adapters(session, jobs)} == {"acme"}
    home.clock.advance(DAY)
    assert {tenant for tenant, _ in shutdown_dates(home.database, policy, jobs)} <= {"acme"}
