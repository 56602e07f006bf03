"""Deletion of adapters on both databases: refusals, the steps, and races with moves, merges and jobs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from shared.database.adapters import Adapters, NewAdapter
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.deletions import STORING, Deletions, DeletionStep, PendingDeletion
from shared.database.evaluation.evals import Evals
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.records import Kind, Submission
from shared.database.routing import Routing, Shadow, Target
from shared.database.tables.adapters import AdapterRow
from shared.database.tenancy import SHARED
from shared.errors import Code, Forbidden, MensError
from tests.support.builders import at_once, claimed, new_adapter, submission
from tests.support.clock import Clock

BY = Actor(id="key-1", name="alice")
ONE, TWO, THREE = (f"demo@{digit * 64}" for digit in "123")


def adapter(adapter_id: str, **changes: Any) -> NewAdapter:
    return new_adapter(adapter_id).model_copy(update={"digest": adapter_id.partition("@")[2], **changes})


@pytest.fixture
def made(jobs: Jobs, leases: Leases) -> None:
    """Two adapters of ``shared``, the first of ``acme`` too."""
    train(jobs, leases, SHARED, ONE, TWO)
    train(jobs, leases, "acme", ONE)


@pytest.fixture
def deletions(database: Database, made: None) -> Deletions:
    return Deletions(database)


def train(jobs: Jobs, leases: Leases, tenant: str, *ids: str) -> str:
    """A finished job of a tenant that made adapters; its id."""
    lease = claimed(jobs.of(tenant), leases)
    leases.keep_adapters(lease, [adapter(one).digest for one in ids])
    leases.finish(lease, {}, adapters=[adapter(one) for one in ids])
    return lease.job.id


def refused(call: Any, *arguments: Any, **options: Any) -> MensError:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value


def reader(kind: Kind, digest: str) -> Submission:
    """A job that reads a stored adapter: it merges it, or continues from it."""
    plan = {"adapter_digest": digest} if kind is Kind.MERGE else {"parent": {"digest": digest}}
    return submission(kind=kind, plan=plan)


def pending(deletions: Deletions, adapter_id: str = TWO) -> PendingDeletion:
    return next(deletion for deletion in deletions.pending() if deletion.id == adapter_id)


class Disk:
    """Records what is done to the storage."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def unpublish(self) -> None:
        self.done.append("unpublished")

    def remove(self) -> None:
        self.done.append("removed")


# -- begin -------------------------------------------------------------------------------------------------


def test_begun_deletion_hides_the_adapter_and_keeps_its_record(
    deletions: Deletions, adapters: Adapters, database: Database, clock: Clock
) -> None:
    before = Changes(database).count()
    deletions.begin(TWO)
    assert Changes(database).count() == before + 1
    assert refused(adapters.get, TWO).code == Code.ADAPTER_NOT_FOUND
    assert TWO not in [found.id for found in adapters.page()]
    record = adapters.get(TWO, deleted=True)
    assert (record.state, record.deleting_at, record.deleted_at) == ("deleting", clock.now, None)
    assert not record.published
    clock.advance(7)
    assert deletions.pending() == [PendingDeletion(tenant=SHARED, id=TWO, digest="2" * 64, seconds=7)]


def test_repeated_deletion_changes_nothing(
    deletions: Deletions, adapters: Adapters, database: Database, clock: Clock
) -> None:
    deletions.begin(TWO)
    first, changes = adapters.get(TWO, deleted=True), Changes(database).count()
    clock.advance(5)
    deletions.begin(TWO)
    disk = Disk()
    deletions.finish(pending(deletions), disk.remove)
    deletions.begin(TWO)
    record = adapters.get(TWO, deleted=True)
    assert (record.deleting_at, record.state) == (first.deleting_at, "deleted")
    assert Changes(database).count() == changes


def test_deletion_started_by_previous_release_completes(
    deletions: Deletions, adapters: Adapters, database: Database
) -> None:
    deletions.begin(TWO)
    with database.write() as session:
        session.execute(update(AdapterRow).where(AdapterRow.id == TWO).values(published=True))
    assert adapters.get(TWO, deleted=True).published
    deletions.finish(pending(deletions), Disk().remove)
    record = adapters.get(TWO, deleted=True)
    assert (record.state, record.published) == ("deleted", False)


@pytest.mark.parametrize("name", ["none", f"demo@{'9' * 64}", ""])
def test_deletion_of_an_unknown_adapter_is_not_found(deletions: Deletions, name: str) -> None:
    assert refused(deletions.begin, name).code == Code.MODEL_NOT_FOUND


