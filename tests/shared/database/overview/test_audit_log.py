"""The audit log as it is read and pruned, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import pytest

from shared.database.audit.actors import ActorKind, AuditActor, acting
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.tenancy import SHARED
from shared.errors import Code, Conflict
from tests.support.clock import Clock


@pytest.fixture
def log(database: Database, keys: Keys, clock: Clock) -> AuditLog:
    """Add five events, a minute apart: alice's of three keys of acme, and the creation and end of a key in `shared`."""
    with acting(AuditActor("key", "key-a", "alice")):
        for number in range(3):
            keys.create(f"k{number}", "acme")
            clock.now += timedelta(minutes=1)
    key, _ = keys.create("own")
    clock.now += timedelta(minutes=1)
    keys.revoke(key.id)
    return AuditLog(database)


def test_every_kind_of_actor_is_described() -> None:
    description = AuditEvent.model_fields["actor_kind"].description or ""
    assert all(f"`{kind}`: " in description for kind in get_args(ActorKind))


def test_pages_go_both_ways_and_miss_nothing(log: AuditLog) -> None:
    newest = [event.seq for event in log.list(AuditFilter(), limit=2)]
    assert newest == sorted(newest, reverse=True)
    assert len(newest) == 3  # one more than the page, because there are more
    oldest = log.list(AuditFilter(), newest_first=False)
    assert [event.seq for event in log.list(AuditFilter(), after=oldest[1].seq, newest_first=False)] == [
        event.seq for event in oldest[2:]
    ]


def test_filters(log: AuditLog, clock: Clock) -> None:
    first = log.list(AuditFilter(), newest_first=False)[0]
    for which, count in (
        (AuditFilter(tenant="acme"), 3),
        (AuditFilter(action="key.revoked"), 1),
        (AuditFilter(action="key"), 5),
        (AuditFilter(actor="alice"), 3),
        (AuditFilter(actor="key-a", tenant=SHARED), 0),
        (AuditFilter(object_id=first.object_id), 1),
        (AuditFilter(since=clock.now - timedelta(minutes=1)), 2),
        (AuditFilter(until=first.created_at + timedelta(minutes=1)), 1),
        (AuditFilter(object_id="\0"), 0),
    ):
        assert len(log.list(which)) == count, which


def test_pruning_takes_what_was_exported_and_says_so(log: AuditLog) -> None:
    first, second, *rest = log.list(AuditFilter(), newest_first=False)
    with pytest.raises(Conflict) as refused:
        log.prune(second.seq, 3)
    assert refused.value.code == Code.AUDIT_EXPORT_DIFFERS
    assert len(log.list(AuditFilter())) == 5
    assert log.prune(second.seq, 2) == 2
    *kept, said = log.list(AuditFilter(), newest_first=False)
    assert kept == rest
    assert (said.action, said.object_id, said.tenant) == ("audit.pruned", str(second.seq), SHARED)
    assert said.changes["until"]["before"] == second.created_at.isoformat()
    assert first.seq < second.seq < said.seq
