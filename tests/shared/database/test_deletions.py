"""Deleting adapters, on both databases: who forbids it, who wins a race, and what each step leaves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from shared.aliases import Aliases, Mover
from shared.changes import Changes
from shared.db import Database
from shared.deletion import STORING, Deletions, Doomed, Standing
from shared.errors import Code, Forbidden, MensError
from shared.job import Kind
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.registry import NewAdapter, Registry
from shared.routing import Routing, Shadow, Target
from shared.tables import AdapterRow
from shared.tenancy import SHARED
from tests.shared.conftest import Clock
from tests.shared.samples import at_once, claimed, new_adapter, submission

BY = Mover(id="key-1", name="alice")
ONE, TWO = f"demo@{'1' * 64}", f"demo@{'2' * 64}"


def adapter(adapter_id: str, **changes: Any) -> NewAdapter:
    return new_adapter(adapter_id).model_copy(update={"digest": adapter_id.partition("@")[2], **changes})


@pytest.fixture
def made(ledger: Ledger, leases: LeaseLedger) -> None:
    """Two adapters of ``shared``, the first of ``acme`` too."""
    train(ledger, leases, SHARED, ONE, TWO)
    train(ledger, leases, "acme", ONE)


@pytest.fixture
def deletions(database: Database, made: None) -> Deletions:
    return Deletions(database)


def train(ledger: Ledger, leases: LeaseLedger, tenant: str, *ids: str) -> str:
    """A finished job of a tenant that made adapters; its id."""
    lease = claimed(ledger.of(tenant), leases)
    leases.keep_adapters(lease, [adapter(one).digest for one in ids])
    leases.finish(lease, {}, adapters=[adapter(one) for one in ids])
    return lease.job.id


def refused(call: Any, *arguments: Any, **options: Any) -> MensError:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value


def pending(deletions: Deletions, adapter_id: str = TWO) -> Doomed:
    return next(doomed for doomed in deletions.pending() if doomed.id == adapter_id)


class Disk:
    """Counts what is done to the storage."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def withdraw(self) -> None:
        self.done.append("withdrawn")

    def remove(self) -> None:
        self.done.append("removed")


# -- the beginning -------------------------------------------------------------------------------------------------


def test_it_is_gone_for_callers_at_once_and_its_record_stays(
    deletions: Deletions, registry: Registry, database: Database, clock: Clock
) -> None:
    before = Changes(database).count()
    deletions.begin(TWO)
    assert Changes(database).count() == before + 1
    assert refused(registry.adapter, TWO).code == Code.ADAPTER_NOT_FOUND
    assert TWO not in [found.id for found in registry.adapters()]
    record = registry.adapter(TWO, deleted=True)
    assert (record.state, record.deleting_at, record.deleted_at) == ("deleting", clock.now, None)
    assert not record.published
    clock.advance(7)
    assert deletions.pending() == [Doomed(tenant=SHARED, id=TWO, digest="2" * 64, seconds=7)]


def test_again_is_the_same(deletions: Deletions, registry: Registry, database: Database, clock: Clock) -> None:
    deletions.begin(TWO)
    first, changes = registry.adapter(TWO, deleted=True), Changes(database).count()
    clock.advance(5)
    deletions.begin(TWO)
    disk = Disk()
    deletions.finish(pending(deletions), disk.remove)
    deletions.begin(TWO)
    record = registry.adapter(TWO, deleted=True)
    assert (record.deleting_at, record.state) == (first.deleting_at, "deleted")
    assert Changes(database).count() == changes


def test_one_that_the_release_before_began_to_delete_is_published_no_more_in_the_end(
    deletions: Deletions, registry: Registry, database: Database
) -> None:
    deletions.begin(TWO)
    with database.write() as session:
        session.execute(update(AdapterRow).where(AdapterRow.id == TWO).values(published=True))
    assert registry.adapter(TWO, deleted=True).published
    deletions.finish(pending(deletions), Disk().remove)
    record = registry.adapter(TWO, deleted=True)
    assert (record.state, record.published) == ("deleted", False)


@pytest.mark.parametrize("name", ["none", f"demo@{'9' * 64}", ""])
def test_what_is_not_there(deletions: Deletions, name: str) -> None:
    assert refused(deletions.begin, name).code == Code.MODEL_NOT_FOUND


ROUTINGS = [
    Routing.to(TWO),
    Routing(targets=(Target(adapter=ONE, weight=99), Target(adapter=TWO, weight=1))),
    Routing(targets=(Target(adapter=ONE, weight=1),), shadow=Shadow(adapter=TWO, share=0.1)),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=["target", "lesser target", "shadow"])
def test_an_alias_forbids_it_until_it_moves(deletions: Deletions, database: Database, routing: Routing) -> None:
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


