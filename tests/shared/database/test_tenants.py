"""Tenants on both databases: each sees its own things and the shared ones, and changes its own only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from api.migrate import MIGRATIONS, migrate
from shared.aliases import Aliases, Mover
from shared.changes import Changes
from shared.db import Database
from shared.errors import Code, Forbidden, MensError
from shared.keys import Keys
from shared.lease import LeaseLedger, ResultFile
from shared.ledger import Ledger
from shared.registry import NewAdapter, Registry
from shared.routing import Routing
from shared.tables import AdapterRow
from shared.tenancy import BEFORE_TENANTS, SHARED, Role, visible_to
from tests.shared.old_rows import JOB, write_rows
from tests.shared.samples import claimed, new_adapter, snapshot, submission

TENANTS = ("acme", "other", SHARED)
BY = Mover(id="key-1", name="alice")


def code(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value.code


def finish(ledger: Ledger, leases: LeaseLedger, tenant: str, *made: NewAdapter, **options: Any) -> str:
    """A job of a tenant that made these adapters; its id."""
    lease = claimed(ledger.of(tenant), leases)
    leases.finish(lease, {}, adapters=list(made), **options)
    return lease.job.id


def ids(things: list[Any]) -> list[str]:
    return [thing.id for thing in things]


# -- rules ---------------------------------------------------------------------------------------------------------


def test_who_sees_whom() -> None:
    assert visible_to("acme") == ("acme", SHARED)
    assert visible_to(SHARED) == (SHARED,)


def test_each_role_includes_those_before_it() -> None:
    order = [Role.VIEWER, Role.TRAINER, Role.ADMIN]
    for place, role in enumerate(order):
        assert [role.includes(other) for other in order] == [index <= place for index in range(3)]


# -- files ---------------------------------------------------------------------------------------------------------


def add(registry: Registry, tenant: str, **changes: Any) -> str:
    fields = {"filename": f"{tenant}.jsonl", "purpose": "fine-tune", "size": 1, "sha256": "a" * 64} | changes
    return registry.of(tenant).add_file(**fields).id


def test_files_are_seen_and_deleted_by_the_right_ones(registry: Registry, database: Database) -> None:
    file = {tenant: add(registry, tenant) for tenant in TENANTS}
    acme = registry.of("acme")
    assert ids(acme.files(after=None, limit=9, purpose=None, newest_first=False)) == [file["acme"], file[SHARED]]
    assert (acme.file(file["acme"]).tenant, acme.file(file[SHARED]).tenant) == ("acme", SHARED)
    before = snapshot(database)
    assert code(acme.file, file["other"]) == code(acme.delete_file, file["other"]) == Code.FILE_NOT_FOUND
    assert code(acme.delete_file, file[SHARED]) == Code.TENANT_FORBIDDEN
    assert code(registry.of(SHARED).delete_file, file["acme"]) == Code.FILE_NOT_FOUND
    assert snapshot(database) == before
    assert [registry.of(tenant).delete_file(file[tenant]) for tenant in TENANTS] == [None, None, "a" * 64], (
        "equal files of two tenants are one blob, which goes with the last"
    )


def test_shared_file_is_kept_for_a_job_that_its_owner_cannot_see(registry: Registry, ledger: Ledger) -> None:
    file_id = add(registry, SHARED)
    job, _ = ledger.of("acme").submit(submission(extra={"training_file": file_id}))
    with pytest.raises(MensError) as caught:
        registry.delete_file(file_id)
    assert caught.value.code is Code.FILE_IN_USE
    assert job.id not in str(caught.value)


def test_expired_files_of_every_tenant_go(registry: Registry) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    file = {tenant: add(registry, tenant, sha256=tenant, expires_at=past) for tenant in TENANTS}
    assert sorted(registry.delete_expired_files()) == sorted(TENANTS)
    assert {code(registry.of(tenant).file, file[tenant]) for tenant in TENANTS} == {Code.FILE_NOT_FOUND}


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_jobs_are_seen_by_the_right_ones(ledger: Ledger) -> None:
    job = {tenant: ledger.of(tenant).submit(submission(labels={"a": "b"}))[0] for tenant in TENANTS}
    assert {tenant: made.tenant for tenant, made in job.items()} == {tenant: tenant for tenant in TENANTS}
    acme = ledger.of("acme")
    for found in (acme.list_jobs(), acme.list_jobs(labels={"a": "b"})):
        assert ids(found) == [job[SHARED].id, job["acme"].id]
    assert acme.get(job[SHARED].id) == job[SHARED]
    assert len(acme.events(job[SHARED].id)) == len(acme.recent_events(job["acme"].id)) == 1
    theirs = job["other"].id
    assert code(acme.get, theirs) == code(acme.preflight, theirs) == Code.JOB_NOT_FOUND
    assert acme.events(theirs) == acme.recent_events(theirs) == []


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_jobs_are_changed_by_their_tenant_only(ledger: Ledger, database: Database, verb: str) -> None:
    job = {tenant: ledger.of(tenant).submit(submission())[0].id for tenant in TENANTS}
    before = snapshot(database)
    change = getattr(ledger.of("acme"), verb)
    with pytest.raises(MensError) as foreign:
        change(job["other"])
    with pytest.raises(MensError) as unknown:
        change("ftjob-none")
    assert foreign.value.as_dict() == {**unknown.value.as_dict(), "message": f"There is no job {job['other']!r}."}
    assert code(change, job[SHARED]) == Code.TENANT_FORBIDDEN
    assert snapshot(database) == before
    if verb != "resume":
        assert change(job["acme"]).version == 2


def test_what_is_learnt_from_jobs_is_of_those_that_are_seen(ledger: Ledger, leases: LeaseLedger) -> None:
    for number, tenant in enumerate(TENANTS):
        memory = {"device": tenant, "predicted_bytes": 10, "peak_bytes": 11}
        leases.finish(claimed(ledger.of(tenant), leases), {"memory": memory, "tokens_per_second": number + 1.0})
    assert [line.device for line in ledger.of("acme").memory_accuracy()] == ["acme", SHARED]
    assert ledger.of("other").training_rate("tiny") == 3.0
    assert ledger.of("nobody").training_rate("tiny") == 3.0


def test_what_a_job_makes_is_its_tenants(
    ledger: Ledger, leases: LeaseLedger, registry: Registry, database: Database
) -> None:
    lease = claimed(ledger.of("acme"), leases)
    result = ResultFile("metrics.csv", 3, "f" * 64)
    job = leases.finish(lease, {}, adapters=[new_adapter("demo@1")], alias="prod", files=[result])
    leases.quarantine(claimed(ledger.of("acme"), leases), new_adapter("bad@1", published=False, certificates={"a": 1}))
    [file_id] = job.result["result_files"]
    assert registry.of("acme").file(file_id).tenant == "acme"
    assert registry.of("acme").adapter("prod").id == "demo@1"
    assert Aliases(database, "acme").get("prod").tenant == "acme"
    assert {adapter.tenant for adapter in registry.of("acme").adapters()} == {"acme"}
    for tenant in ("other", SHARED):
        assert code(registry.of(tenant).file, file_id) == Code.FILE_NOT_FOUND
        assert {code(registry.of(tenant).adapter, name) for name in ("demo@1", "prod", "bad@1")} == {
            Code.ADAPTER_NOT_FOUND
        }
        assert Aliases(database, tenant).find("prod") is None


# -- adapters ------------------------------------------------------------------------------------------------------


def test_adapters_of_others_are_not_there(ledger: Ledger, leases: LeaseLedger, registry: Registry) -> None:
    for tenant in TENANTS:
        finish(ledger, leases, tenant, new_adapter(f"{tenant}@1"))
    acme = registry.of("acme")
    assert sorted(ids(acme.adapters())) == sorted(ids(acme.adapters(published_only=True))) == ["acme@1", "shared@1"]
    assert sorted(ids(acme.adapters(ids=["acme@1", "other@1"]))) == ["acme@1"]
    assert code(acme.adapter, "other@1") == Code.ADAPTER_NOT_FOUND
    assert ids(registry.of(SHARED).adapters()) == ["shared@1"]


def test_same_content_of_two_tenants_is_one_thing_with_two_records(
    ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    job = {tenant: finish(ledger, leases, tenant, new_adapter("demo@1")) for tenant in TENANTS}
    for tenant in TENANTS:
        [adapter] = registry.of(tenant).adapters()
        assert (adapter.tenant, adapter.job_id) == (tenant, job[tenant])
        assert registry.of(tenant).adapter("demo@1") == adapter


# Fails while a tenant's own record that was never published hides the shared one that can be asked.
def test_of_two_records_the_one_that_can_be_asked_counts(
    ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    finish(ledger, leases, "acme", new_adapter("demo@1", published=False))
    assert registry.of("acme").adapter("demo@1").state == "stored"
    finish(ledger, leases, SHARED, new_adapter("demo@1"))
    found = registry.of("acme").adapter("demo@1")
    assert (found.state, found.tenant) == ("published", SHARED)
    assert registry.of("acme").adapters() == registry.of("acme").adapters(published_only=True) == [found]


def delete(database: Database, tenant: str, adapter_id: str, *, done: bool = False) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with database.write() as session:
        row = session.get_one(AdapterRow, (tenant, adapter_id))
        row.deleting_at, row.deleted_at = now, now if done else None


@pytest.mark.parametrize("done", [False, True])
def test_adapter_that_is_deleted_is_not_there_but_its_record_is(
    ledger: Ledger, leases: LeaseLedger, registry: Registry, database: Database, done: bool
) -> None:
    finish(ledger, leases, "acme", new_adapter("demo@1"), alias="prod")
    delete(database, "acme", "demo@1", done=done)
    acme, aliases = registry.of("acme"), Aliases(database, "acme")
    assert acme.adapters() == acme.adapters(ids=["demo@1"]) == acme.adapters(published_only=True) == []
    assert code(acme.adapter, "demo@1") == code(acme.adapter, "prod") == Code.ADAPTER_NOT_FOUND
    assert acme.adapter("demo@1", deleted=True).state == ("deleted" if done else "deleting")
    assert code(aliases.set, "new", Routing.to("demo@1"), BY) == Code.ADAPTER_NOT_FOUND
    assert code(registry.of("other").adapter, "demo@1", deleted=True) == Code.ADAPTER_NOT_FOUND
    finish(ledger, leases, SHARED, new_adapter("demo@1"))
    assert acme.adapter("demo@1").tenant == acme.adapter("demo@1", deleted=True).tenant == SHARED


def test_deleted_adapter_that_is_trained_again_is_there_again(
    ledger: Ledger, leases: LeaseLedger, registry: Registry, database: Database
) -> None:
    finish(ledger, leases, SHARED, new_adapter("demo@1"))
    delete(database, SHARED, "demo@1", done=True)
    job_id = finish(ledger, leases, SHARED, new_adapter("demo@1", metrics={"loss": 1.0}))
    found = registry.adapter("demo@1")
    assert (found.state, found.job_id, found.metrics) == ("published", job_id, {"loss": 1.0})


# -- aliases -------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(ledger: Ledger, leases: LeaseLedger) -> None:
    """An adapter of each tenant, named after it."""
    for tenant in TENANTS:
        finish(ledger, leases, tenant, new_adapter(f"{tenant}@1"), new_adapter(f"{tenant}@2", final=False))


def alias_to(database: Database, tenant: str, name: str, adapter_id: str) -> None:
    Aliases(database, tenant).set(name, Routing.to(adapter_id), BY)


@pytest.mark.usefixtures("published")
def test_a_job_whose_alias_hides_the_shared_one_says_so(
    database: Database, ledger: Ledger, leases: LeaseLedger
) -> None:
    alias_to(database, SHARED, "prod", "shared@1")

    def told(tenant: str, number: int) -> str:
        job_id = finish(ledger, leases, tenant, new_adapter(f"{tenant}@{number}"), alias="prod")
        return ledger.of(tenant).events(job_id)[-1].message.partition(". ")[2]

    hidden = "The alias prod points to it and hides shared's alias prod from acme, until it is deleted."
    assert told("acme", 3) == hidden
    assert told("acme", 4) == told(SHARED, 5) == "The alias prod points to it.", "acme's hid it already"
    Aliases(database, "acme").delete("prod", BY)
    assert told("acme", 6) == hidden


@pytest.mark.usefixtures("published")
def test_own_alias_comes_before_the_shared_one(database: Database, registry: Registry) -> None:
    alias_to(database, SHARED, "prod", "shared@1")
    alias_to(database, SHARED, "beta", "shared@1")
    alias_to(database, "other", "theirs", "other@1")
    acme = Aliases(database, "acme")
    assert (acme.get("prod").tenant, registry.of("acme").adapter("prod").id) == (SHARED, "shared@1")
    alias_to(database, "acme", "prod", "acme@1")
    assert (acme.get("prod").tenant, registry.of("acme").adapter("prod").id) == ("acme", "acme@1")
    assert [(alias.name, alias.tenant, alias.hides) for alias in acme.all()] == [
        ("beta", SHARED, None),
        ("prod", "acme", SHARED),
    ]
    assert Aliases(database).get("prod").hides is None
    assert acme.get("prod").version == Aliases(database).get("prod").version == 1, "each has its own history"
    assert code(acme.get, "theirs") == code(acme.history, "theirs") == Code.ALIAS_NOT_FOUND
    assert Aliases(database, "other").get("prod").adapter_id == "shared@1"
    acme.delete("prod", BY)
    assert acme.get("prod").adapter_id == "shared@1", "the shared one is seen again"


@pytest.mark.usefixtures("published")
def test_history_is_of_the_alias_that_is_seen(database: Database) -> None:
    acme, shared = Aliases(database, "acme"), Aliases(database)

    def verbs() -> list[str]:
        return [move.verb for move in acme.history("prod")]

    alias_to(database, "acme", "prod", "acme@1")
    acme.delete("prod", BY)
    assert verbs() == ["delete", "set"], "none is seen: the own past"
    alias_to(database, SHARED, "prod", "shared@1")
    assert verbs() == ["set"]
    assert acme.rollback("prod", BY).hides == SHARED
    assert verbs() == ["rollback", "delete", "set"]
    acme.delete("prod", BY)
    shared.delete("prod", BY)
    assert verbs() == ["delete", "rollback", "delete", "set"]


@pytest.mark.usefixtures("published")
def test_who_has_deleted_the_own_alias_may_not_delete_the_one_that_is_seen_again(database: Database) -> None:
    acme = Aliases(database, "acme")
    alias_to(database, SHARED, "prod", "shared@1")
    alias_to(database, "acme", "prod", "acme@1")
    acme.delete("prod", BY)
    before = snapshot(database)
    assert code(acme.delete, "prod", BY) == Code.TENANT_FORBIDDEN
    assert snapshot(database) == before
    Aliases(database).delete("prod", BY)
    assert code(acme.delete, "prod", BY) == Code.ALIAS_NOT_FOUND


@pytest.mark.usefixtures("published")
def test_aliases_are_moved_by_their_tenant_only(database: Database) -> None:
    alias_to(database, SHARED, "prod", "shared@1")
    alias_to(database, "other", "theirs", "other@1")
    acme, before = Aliases(database, "acme"), snapshot(database)
    for verb in (acme.rollback, acme.delete):
        with pytest.raises(Forbidden) as caught:
            verb("prod", BY)
        assert caught.value.code is Code.TENANT_FORBIDDEN
        assert code(verb, "theirs", BY) == code(verb, "none", BY) == Code.ALIAS_NOT_FOUND
    assert snapshot(database) == before


@pytest.mark.usefixtures("published")
def test_alias_points_to_what_its_tenant_sees(database: Database) -> None:
    acme, before = Aliases(database, "acme"), snapshot(database)
    for adapter_id in ("other@1", "none@1"):
        assert code(acme.set, "prod", Routing.to(adapter_id), BY) == Code.ADAPTER_NOT_FOUND
    assert code(Aliases(database).set, "prod", Routing.to("acme@1"), BY) == Code.ADAPTER_NOT_FOUND
    assert snapshot(database) == before
    assert acme.set("prod", Routing.to("shared@1"), BY).adapter_id == "shared@1"


# -- the change counter --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("published")
def test_changes_are_counted_with_what_they_change(
    database: Database, ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    changes, aliases = Changes(database), Aliases(database)
    silent: list[Callable[[], object]] = [
        lambda: add(registry, SHARED),
        lambda: ledger.submit(submission()),
        lambda: aliases.set("prod", Routing.to("shared@1"), BY),
        lambda: code(aliases.set, "prod", Routing.to("none@1"), BY),
    ]
    loud: list[Callable[[], object]] = [
        lambda: aliases.set("prod", Routing.to("shared@1"), BY),
        lambda: aliases.set("prod", Routing.to("shared@2"), BY),
        lambda: aliases.rollback("prod", BY),
        lambda: aliases.delete("prod", BY),
        lambda: finish(ledger, leases, "acme", new_adapter("demo@7"), alias="beta"),
        lambda: leases.quarantine(claimed(ledger, leases), new_adapter("demo@8", published=False)),
    ]
    for call in loud:
        before = changes.count()
        call()
        assert changes.count() > before
    aliases.rollback("prod", BY)
    before = changes.count()
    for call in silent:
        call()
    assert changes.count() == before


# -- releases ------------------------------------------------------------------------------------------------------


def test_installation_of_one_team_is_the_tenant_shareds(empty_url: str) -> None:
    migrate(empty_url, "0002")
    database = Database(empty_url)
    write_rows(database, hashlib.sha256(b"secret").hexdigest())
    migrate(empty_url)
    key = Keys(database).authenticate("secret")
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)
    registry, ledger = Registry(database), Ledger(database)
    assert (ledger.get("ftjob-1").tenant, registry.file("file-1").tenant) == (SHARED, SHARED)
    assert (registry.adapter("prod").id, registry.adapter("prod").tenant) == ("demo@1", SHARED)
    repeated = submission(idempotency_key="key-1", request_digest="1")
    assert ledger.submit(repeated)[1] is False, "a key that was used before stays used"
    Aliases(database).set("prod", Routing.to("demo@2"), BY)
    database.close()


def test_job_of_an_api_of_the_release_before_is_shareds(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    with database.write() as session:
        session.execute(text(JOB.replace(":", "\\:")))
    ledger = Ledger(database)
    assert [job.tenant for job in ledger.list_jobs()] == [SHARED]
    assert ledger.of("acme").get("ftjob-1").tenant == SHARED
    assert ledger.submit(submission(idempotency_key="key-1", request_digest="1"))[1] is False
    assert code(Keys(database).create, "one", BEFORE_TENANTS) == Code.NAME_INVALID
    database.close()


def test_the_way_back_keeps_what_is_shared(empty_url: str) -> None:
    migrate(empty_url, "0002")
    database = Database(empty_url)
    write_rows(database)
    before = snapshot_of_old(database)
    migrate(empty_url)
    Keys(database).create("one", "acme")
    Keys(database).create("two", SHARED, Role.VIEWER)
    tenant = "acme-" + "x" * 50
    add(Registry(database), tenant)
    job = Ledger(database).of(tenant).submit(submission())[0]
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["database_url"] = empty_url
    command.downgrade(config, "0002")
    after = snapshot_of_old(database)
    assert after["jobs"].pop(0)[:3] == (job.id, "finetune", "cancelled"), (
        "else the release before would run it as shared's"
    )
    assert after == before
    database.close()


def snapshot_of_old(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("jobs", "files", "adapters", "aliases", "alias_moves", "api_keys")
    with database.read() as session:
        return {
            table: [tuple(row) for row in session.execute(text(f"SELECT * FROM {table} ORDER BY 1"))]
            for table in tables
        }