ROUTINGS = [
    Routing.to(TWO),
    Routing(targets=(Target(adapter=ONE, weight=99), Target(adapter=TWO, weight=1))),
    Routing(targets=(Target(adapter=ONE, weight=1),), shadow=Shadow(adapter=TWO, share=0.1)),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=["target", "lesser target", "shadow"])
def test_deletion_is_refused_while_an_alias_names_the_adapter(
    deletions: Deletions, database: Database, routing: Routing
) -> None:
    aliases = Aliases(database)
    aliases.set("prod", routing, BY)
    aliases.set("beta", Routing.to(TWO), BY)
    error = refused(deletions.begin, TWO)
    assert (error.code, error.details) == (Code.MODEL_IN_USE, {"aliases": ["beta", "prod"], "jobs": []})
    assert "'beta'" in error.message and "'prod'" in error.message
    aliases.set("prod", Routing.to(ONE), BY)
    assert refused(deletions.begin, TWO).details["aliases"] == ["beta"]
    aliases.delete("beta", BY)
    aliases.of("acme").set("theirs", Routing.to(TWO), BY)
    assert "the alias 'theirs' of the tenant 'acme'" in refused(deletions.begin, TWO).message
    aliases.of("acme").delete("theirs", BY)
    deletions.begin(TWO)


def test_adapter_being_deleted_cannot_be_aliased_or_rolled_back_to(deletions: Deletions, database: Database) -> None:
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(TWO), BY)
    aliases.set("prod", Routing.to(ONE), BY)
    deletions.begin(TWO)
    assert refused(aliases.set, "prod", Routing.to(TWO), BY).code == Code.ADAPTER_NOT_FOUND
    assert refused(aliases.rollback, "prod", BY).code == Code.ADAPTER_NOT_FOUND
    assert aliases.get("prod").adapter_id == ONE


@pytest.mark.parametrize("kind", [Kind.MERGE, Kind.FINETUNE])
def test_deletion_is_refused_while_a_job_reads_the_adapter(deletions: Deletions, jobs: Jobs, kind: Kind) -> None:
    reading = reader(kind, "2" * 64)
    job, _ = jobs.of("acme").submit(reading)
    error = refused(deletions.begin, TWO)
    assert (error.code, error.details) == (Code.MODEL_IN_USE, {"aliases": [], "jobs": [job.id]})
    jobs.of("acme").cancel(job.id)
    deletions.begin(TWO)
    assert refused(jobs.submit, reading).code == Code.ADAPTER_NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        (Kind.EVALUATE, {"models": [{"name": "prod", "served": TWO}]}),
        (Kind.EVALUATE, {"testing_criteria": [{"type": "string_check"}, {"type": "score_model", "model": TWO}]}),
        (Kind.JUDGE, {"adapter_id": TWO}),
        (Kind.JUDGE, {"adapter_id": THREE}),
    ],
    ids=["answers", "judges", "is judged", "is the parent of the judged one"],
)
def test_deletion_is_refused_while_an_evaluation_asks_the_adapter(
    deletions: Deletions, jobs: Jobs, leases: Leases, kind: Kind, plan: dict[str, Any]
) -> None:
    child = adapter(THREE, manifest={"parent": {"id": TWO, "digest": "2" * 64}})
    leases.finish(claimed(jobs, leases), {}, adapters=[child])
    job, _ = jobs.submit(submission(kind=kind, plan=plan))
    error = refused(deletions.begin, TWO)
    assert (error.code, error.details) == (Code.MODEL_IN_USE, {"aliases": [], "jobs": [job.id]})
    deletions.begin(ONE)
    jobs.cancel(job.id)
    deletions.begin(TWO)
    if kind == Kind.EVALUATE:
        assert refused(jobs.submit, submission(kind=kind, plan=plan)).code == Code.MODEL_NOT_FOUND


@pytest.mark.parametrize(
    "plan",
    [{"models": [{"name": TWO, "served": TWO}]}, {"testing_criteria": [{"type": "label_model", "model": TWO}]}],
    ids=["incumbent", "judge"],
)
def test_deletion_is_refused_while_a_job_that_judges_asks_the_adapter(
    deletions: Deletions, database: Database, jobs: Jobs, leases: Leases, plan: dict[str, Any]
) -> None:
    """The alias has moved from the incumbent since, and models of criteria stand in the run's plan only."""
    lease = claimed(jobs, leases)
    leases.open_run(lease, Evals(database).create("e", {}, {}).id, "gate", plan)
    error = refused(deletions.begin, TWO)
    assert (error.code, error.details) == (Code.MODEL_IN_USE, {"aliases": [], "jobs": [lease.job.id]})
    leases.finish(lease, {})
    deletions.begin(TWO)


