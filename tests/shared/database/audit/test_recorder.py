"""The recorder on both databases: one event for each change, in its transaction, with the acting identity, and without
secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from shared.database.adapters import Adapters
from shared.database.audit.actors import AuditActor, acting
from shared.database.audit.recorder import record
from shared.database.callers.key_records import KeyChange
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.queueing.quotas import Quotas
from shared.database.routing import Routing
from shared.database.tables.keys import KeyRow
from shared.database.tenancy import Role
from shared.database.webhooks.endpoints import EndpointFields, Endpoints
from shared.observability.log_context import log_ids
from shared.webhooks.events import EventType
from tests.support.builders import claimed, new_adapter, snapshot, submission

ALICE = AuditActor("key", "key-0", "alice", "192.0.2.7")


def events(database: Database, object_type: str | None = None) -> Sequence[AuditEvent]:
    """Oldest first."""
    return AuditLog(database).list(AuditFilter(action=object_type), newest_first=False)


def actions(database: Database, object_type: str | None = None) -> list[str]:
    return [event.action for event in events(database, object_type)]


def change(before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after}


def test_a_keys_life_is_in_the_log_without_its_secrets(database: Database, keys: Keys) -> None:
    with acting(ALICE), log_ids(request_id="req_1"):
        key, secret = keys.create("bot", "acme", Role.VIEWER)
        keys.change(key.id, KeyChange(role=Role.TRAINER, requests_per_minute=60))
        _, new_secret = keys.rotate(key.id, 0)
        keys.revoke(key.id)
    made, changed, rotated, revoked = events(database)
    assert [made.action, changed.action, rotated.action, revoked.action] == [
        "key.created",
        "key.changed",
        "key.rotated",
        "key.revoked",
    ]
    assert (made.tenant, made.object_type, made.object_id, made.request_id) == ("acme", "key", key.id, "req_1")
    assert (made.actor_kind, made.actor_id, made.actor, made.address) == ALICE[:4]
    assert made.changes == {"name": change(None, "bot"), "role": change(None, "viewer")}
    assert changed.changes == {"role": change("viewer", "trainer"), "requests_per_minute": change(None, 60)}
    assert rotated.changes == {"secret_sha256": change("concealed", "concealed")}
    assert revoked.changes["revoked_at"]["after"]
    kept = repr(snapshot(database)["audit_events"])
    with database.read() as session:
        row = session.get_one(KeyRow, key.id)
        assert not [hidden for hidden in (secret, new_secret, row.secret_sha256) if hidden in kept]


def test_what_changes_nothing_or_is_rolled_back_leaves_no_event(database: Database, keys: Keys) -> None:
    key, _ = keys.create("bot")
    keys.change(key.id, KeyChange(name="bot"))
    keys.revoke(key.id)
    keys.revoke(key.id)
    with pytest.raises(RuntimeError), database.write() as session:
        session.get_one(KeyRow, key.id).name = "other"
        session.flush()
        raise RuntimeError
    assert actions(database) == ["key.created", "key.revoked"]


def test_a_job_is_the_owners_until_a_worker_has_it(database: Database, jobs: Jobs, leases: Leases) -> None:
    queued, _ = jobs.submit(submission())
    jobs.pause(queued.id)
    jobs.resume(queued.id)
    jobs.set_priority(queued.id, -1)
    jobs.cancel(queued.id)
    lease = claimed(jobs, leases)
    jobs.cancel(lease.job.id)  # in two flushes, and one event
    leases.stop(lease)
    assert actions(database, "job") == [
        "job.created",
        "job.paused",
        "job.resumed",
        "job.changed",
        "job.cancelled",
        "job.created",
        "job.cancel_requested",
    ]
    assert events(database, "job.changed")[0].changes == {"priority": change(0, -1)}


def test_what_an_attempt_makes_and_moves_is_its_jobs(database: Database, jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    with log_ids(job_id=lease.job.id):
        leases.finish(lease, {}, adapters=[new_adapter()], alias="helper")
    made, moved = events(database)[1:]
    assert (made.action, made.object_id, made.actor_kind, made.actor_id) == (
        "adapter.created",
        "demo@1",
        "job",
        lease.job.id,
    )
    assert (moved.action, moved.object_id, moved.actor) == ("alias.moved", "helper", lease.job.id)
    assert moved.changes["points_to"]["before"] is None
    assert moved.changes["points_to"]["after"]["targets"][0]["adapter"] == "demo@1"
    assert moved.changes["reason"] == change(None, "The job succeeded.")


def test_names_moved_back_and_models_deleted(
    database: Database, jobs: Jobs, leases: Leases, adapters: Adapters
) -> None:
    lease = claimed(jobs, leases)
    leases.finish(lease, {}, adapters=[new_adapter("demo@1"), new_adapter("demo@2", digest="e" * 64, final=False)])
    aliases, by = Aliases(database), Actor(id="key-0", name="alice")
    for adapter in ("demo@1", "demo@2"):
        aliases.set("helper", Routing.to(adapter), by)
    aliases.rollback("helper", by, "worse")
    aliases.delete("helper", by)
    Deletions(database).begin("demo@1")
    assert actions(database)[3:] == [
        "alias.moved",
        "alias.moved",
        "alias.rolled_back",
        "alias.deleted",
        "adapter.deleted",
    ]
    assert [adapter.id for adapter in adapters.page()] == ["demo@2"]


def test_a_webhooks_secret_and_path_are_not_in_the_log(database: Database) -> None:
    endpoints = Endpoints(database, "acme")
    endpoint, secret = endpoints.create("hook", "https://hooks.example/T0/sesame", [EventType.JOB_FAILED])
    endpoints.update(endpoint.id, EndpointFields(None, "https://hooks.example/T1/sesame", None, None))
    endpoints.rotate_secret(endpoint.id, keep_old=True)
    endpoints.update(endpoint.id, EndpointFields(None, None, None, False))
    endpoints.delete(endpoint.id)
    assert [action.partition(".")[2] for action in actions(database)] == [
        "created",
        "changed",
        "rotated",
        "disabled",
        "deleted",
    ]
    found = events(database)
    assert found[0].changes["url"] == change(None, "https://hooks.example")
    assert found[1].changes == {"url": change("https://hooks.example", "https://hooks.example")}
    assert not [hidden for hidden in (secret, "sesame") if hidden in repr(found)]


def test_without_a_name_the_process_acts(database: Database) -> None:
    Quotas(database).set("acme", {"running_jobs": 2})
    (event,) = events(database)
    assert (event.action, event.object_id, event.actor_kind, event.actor_id) == ("quota.changed", "acme", "process", "")
    assert event.changes == {"running_jobs": change(None, 2)}


@pytest.mark.parametrize("statement", ["UPDATE audit_events SET actor = 'mallory'", "DELETE FROM audit_events"])
def test_the_database_refuses_to_change_the_log(database: Database, keys: Keys, statement: str) -> None:
    keys.create("bot")
    before = snapshot(database)
    with pytest.raises(DatabaseError, match="audit log"), database.write() as session:
        session.execute(text(statement))
    assert snapshot(database) == before


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_log_cannot_be_truncated(database: Database) -> None:
    with pytest.raises(DatabaseError, match="audit log"), database.write() as session:
        session.execute(text("TRUNCATE audit_events"))


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_numbers_are_in_the_order_of_commit(database: Database, keys: Keys) -> None:
    """Otherwise a reader that continues after the last number would miss the event of a transaction that commits late."""
    done = threading.Event()

    def create() -> None:
        keys.create("second")
        done.set()

    thread = threading.Thread(target=create)
    with database.write() as session:
        record(session, "acme", "key.created", "key-1", {})
        thread.start()
        assert not done.wait(0.2)
    thread.join(60)
    assert [event.object_id == "key-1" for event in events(database)] == [True, False]
