"""Files and adapters, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest

from shared.db import Database
from shared.errors import Code, Conflict, MensError, NotFound
from shared.jobstate import FINAL, State
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.registry import Adapter, File, NewAdapter, Registry
from tests.shared.samples import at_once, claimed, new_adapter, snapshot, submission


def add(registry: Registry, count: int = 1, **changes: Any) -> list[File]:
    fields = {"filename": "rows.jsonl", "purpose": "fine-tune", "size": 10, "sha256": "a" * 64} | changes
    return [registry.add_file(**fields) for _ in range(count)]


def finished(ledger: Ledger, leases: LeaseLedger, *adapters: NewAdapter) -> None:
    """A job that made these adapters."""
    leases.finish(claimed(ledger, leases), {}, adapters=list(adapters))


def code(call: Any, *arguments: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments)
    return caught.value.code


# -- files ---------------------------------------------------------------------------------------------------------


# Fails while times in a verb's answer have microseconds, of which the table keeps only milliseconds.
def test_file_is_found_as_it_was_added(registry: Registry) -> None:
    expires = datetime(2030, 1, 2, tzinfo=UTC)
    [file] = add(registry, filename="ü.jsonl", size=2**40, expires_at=expires)
    assert (file.filename, file.bytes, file.expires_at) == ("ü.jsonl", 2**40, expires)
    assert registry.file(file.id) == file


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_go_through_every_file_once(registry: Registry, newest_first: bool) -> None:
    made = sorted((file.id for file in add(registry, 7)), reverse=newest_first)
    add(registry, 2, purpose="other")
    seen: list[str] = []
    while True:
        after = seen[-1] if seen else None
        page = registry.files(after=after, limit=3, purpose="fine-tune", newest_first=newest_first)
        seen += [file.id for file in page[:3]]
        if len(page) <= 3:
            break
    assert seen == made
    assert len(registry.files(after=None, limit=20, purpose=None, newest_first=newest_first)) == 9


def test_blob_may_be_deleted_with_its_last_file(registry: Registry) -> None:
    one, other = add(registry, 2)
    [third] = add(registry, sha256="b" * 64)
    assert registry.delete_file(one.id) is None
    assert registry.delete_file(other.id) == "a" * 64
    assert registry.delete_file(third.id) == "b" * 64
    assert code(registry.file, one.id) == Code.FILE_NOT_FOUND


@pytest.mark.parametrize("file_id", ["file-none", "file-\0"])  # the latter is no text for PostgreSQL
def test_unknown_file_is_not_found(registry: Registry, file_id: str) -> None:
    assert code(registry.file, file_id) == Code.FILE_NOT_FOUND
    assert code(registry.delete_file, file_id) == Code.FILE_NOT_FOUND


@pytest.mark.parametrize("role", ["training_file", "validation_file"])
def test_file_in_use_is_not_deleted(
    registry: Registry, ledger: Ledger, leases: LeaseLedger, database: Database, role: str
) -> None:
    [file] = add(registry)
    job, _ = ledger.submit(submission(extra={role: file.id}))
    steps = [
        (State.QUEUED, lambda: None),
        (State.PAUSED, lambda: ledger.pause(job.id)),
        (State.RUNNING, lambda: (ledger.resume(job.id), leases.claim(job.id, "worker-1"))),
    ]
    for state, step in steps:
        step()
        before = snapshot(database)
        assert ledger.get(job.id).state is state
        with pytest.raises(Conflict, match=job.id) as caught:
            registry.delete_file(file.id)
        assert caught.value.code is Code.FILE_IN_USE
        assert snapshot(database) == before


@pytest.mark.parametrize("state", sorted(FINAL))
def test_file_of_a_job_that_is_over_is_deleted(
    registry: Registry, ledger: Ledger, leases: LeaseLedger, state: State
) -> None:
    from shared.errors import JobFailed

    [file] = add(registry)
    lease = claimed(ledger, leases, extra={"training_file": file.id})
    if state is State.SUCCEEDED:
        leases.finish(lease, {})
    elif state is State.FAILED:
        leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "x"))
    else:
        leases.stop(lease)
    assert registry.delete_file(file.id) == "a" * 64


def test_file_deleted_by_two_at_once_is_deleted_once(registry: Registry) -> None:
    # Fails on PostgreSQL while delete_file does not lock the row that it deletes.
    for _ in range(3):
        [file] = add(registry)

        def one(_: int) -> str | None:
            try:
                return registry.delete_file(file.id)  # noqa: B023
            except NotFound as error:
                return error.code

        assert sorted(map(str, at_once(2, one))) == sorted(["a" * 64, str(Code.FILE_NOT_FOUND)])


def test_blob_is_removed_before_the_same_content_can_be_added(registry: Registry) -> None:
    # Fails while the blob is removed after the transaction: the new file's blob is then gone.
    [file] = add(registry)
    order: list[str] = []

    def remove(_: str) -> None:
        adding.start()
        adding.join(0.2)
        order.append("removed")

    adding = Thread(target=lambda: (add(registry), order.append("added")))
    registry.delete_file(file.id, remove)
    adding.join(10)
    assert order == ["removed", "added"]


# -- adapters ------------------------------------------------------------------------------------------------------


def test_adapter_is_found_by_id_and_alias(registry: Registry, ledger: Ledger, leases: LeaseLedger) -> None:
    made = new_adapter(metrics={"loss": 0.5}, certificates={"replica": {"ok": True}})
    leases.finish(claimed(ledger, leases), {}, adapters=[made], alias="prod")
    found = registry.adapter("demo@1")
    assert registry.adapter("prod") == found
    assert (
        found.model_dump(include=set(NewAdapter.model_fields))
        == new_adapter(metrics={"loss": 0.5}, certificates={"replica": {"ok": True}}).model_dump()
    )


@pytest.mark.parametrize("name", ["demo@none", "demo@\0"])
def test_unknown_adapter_is_not_found(registry: Registry, name: str) -> None:
    assert code(registry.adapter, name) == Code.ADAPTER_NOT_FOUND


def test_adapters_are_listed_newest_first(registry: Registry, ledger: Ledger, leases: LeaseLedger) -> None:
    made = [new_adapter(f"demo@{step}", step=step, published=step > 1, final=step == 3) for step in (1, 3, 2)]
    finished(ledger, leases, *made)

    def ids(adapters: list[Adapter]) -> list[str]:
        return [adapter.id for adapter in adapters]

    assert ids(registry.adapters()) == ["demo@3", "demo@2", "demo@1"]
    assert ids(registry.adapters(published_only=True)) == ["demo@3", "demo@2"]
    assert ids(registry.adapters(ids=["demo@1", "demo@9"])) == ["demo@1"]
    assert ids(registry.adapters(ids=["demo@1"], published_only=True)) == []
    assert ids(registry.adapters(ids=[])) == []
