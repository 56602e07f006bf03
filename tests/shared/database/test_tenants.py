"""Tenants on both databases: each sees its own objects and the shared ones, and changes only its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from api.migrate import migrate
from shared.database.adapters import Adapters, NewAdapter
from shared.database.callers.keys import Keys
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.job_results import ResultFile
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lists.job_filter import JobFilter
from shared.database.names.aliases import Actor, Aliases
from shared.database.routing import Routing
from shared.database.tables.adapters import AdapterRow
from shared.database.tenancy import BEFORE_TENANTS, SHARED, Role, visible_to
from shared.errors import Code, Forbidden, MensError
from tests.support.builders import claimed, new_adapter, snapshot, submission

TENANTS = ("acme", "other", SHARED)
BY = Actor(id="key-1", name="alice")


def code(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value.code


def finish(jobs: Jobs, leases: Leases, tenant: str, *made: NewAdapter, **options: Any) -> str:
    """A job of a tenant that made these adapters; its id."""
    lease = claimed(jobs.of(tenant), leases)
    leases.finish(lease, {}, adapters=list(made), **options)
    return lease.job.id


def ids(things: list[Any]) -> list[str]:
    return [thing.id for thing in things]


# -- rules ---------------------------------------------------------------------------------------------------------


def test_tenant_sees_itself_and_shared() -> None:
    assert visible_to("acme") == ("acme", SHARED)
    assert visible_to(SHARED) == (SHARED,)


def test_each_role_includes_those_before_it() -> None:
    order = [Role.VIEWER, Role.TRAINER, Role.ADMIN]
    for place, role in enumerate(order):
        assert [role.includes(other) for other in order] == [index <= place for index in range(3)]


# -- files ---------------------------------------------------------------------------------------------------------


def add(files: Files, tenant: str, **changes: Any) -> str:
    fields = {"filename": f"{tenant}.jsonl", "purpose": "fine-tune", "size": 1, "sha256": "a" * 64} | changes
    return files.of(tenant).add(**fields).id


def test_tenant_sees_shared_files_and_deletes_only_its_own(files: Files, database: Database) -> None:
    file = {tenant: add(files, tenant) for tenant in TENANTS}
    acme = files.of("acme")
    assert ids(acme.list(after=None, limit=9, purpose=None, newest_first=False)) == [file["acme"], file[SHARED]]
    assert (acme.get(file["acme"]).tenant, acme.get(file[SHARED]).tenant) == ("acme", SHARED)
    before = snapshot(database)
    assert code(acme.get, file["other"]) == code(acme.delete, file["other"]) == Code.FILE_NOT_FOUND
    assert code(acme.delete, file[SHARED]) == Code.TENANT_FORBIDDEN
    assert code(files.of(SHARED).delete, file["acme"]) == Code.FILE_NOT_FOUND
    assert snapshot(database) == before
    assert [files.of(tenant).delete(file[tenant]) for tenant in TENANTS] == [None, None, "a" * 64], (
        "equal files of two tenants are one blob, which is deleted with the last"
    )


def test_shared_file_is_kept_for_a_job_of_another_tenant(files: Files, jobs: Jobs) -> None:
    file_id = add(files, SHARED)
    job, _ = jobs.of("acme").submit(submission(extra={"training_file": file_id}))
    with pytest.raises(MensError) as caught:
        files.delete(file_id)
    assert caught.value.code is Code.FILE_IN_USE
    assert job.id not in str(caught.value)


def test_expired_files_of_every_tenant_are_deleted(files: Files) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    file = {tenant: add(files, tenant, sha256=tenant, expires_at=past) for tenant in TENANTS}
    assert sorted(files.delete_expired()) == sorted(TENANTS)
    assert {code(files.of(tenant).get, file[tenant]) for tenant in TENANTS} == {Code.FILE_NOT_FOUND}


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_tenant_sees_its_own_and_shared_jobs(jobs: Jobs) -> None:
    job = {tenant: jobs.of(tenant).submit(submission(labels={"a": "b"}))[0] for tenant in TENANTS}
    assert {tenant: made.tenant for tenant, made in job.items()} == {tenant: tenant for tenant in TENANTS}
    acme = jobs.of("acme")
    for found in (acme.list(), acme.list(JobFilter(labels={"a": "b"}))):
        assert ids(found) == [job[SHARED].id, job["acme"].id]
    assert acme.get(job[SHARED].id) == job[SHARED]
    assert len(acme.events(job[SHARED].id)) == len(acme.recent_events(job["acme"].id)) == 1
    theirs = job["other"].id
    assert code(acme.get, theirs) == code(acme.preflight, theirs) == Code.JOB_NOT_FOUND
    assert acme.events(theirs) == acme.recent_events(theirs) == []


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_tenant_changes_only_its_own_jobs(jobs: Jobs, database: Database, verb: str) -> None:
    job = {tenant: jobs.of(tenant).submit(submission())[0].id for tenant in TENANTS}
    before = snapshot(database)
    change = getattr(jobs.of("acme"), verb)
    with pytest.raises(MensError) as foreign:
        change(job["other"])
    with pytest.raises(MensError) as unknown:
        change("ftjob-none")
    assert foreign.value.as_dict() == {
        **unknown.value.as_dict(),
        "message": f"The job {job['other']!r} does not exist.",
    }
    assert code(change, job[SHARED]) == Code.TENANT_FORBIDDEN
    assert snapshot(database) == before
    if verb != "resume":
        assert change(job["acme"]).version == 2


def test_statistics_cover_only_visible_jobs(jobs: Jobs, leases: Leases) -> None:
    for number, tenant in enumerate(TENANTS):
        memory = {"device": tenant, "predicted_bytes": 10, "peak_bytes": 11}
        leases.finish(claimed(jobs.of(tenant), leases), {"memory": memory, "tokens_per_second": number + 1.0})
    assert [line.device for line in jobs.of("acme").memory_accuracy()] == ["acme", SHARED]
    for tenant in ("other", "nobody"):
        rate = jobs.of(tenant).training_rate("tiny")
        assert rate
        assert (rate.tokens_per_second, rate.job[:6]) == (3.0, "ftjob-")
    assert jobs.of("other").training_rate("another") is None
    leases.finish(claimed(jobs.of("acme"), leases), {"memory": None, "tokens_per_second": None})
    rate = jobs.of("acme").training_rate("tiny")
    assert rate and (rate.tokens_per_second, rate.other_seconds) == (3.0, None)


def test_results_of_a_job_belong_to_its_tenant(
    jobs: Jobs, leases: Leases, files: Files, adapters: Adapters, database: Database
) -> None:
    lease = claimed(jobs.of("acme"), leases)
    result = ResultFile("metrics.csv", 3, "f" * 64)
    job = leases.finish(lease, {}, adapters=[new_adapter("demo@1")], alias="prod", files=[result])
    leases.register(claimed(jobs.of("acme"), leases), new_adapter("bad@1", published=False, certificates={"a": 1}))
    [file_id] = job.result["result_files"]
    assert files.of("acme").get(file_id).tenant == "acme"
    assert adapters.of("acme").get("prod").id == "demo@1"
    assert Aliases(database, "acme").get("prod").tenant == "acme"
    assert {adapter.tenant for adapter in adapters.of("acme").page()} == {"acme"}
    for tenant in ("other", SHARED):
        assert code(files.of(tenant).get, file_id) == Code.FILE_NOT_FOUND
        assert {code(adapters.of(tenant).get, name) for name in ("demo@1", "prod", "bad@1")} == {Code.ADAPTER_NOT_FOUND}
        assert Aliases(database, tenant).find("prod") is None


# -- adapters ------------------------------------------------------------------------------------------------------


def test_tenant_sees_its_own_and_shared_adapters(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    for tenant in TENANTS:
        finish(jobs, leases, tenant, new_adapter(f"{tenant}@1"))
    acme = adapters.of("acme")
    assert sorted(ids(acme.page())) == sorted(ids(acme.published())) == ["acme@1", "shared@1"]
    assert sorted(ids(acme.with_ids(["acme@1", "other@1"]))) == ["acme@1"]
    assert code(acme.get, "other@1") == Code.ADAPTER_NOT_FOUND
    assert ids(adapters.of(SHARED).page()) == ["shared@1"]


def test_same_content_of_two_tenants_has_two_records(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    job = {tenant: finish(jobs, leases, tenant, new_adapter("demo@1")) for tenant in TENANTS}
    for tenant in TENANTS:
        [adapter] = adapters.of(tenant).page()
        assert (adapter.tenant, adapter.job_id) == (tenant, job[tenant])
        assert adapters.of(tenant).get("demo@1") == adapter


# Fails while a tenant's own record that was never published hides the shared one that is published.
def test_of_two_records_the_published_one_is_found(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    finish(jobs, leases, "acme", new_adapter("demo@1", published=False))
    assert adapters.of("acme").get("demo@1").state == "stored"
    finish(jobs, leases, SHARED, new_adapter("demo@1"))
    found = adapters.of("acme").get("demo@1")
    assert (found.state, found.tenant) == ("published", SHARED)
    assert adapters.of("acme").page() == adapters.of("acme").with_ids(["demo@1"], published_only=True) == [found]


def delete(database: Database, tenant: str, adapter_id: str, *, done: bool = False) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with database.write() as session:
        row = session.get_one(AdapterRow, (tenant, adapter_id))
        row.deleting_at, row.deleted_at = now, now if done else None


@pytest.mark.parametrize("done", [False, True])
def test_deleted_adapter_is_not_found_but_its_record_is(
    jobs: Jobs, leases: Leases, adapters: Adapters, database: Database, done: bool
) -> None:
    finish(jobs, leases, "acme", new_adapter("demo@1"), alias="prod")
    delete(database, "acme", "demo@1", done=done)
    acme, aliases = adapters.of("acme"), Aliases(database, "acme")
    assert acme.page() == acme.with_ids(["demo@1"]) == acme.published() == []
    assert code(acme.get, "demo@1") == code(acme.get, "prod") == Code.ADAPTER_NOT_FOUND
    assert acme.get("demo@1", deleted=True).state == ("deleted" if done else "deleting")
    assert code(aliases.set, "new", Routing.to("demo@1"), BY) == Code.ADAPTER_NOT_FOUND
    assert code(adapters.of("other").get, "demo@1", deleted=True) == Code.ADAPTER_NOT_FOUND
    finish(jobs, leases, SHARED, new_adapter("demo@1"))
    assert acme.get("demo@1").tenant == acme.get("demo@1", deleted=True).tenant == SHARED


def test_deleted_adapter_that_is_trained_again_is_published(
    jobs: Jobs, leases: Leases, adapters: Adapters, database: Database
) -> None:
    finish(jobs, leases, SHARED, new_adapter("demo@1"))
    delete(database, SHARED, "demo@1", done=True)
    job_id = finish(jobs, leases, SHARED, new_adapter("demo@1", metrics={"loss": 1.0}))
    found = adapters.get("demo@1")
    assert (found.state, found.job_id, found.metrics) == ("published", job_id, {"loss": 1.0})


# -- aliases -------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(jobs: Jobs, leases: Leases) -> None:
    """An adapter of each tenant, named after it."""
    for tenant in TENANTS:
        finish(jobs, leases, tenant, new_adapter(f"{tenant}@1"), new_adapter(f"{tenant}@2", final=False))


def alias_to(database: Database, tenant: str, name: str, adapter_id: str) -> None:
    Aliases(database, tenant).set(name, Routing.to(adapter_id), BY)


@pytest.mark.usefixtures("published")
def test_job_reports_that_its_alias_hides_the_shared_one(database: Database, jobs: Jobs, leases: Leases) -> None:
    alias_to(database, SHARED, "prod", "shared@1")

    def message_of(tenant: str, number: int) -> str:
        job_id = finish(jobs, leases, tenant, new_adapter(f"{tenant}@{number}"), alias="prod")
        return jobs.of(tenant).events(job_id)[-1].message.partition(". ")[2]

    hidden = "The alias prod points to it and hides shared's alias prod from acme, until it is deleted."
    assert message_of("acme", 3) == hidden
    assert message_of("acme", 4) == message_of(SHARED, 5) == "The alias prod points to it.", "acme's already hid it"
    Aliases(database, "acme").delete("prod", BY)
    assert message_of("acme", 6) == hidden


@pytest.mark.usefixtures("published")
def test_own_alias_hides_the_shared_one(database: Database, adapters: Adapters) -> None:
    alias_to(database, SHARED, "prod", "shared@1")
    alias_to(database, SHARED, "beta", "shared@1")
    alias_to(database, "other", "theirs", "other@1")
    acme = Aliases(database, "acme")
    assert (acme.get("prod").tenant, adapters.of("acme").get("prod").id) == (SHARED, "shared@1")
    alias_to(database, "acme", "prod", "acme@1")
    assert (acme.get("prod").tenant, adapters.of("acme").get("prod").id) == ("acme", "acme@1")
    assert [(alias.name, alias.tenant, alias.hides) for alias in acme.all()] == [
        ("beta", SHARED, None),
        ("prod", "acme", SHARED),
    ]
    assert Aliases(database).get("prod").hides is None
    assert acme.get("prod").version == Aliases(database).get("prod").version == 1, "each has its own history"
    assert code(acme.get, "theirs") == code(acme.history, "theirs") == Code.ALIAS_NOT_FOUND
    assert Aliases(database, "other").get("prod").adapter_id == "shared@1"
    acme.delete("prod", BY)
    assert acme.get("prod").adapter_id == "shared@1", "the shared one is visible again"


@pytest.mark.usefixtures("published")
def test_history_is_that_of_the_visible_alias(database: Database) -> None:
    acme, shared = Aliases(database, "acme"), Aliases(database)

    def verbs() -> list[str]:
        return [move.verb for move in acme.history("prod")]

    alias_to(database, "acme", "prod", "acme@1")
    acme.delete("prod", BY)
    assert verbs() == ["delete", "set"], "none is visible: the moves of its own deleted one"
    alias_to(database, SHARED, "prod", "shared@1")
    assert verbs() == ["set"]
    assert acme.rollback("prod", BY).hides == SHARED
    assert verbs() == ["rollback", "delete", "set"]
    acme.delete("prod", BY)
    shared.delete("prod", BY)
    assert verbs() == ["delete", "rollback", "delete", "set"]


@pytest.mark.usefixtures("published")
def test_shared_alias_that_is_visible_again_cannot_be_deleted(database: Database) -> None:
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
def test_tenant_moves_only_its_own_aliases(database: Database) -> None:
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
def test_alias_points_only_to_visible_adapters(database: Database) -> None:
    acme, before = Aliases(database, "acme"), snapshot(database)
    for adapter_id in ("other@1", "none@1"):
        assert code(acme.set, "prod", Routing.to(adapter_id), BY) == Code.ADAPTER_NOT_FOUND
    assert code(Aliases(database).set, "prod", Routing.to("acme@1"), BY) == Code.ADAPTER_NOT_FOUND
    assert snapshot(database) == before
    assert acme.set("prod", Routing.to("shared@1"), BY).adapter_id == "shared@1"


# -- the change counter --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("published")
def test_change_counter_counts_changes_and_nothing_else(
    database: Database, jobs: Jobs, leases: Leases, files: Files
) -> None:
    changes, aliases = Changes(database), Aliases(database)
    silent: list[Callable[[], object]] = [
        lambda: add(files, SHARED),
        lambda: jobs.submit(submission()),
        lambda: aliases.set("prod", Routing.to("shared@1"), BY),
        lambda: code(aliases.set, "prod", Routing.to("none@1"), BY),
    ]
    loud: list[Callable[[], object]] = [
        lambda: aliases.set("prod", Routing.to("shared@1"), BY),
        lambda: aliases.set("prod", Routing.to("shared@2"), BY),
        lambda: aliases.rollback("prod", BY),
        lambda: aliases.delete("prod", BY),
        lambda: finish(jobs, leases, "acme", new_adapter("demo@7"), alias="beta"),
        lambda: leases.register(claimed(jobs, leases), new_adapter("demo@8", published=False)),
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


def test_job_whose_owner_is_default_belongs_to_shared(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    columns = "id, kind, state, owner, request_digest, base_model, name, contract, plan, preflight, extra, labels, attempt, failures,"
    values = "'ftjob-1', 'finetune', 'succeeded', 'default', '1', 'tiny', 'demo', '{}', '{}', '{}', '{}', '{}', 1, 0, '{}', '{}', 1, 1000"
    with database.write() as session:
        session.execute(
            text(
                f"INSERT INTO jobs ({columns} progress, result, version, created_at, idempotency_key) VALUES ({values}, 'key-1')"
            )
        )
    jobs = Jobs(database)
    assert [job.tenant for job in jobs.list()] == [SHARED]
    assert jobs.of("acme").get("ftjob-1").tenant == SHARED
    assert jobs.submit(submission(idempotency_key="key-1", request_digest="1"))[1] is False
    assert code(Keys(database).create, "one", BEFORE_TENANTS) == Code.NAME_INVALID
    database.close()