def test_what_is_being_deleted_can_not_be_aliased_nor_rolled_back_to(deletions: Deletions, database: Database) -> None:
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(TWO), BY)
    aliases.set("prod", Routing.to(ONE), BY)
    deletions.begin(TWO)
    assert refused(aliases.set, "prod", Routing.to(TWO), BY).code == Code.ADAPTER_NOT_FOUND
    assert refused(aliases.rollback, "prod", BY).code == Code.ADAPTER_NOT_FOUND
    assert aliases.get("prod").adapter_id == ONE


def test_a_merge_forbids_it_until_it_is_over(deletions: Deletions, ledger: Ledger) -> None:
    plan = {"adapter_id": TWO, "adapter_digest": "2" * 64}
    merge, _ = ledger.of("acme").submit(submission(kind=Kind.MERGE, plan=plan))
    error = refused(deletions.begin, TWO)
    assert (error.code, error.details) == (Code.MODEL_IN_USE, {"aliases": [], "jobs": [merge.id]})
    ledger.of("acme").cancel(merge.id)
    deletions.begin(TWO)
    assert refused(ledger.submit, submission(kind=Kind.MERGE, plan=plan)).code == Code.ADAPTER_NOT_FOUND


def test_a_job_that_stores_the_same_forbids_it_until_it_is_over(
    deletions: Deletions, ledger: Ledger, leases: LeaseLedger
) -> None:
    lease = claimed(ledger, leases)
    leases.keep_adapters(lease, ["2" * 64])
    assert refused(deletions.begin, TWO).details["jobs"] == [lease.job.id]
    assert ledger.get(lease.job.id).progress[STORING] == ["2" * 64]
    leases.finish(lease, {}, adapters=[adapter(TWO)])
    deletions.begin(TWO)


# -- tenants -------------------------------------------------------------------------------------------------------


