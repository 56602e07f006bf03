"""The list of all tenants, on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.overview.tenants import Tenants
from shared.database.queueing.quotas import Quotas
from shared.database.tenancy import SHARED
from shared.errors import Code, NotFound
from tests.support.builders import claimed, new_adapter, submission
from tests.support.clock import Clock


def test_each_tenant_has_its_own_figures(
    database: Database, keys: Keys, jobs: Jobs, leases: Leases, clock: Clock
) -> None:
    key, _ = keys.create("a", "acme")
    keys.create("expired", "acme", expires_at=clock.now + timedelta(seconds=1))
    keys.revoke(keys.create("revoked", "acme")[0].id)
    Files(database).of("acme").add("rows.jsonl", "fine-tune", 100, "a" * 64)
    Uploads(database).of("acme").create("more.jsonl", "fine-tune", 11, timedelta(days=1000))
    Quotas(database).set("acme", {"running_jobs": 2, "gpu_minutes_per_month": 600})
    leases.finish(claimed(jobs.of("acme"), leases), {}, adapters=[new_adapter()])
    jobs.of("acme").submit(submission())
    jobs.submit(submission())
    clock.now += timedelta(minutes=5)
    keys.record_use({key.id: clock.now})
    acme, shared = Tenants(database).all()
    assert (acme.tenant, acme.valid_keys, acme.files, acme.stored_bytes, acme.adapters) == ("acme", 1, 1, 111, 1)
    assert (acme.queued, acme.running, acme.running_jobs, acme.gpu_minutes_per_month) == (1, 0, 2, 600)
    assert acme.last_active_at == clock.now
    assert (shared.tenant, shared.valid_keys, shared.stored_bytes, shared.queued) == (SHARED, 0, 0, 1)
    assert shared.last_active_at == clock.now - timedelta(minutes=5)
    record = Tenants(database).get("acme")
    assert [one.name for one in record.keys] == ["a", "expired", "revoked"]
    assert record.stored_bytes == 111


def test_a_tenant_that_never_was_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound) as caught:
        Tenants(database).get("acme")
    assert caught.value.code == Code.TENANT_NOT_FOUND