def test_deletion_is_refused_while_a_job_stores_the_same_content(
    deletions: Deletions, jobs: Jobs, leases: Leases
) -> None:
    lease = claimed(jobs, leases)
    leases.keep_adapters(lease, ["2" * 64])
    assert refused(deletions.begin, TWO).details["jobs"] == [lease.job.id]
    assert jobs.get(lease.job.id).progress[STORING] == ["2" * 64]
    leases.finish(lease, {}, adapters=[adapter(TWO)])
    deletions.begin(TWO)


# -- tenants -------------------------------------------------------------------------------------------------------


def test_tenant_deletes_only_its_own_adapters(deletions: Deletions, database: Database) -> None:
    error = refused(deletions.of("acme").begin, TWO)
    assert isinstance(error, Forbidden) and error.code == Code.TENANT_FORBIDDEN
    assert refused(deletions.of("other").begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND
    deletions.of("acme").begin(ONE)
    assert [(deletion.tenant, deletion.id) for deletion in deletions.pending()] == [("acme", ONE)]
    assert Adapters(database).get(ONE).tenant == SHARED
    deletions.of("acme").begin(ONE)  # its own record, not the shared one that it still sees


def test_adapter_of_another_tenant_is_not_found(deletions: Deletions, jobs: Jobs, leases: Leases) -> None:
    train(jobs, leases, "acme", f"demo@{'3' * 64}")
    assert refused(deletions.of("other").begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND
    assert refused(deletions.begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND


def test_aliases_of_every_tenant_that_sees_the_adapter_count(deletions: Deletions, database: Database) -> None:
    Aliases(database, "acme").set("prod", Routing.to(TWO), BY)
    assert refused(deletions.begin, TWO).details["aliases"] == ["prod"]
    Aliases(database, SHARED).set("ours", Routing.to(ONE), BY)
    deletions.of("acme").begin(ONE)  # the alias of shared means the adapter of shared


def test_folder_of_two_tenants_is_removed_with_the_last(deletions: Deletions, adapters: Adapters) -> None:
    deletions.of("acme").begin(ONE)
    disk = Disk()
    assert deletions.unpublish(pending(deletions, ONE), disk.unpublish) is DeletionStep.OVER
    assert (deletions.pending(), disk.done) == ([], [])
    assert adapters.of("acme").get(ONE).tenant == SHARED
    deletions.begin(ONE)
    assert deletions.unpublish(pending(deletions, ONE), disk.unpublish) is DeletionStep.ALONE
    assert deletions.finish(pending(deletions, ONE), disk.remove) is DeletionStep.ALONE
    assert disk.done == ["unpublished", "removed"]


def test_two_tenants_delete_the_same_content(deletions: Deletions) -> None:
    deletions.begin(ONE)
    deletions.of("acme").begin(ONE)
    disk = Disk()
    for deletion in deletions.pending():
        assert deletions.finish(deletion, disk.remove) is DeletionStep.ALONE
    assert (deletions.pending(), disk.done) == ([], ["removed", "removed"])


# -- steps --------------------------------------------------------------------------------------------------


def test_steps_of_a_deletion_can_be_repeated(deletions: Deletions, adapters: Adapters, clock: Clock) -> None:
    deletions.begin(TWO)
    deletion, disk = pending(deletions), Disk()
    for _ in range(2):
        assert deletions.unpublish(deletion, disk.unpublish) is DeletionStep.ALONE
    clock.advance(3)
    assert deletions.finish(deletion, disk.remove) is DeletionStep.ALONE
    assert deletions.finish(deletion, disk.remove) is DeletionStep.OVER
    assert deletions.unpublish(deletion, disk.unpublish) is DeletionStep.OVER
    assert disk.done == ["unpublished", "unpublished", "removed"]
    record = adapters.get(TWO, deleted=True)
    assert (record.state, record.deleted_at) == ("deleted", clock.now)


def test_failed_removal_leaves_the_deletion_pending(deletions: Deletions) -> None:
    def broken() -> None:
        raise OSError("read-only")

    deletions.begin(TWO)
    with pytest.raises(OSError, match="read-only"):
        deletions.finish(pending(deletions), broken)
    assert pending(deletions).id == TWO


def test_deletion_waits_for_a_job_that_stores_the_same_content(
    deletions: Deletions, jobs: Jobs, leases: Leases, adapters: Adapters
) -> None:
    deletions.begin(TWO)
    deletion, disk = pending(deletions), Disk()
    failing, storing = claimed(jobs, leases), claimed(jobs, leases)
    for lease in (failing, storing):
        leases.keep_adapters(lease, ["2" * 64])
    assert deletions.unpublish(deletion, disk.unpublish) is DeletionStep.KEPT
    leases.fail(failing, MensError(Code.TRAINER_CRASHED, "x"))
    assert deletions.finish(deletion, disk.remove) is DeletionStep.KEPT
    leases.finish(storing, {}, adapters=[adapter(TWO)])
    assert deletions.finish(deletion, disk.remove) is DeletionStep.OVER
    assert (disk.done, adapters.get(TWO).state) == ([], "published")


def test_failed_job_reserves_nothing(deletions: Deletions, jobs: Jobs, leases: Leases) -> None:
    deletions.begin(TWO)
    lease = claimed(jobs, leases)
    leases.keep_adapters(lease, ["2" * 64])
    leases.fail(lease, MensError(Code.TRAINER_CRASHED, "x"))
    assert deletions.finish(pending(deletions), Disk().remove) is DeletionStep.ALONE


def test_adapter_trained_again_after_its_deletion_is_published(
    deletions: Deletions, jobs: Jobs, leases: Leases, adapters: Adapters
) -> None:
    deletions.begin(TWO)
    deletions.finish(pending(deletions), Disk().remove)
    job = train(jobs, leases, SHARED, TWO)
    again = adapters.get(TWO)
    assert (again.state, again.job_id, again.deleted_at) == ("published", job, None)
    assert deletions.pending() == []
    deletions.begin(TWO)
    assert pending(deletions).id == TWO


# -- races ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["set", "rollback"])
def test_concurrent_move_and_deletion_one_is_refused(deletions: Deletions, database: Database, verb: str) -> None:
    for number in range(8):
        aliases, name = Aliases(database), f"prod-{number}"
        other = f"demo@{number:064x}"
        train(Jobs(database), Leases(database, 60), SHARED, other)
        move = lambda: aliases.set(name, Routing.to(other), BY)  # noqa: B023, E731
        if verb == "rollback":
            aliases.set(name, Routing.to(other), BY)
            aliases.set(name, Routing.to(TWO), BY)
            move = lambda: aliases.rollback(name, BY)  # noqa: B023, E731
        moved, deleted = _race(move, lambda: deletions.begin(other))  # noqa: B023
        pointed_to = (found := aliases.find(name)) is not None and found.adapter_id == other
        assert {moved, deleted} in ({None, Code.MODEL_IN_USE}, {None, Code.ADAPTER_NOT_FOUND})
        assert pointed_to is (moved is None)
        assert (other in [deletion.id for deletion in deletions.pending()]) is not pointed_to


def test_job_waits_for_a_removal_before_it_stores(deletions: Deletions, jobs: Jobs, leases: Leases) -> None:
    """The removal is stopped in the middle: the job may store only when it has ended."""
    deletions.begin(TWO)
    lease, order = claimed(jobs, leases), []
    removing, go_on = threading.Event(), threading.Event()

    def remove() -> None:
        removing.set()
        go_on.wait(60)
        order.append("removed")

    def keep() -> None:
        leases.keep_adapters(lease, ["2" * 64])
        order.append("storing")

    with ThreadPoolExecutor(2) as pool:
        finishing = pool.submit(deletions.finish, pending(deletions), remove)
        assert removing.wait(60)
        keeping = pool.submit(keep)
        with pytest.raises(TimeoutError):
            keeping.result(0.3)
        go_on.set()
        assert finishing.result(60) is DeletionStep.ALONE
        keeping.result(60)
    assert order == ["removed", "storing"]


@pytest.mark.parametrize("kind", [Kind.MERGE, Kind.FINETUNE, Kind.EVALUATE])
def test_concurrent_submission_and_deletion_one_is_refused(
    deletions: Deletions, jobs: Jobs, leases: Leases, kind: Kind
) -> None:
    for number in range(6):
        other = f"demo@{number:064x}"
        train(jobs, leases, SHARED, other)
        asking = submission(kind=kind, plan={"models": [{"name": other, "served": other}]})
        submitted, deleted = _race(
            lambda: jobs.submit(asking if kind == Kind.EVALUATE else reader(kind, f"{number:064x}")),  # noqa: B023
            lambda: deletions.begin(other),  # noqa: B023
        )
        gone = Code.MODEL_NOT_FOUND if kind == Kind.EVALUATE else Code.ADAPTER_NOT_FOUND
        assert {submitted, deleted} in ({None, Code.MODEL_IN_USE}, {None, gone})


def _race(*calls: Any) -> list[Code | None]:
    def run(call: Any) -> Code | None:
        try:
            call()
        except MensError as error:
            return error.code
        return None

    return at_once(len(calls), lambda number: run(calls[number]))