def test_a_tenant_deletes_its_own_and_nobody_elses(deletions: Deletions, database: Database) -> None:
    error = refused(deletions.of("acme").begin, TWO)
    assert isinstance(error, Forbidden) and error.code == Code.TENANT_FORBIDDEN
    assert refused(deletions.of("other").begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND
    deletions.of("acme").begin(ONE)
    assert [(doomed.tenant, doomed.id) for doomed in deletions.pending()] == [("acme", ONE)]
    assert Registry(database).adapter(ONE).tenant == SHARED
    deletions.of("acme").begin(ONE)  # its own record, not the shared one that it still sees


def test_another_tenants_own_is_not_there(deletions: Deletions, ledger: Ledger, leases: LeaseLedger) -> None:
    train(ledger, leases, "acme", f"demo@{'3' * 64}")
    assert refused(deletions.of("other").begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND
    assert refused(deletions.begin, f"demo@{'3' * 64}").code == Code.MODEL_NOT_FOUND


def test_aliases_of_everybody_who_sees_it_count(deletions: Deletions, database: Database) -> None:
    Aliases(database, "acme").set("prod", Routing.to(TWO), BY)
    assert refused(deletions.begin, TWO).details["aliases"] == ["prod"]
    Aliases(database, SHARED).set("ours", Routing.to(ONE), BY)
    deletions.of("acme").begin(ONE)  # the alias of shared means the adapter of shared


def test_content_of_two_tenants_goes_with_the_last(deletions: Deletions, registry: Registry) -> None:
    deletions.of("acme").begin(ONE)
    disk = Disk()
    assert deletions.withdraw(pending(deletions, ONE), disk.withdraw) is Standing.OVER
    assert (deletions.pending(), disk.done) == ([], [])
    assert registry.of("acme").adapter(ONE).tenant == SHARED
    deletions.begin(ONE)
    assert deletions.withdraw(pending(deletions, ONE), disk.withdraw) is Standing.ALONE
    assert deletions.finish(pending(deletions, ONE), disk.remove) is Standing.ALONE
    assert disk.done == ["withdrawn", "removed"]


def test_content_that_two_tenants_delete_at_once(deletions: Deletions) -> None:
    deletions.begin(ONE)
    deletions.of("acme").begin(ONE)
    disk = Disk()
    for doomed in deletions.pending():
        assert deletions.finish(doomed, disk.remove) is Standing.ALONE
    assert (deletions.pending(), disk.done) == ([], ["removed", "removed"])


# -- carrying out --------------------------------------------------------------------------------------------------


def test_steps_can_be_repeated(deletions: Deletions, registry: Registry, clock: Clock) -> None:
    deletions.begin(TWO)
    doomed, disk = pending(deletions), Disk()
    for _ in range(2):
        assert deletions.withdraw(doomed, disk.withdraw) is Standing.ALONE
    clock.advance(3)
    assert deletions.finish(doomed, disk.remove) is Standing.ALONE
    assert deletions.finish(doomed, disk.remove) is Standing.OVER
    assert deletions.withdraw(doomed, disk.withdraw) is Standing.OVER
    assert disk.done == ["withdrawn", "withdrawn", "removed"]
    record = registry.adapter(TWO, deleted=True)
    assert (record.state, record.deleted_at) == ("deleted", clock.now)


def test_what_could_not_be_removed_is_not_deleted(deletions: Deletions) -> None:
    def broken() -> None:
        raise OSError("read-only")

    deletions.begin(TWO)
    with pytest.raises(OSError, match="read-only"):
        deletions.finish(pending(deletions), broken)
    assert pending(deletions).id == TWO


def test_a_job_that_stores_the_same_is_waited_for(
    deletions: Deletions, ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    deletions.begin(TWO)
    doomed, disk = pending(deletions), Disk()
    failing, storing = claimed(ledger, leases), claimed(ledger, leases)
    for lease in (failing, storing):
        leases.keep_adapters(lease, ["2" * 64])
    assert deletions.withdraw(doomed, disk.withdraw) is Standing.KEPT
    leases.fail(failing, MensError(Code.TRAINER_CRASHED, "x"))
    assert deletions.finish(doomed, disk.remove) is Standing.KEPT
    leases.finish(storing, {}, adapters=[adapter(TWO)])
    assert deletions.finish(doomed, disk.remove) is Standing.OVER
    assert (disk.done, registry.adapter(TWO).state) == ([], "published")


def test_a_failed_job_keeps_nothing(deletions: Deletions, ledger: Ledger, leases: LeaseLedger) -> None:
    deletions.begin(TWO)
    lease = claimed(ledger, leases)
    leases.keep_adapters(lease, ["2" * 64])
    leases.fail(lease, MensError(Code.TRAINER_CRASHED, "x"))
    assert deletions.finish(pending(deletions), Disk().remove) is Standing.ALONE


def test_trained_again_after_it_was_deleted(
    deletions: Deletions, ledger: Ledger, leases: LeaseLedger, registry: Registry
) -> None:
    deletions.begin(TWO)
    deletions.finish(pending(deletions), Disk().remove)
    job = train(ledger, leases, SHARED, TWO)
    again = registry.adapter(TWO)
    assert (again.state, again.job_id, again.deleted_at) == ("published", job, None)
    assert deletions.pending() == []
    deletions.begin(TWO)
    assert pending(deletions).id == TWO


# -- races ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["set", "rollback"])
def test_of_a_move_and_a_deletion_one_loses(deletions: Deletions, database: Database, verb: str) -> None:
    for number in range(8):
        aliases, name = Aliases(database), f"prod-{number}"
        other = f"demo@{number:064x}"
        train(Ledger(database), LeaseLedger(database, 60), SHARED, other)
        move = lambda: aliases.set(name, Routing.to(other), BY)  # noqa: B023, E731
        if verb == "rollback":
            aliases.set(name, Routing.to(other), BY)
            aliases.set(name, Routing.to(TWO), BY)
            move = lambda: aliases.rollback(name, BY)  # noqa: B023, E731
        moved, deleted = _race(move, lambda: deletions.begin(other))  # noqa: B023
        pointed_to = (found := aliases.find(name)) is not None and found.adapter_id == other
        assert {moved, deleted} in ({None, Code.MODEL_IN_USE}, {None, Code.ADAPTER_NOT_FOUND})
        assert pointed_to is (moved is None)
        assert (other in [doomed.id for doomed in deletions.pending()]) is not pointed_to


def test_of_a_job_that_stores_and_a_removal_one_waits(
    deletions: Deletions, ledger: Ledger, leases: LeaseLedger
) -> None:
    """The removal is held up in the middle: the job may store only when it is through."""
    deletions.begin(TWO)
    lease, order = claimed(ledger, leases), []
    removing, go_on = threading.Event(), threading.Event()

    def remove() -> None:
        removing.set()
        go_on.wait(10)
        order.append("removed")

    def keep() -> None:
        leases.keep_adapters(lease, ["2" * 64])
        order.append("storing")

    with ThreadPoolExecutor(2) as pool:
        finishing = pool.submit(deletions.finish, pending(deletions), remove)
        assert removing.wait(10)
        keeping = pool.submit(keep)
        with pytest.raises(TimeoutError):
            keeping.result(0.3)
        go_on.set()
        assert finishing.result(10) is Standing.ALONE
        keeping.result(10)
    assert order == ["removed", "storing"]


def test_of_a_merge_and_a_deletion_one_loses(deletions: Deletions, ledger: Ledger, leases: LeaseLedger) -> None:
    for number in range(6):
        other = f"demo@{number:064x}"
        train(ledger, leases, SHARED, other)
        plan = {"adapter_id": other, "adapter_digest": f"{number:064x}"}
        merged, deleted = _race(
            lambda: ledger.submit(submission(kind=Kind.MERGE, plan=plan)),  # noqa: B023
            lambda: deletions.begin(other),  # noqa: B023
        )
        assert {merged, deleted} in ({None, Code.MODEL_IN_USE}, {None, Code.ADAPTER_NOT_FOUND})


def _race(*calls: Any) -> list[Code | None]:
    def run(call: Any) -> Code | None:
        try:
            call()
        except MensError as error:
            return error.code
        return None

    return at_once(len(calls), lambda number: run(calls[number]))
