"""Permissions for adapters on both databases: the owner of each record, if several tenants have the same content."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.database.adapters import Adapters, NewAdapter
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lending.checkpoint_permissions import CheckpointPermissions
from shared.errors import MensError
from tests.support.builders import claimed, new_adapter

ONE = f"demo@{'1' * 64}"
TEXTS = {"self_evaluation": {"samples": ["a row's text"]}, "loss": 1.5}


@pytest.fixture
def made(jobs: Jobs, leases: Leases) -> None:
    train(jobs, leases, "acme")


def train(jobs: Jobs, leases: Leases, tenant: str) -> str:
    lease = claimed(jobs.of(tenant), leases)
    adapter = NewAdapter.model_validate(new_adapter(ONE).model_dump() | {"digest": "1" * 64, "metrics": TEXTS})
    leases.finish(lease, {}, adapters=[adapter])
    return lease.job.id


def lend(database: Database, owner: str, *projects: str) -> list[str]:
    return [one.id for one in CheckpointPermissions(database, owner).grant(ONE, projects)]


def has(database: Database, tenant: str) -> bool:
    return bool(Adapters(database, tenant).published())


def test_texts_of_the_owners_rows_are_not_lent(database: Database, made: None) -> None:
    lend(database, "acme", "guest")
    assert Adapters(database, "acme").get(ONE).metrics == TEXTS
    assert Adapters(database, "guest").get(ONE).metrics == {"loss": 1.5}


@pytest.mark.parametrize("trained", ["before", "after"])
def test_who_trained_the_same_keeps_it(
    database: Database, jobs: Jobs, leases: Leases, made: None, trained: str
) -> None:
    own = train(jobs, leases, "guest") if trained == "before" else None
    (permission,) = lend(database, "acme", "guest")
    own = own or train(jobs, leases, "guest")
    CheckpointPermissions(database, "acme").revoke(ONE, permission)
    kept = Adapters(database, "guest").get(ONE)
    assert (kept.published, kept.job_id, kept.metrics) == (True, own, TEXTS)


def test_what_two_tenants_lent_is_there_until_both_take_it_back(
    database: Database, jobs: Jobs, leases: Leases, made: None
) -> None:
    train(jobs, leases, "other")
    permissions = {owner: lend(database, owner, "guest")[0] for owner in ("acme", "other")}
    for owner, permission in permissions.items():
        assert has(database, "guest")
        CheckpointPermissions(database, owner).revoke(ONE, permission)
    assert not has(database, "guest")


def test_the_owners_files_stay_when_what_was_lent_is_taken_back(database: Database, made: None) -> None:
    (permission,) = lend(database, "acme", "guest")
    CheckpointPermissions(database, "acme").revoke(ONE, permission)
    (pending,) = Deletions(database).pending()
    removed: list[str] = []
    Deletions(database).finish(pending, lambda: removed.append("folder"))
    assert not removed
    assert not Deletions(database).pending()
    assert has(database, "acme")


def test_tenants_lend_the_same_to_each_other_at_once(
    database: Database, jobs: Jobs, leases: Leases, made: None
) -> None:
    train(jobs, leases, "other")
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(lend, database, *pair) for pair in [("acme", "other"), ("other", "acme")] * 4]
        given = {call.result()[0] for call in calls}
    assert len(given) == 2, "one a pair"


def test_a_deletion_and_a_permission_at_once_leave_no_lent_record_without_an_owner(
    database: Database, made: None
) -> None:
    def attempt(call: object) -> bool:
        try:
            call()
        except MensError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        deleted = pool.submit(attempt, lambda: Deletions(database, "acme").begin(ONE))
        lent = pool.submit(attempt, lambda: lend(database, "acme", "guest"))
        assert deleted.result() != lent.result()
    assert has(database, "guest") == lent.result()
