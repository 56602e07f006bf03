"""Uploaded files on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest

from shared.database.connection import Database
from shared.database.files.contents import IdempotencyKey
from shared.database.files.files import File, Files
from shared.database.job_states import FINAL, JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.errors import Code, Conflict, MensError, NotFound
from tests.support.builders import at_once, claimed, snapshot, submission


def add(files: Files, count: int = 1, **changes: Any) -> list[File]:
    fields = {"filename": "rows.jsonl", "purpose": "fine-tune", "size": 10, "sha256": "a" * 64} | changes
    return [files.add(**fields) for _ in range(count)]


def code(call: Any, *arguments: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments)
    return caught.value.code


# Fails while times that a verb returns have microseconds, of which the table keeps only milliseconds.
def test_file_is_found_as_it_was_added(files: Files) -> None:
    expires = datetime(2030, 1, 2, tzinfo=UTC)
    [file] = add(files, filename="ü.jsonl", size=2**40, expires_at=expires)
    assert (file.filename, file.bytes, file.expires_at) == ("ü.jsonl", 2**40, expires)
    assert files.get(file.id) == file


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_list_every_file_once(files: Files, newest_first: bool) -> None:
    made = sorted((file.id for file in add(files, 7)), reverse=newest_first)
    add(files, 2, purpose="other")
    seen: list[str] = []
    while True:
        after = seen[-1] if seen else None
        page = files.list(after=after, limit=3, purpose="fine-tune", newest_first=newest_first)
        seen += [file.id for file in page[:3]]
        if len(page) <= 3:
            break
    assert seen == made
    assert len(files.list(after=None, limit=20, purpose=None, newest_first=newest_first)) == 9


def test_blob_is_deleted_with_its_last_file(files: Files) -> None:
    one, other = add(files, 2)
    [third] = add(files, sha256="b" * 64)
    assert files.delete(one.id) is None
    assert files.delete(other.id) == "a" * 64
    assert files.delete(third.id) == "b" * 64
    assert code(files.get, one.id) == Code.FILE_NOT_FOUND


@pytest.mark.parametrize("file_id", ["file-none", "file-\0"])  # PostgreSQL does not accept the latter as text
def test_unknown_file_is_not_found(files: Files, file_id: str) -> None:
    assert code(files.get, file_id) == Code.FILE_NOT_FOUND
    assert code(files.delete, file_id) == Code.FILE_NOT_FOUND


@pytest.mark.parametrize("role", ["training_file", "validation_file"])
def test_file_in_use_is_not_deleted(files: Files, jobs: Jobs, leases: Leases, database: Database, role: str) -> None:
    [file] = add(files)
    job, _ = jobs.submit(submission(extra={role: file.id}))
    steps = [
        (JobState.QUEUED, lambda: None),
        (JobState.PAUSED, lambda: jobs.pause(job.id)),
        (JobState.RUNNING, lambda: (jobs.resume(job.id), leases.claim(job.id, "worker-1"))),
    ]
    for state, step in steps:
        step()
        before = snapshot(database)
        assert jobs.get(job.id).state is state
        with pytest.raises(Conflict, match=job.id) as caught:
            files.delete(file.id)
        assert caught.value.code is Code.FILE_IN_USE
        assert snapshot(database) == before


@pytest.mark.parametrize("state", sorted(FINAL))
def test_file_of_a_finished_job_is_deleted(files: Files, jobs: Jobs, leases: Leases, state: JobState) -> None:
    from shared.errors import JobFailed

    [file] = add(files)
    lease = claimed(jobs, leases, extra={"training_file": file.id})
    if state is JobState.SUCCEEDED:
        leases.finish(lease, {})
    elif state is JobState.FAILED:
        leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "x"))
    else:
        leases.stop(lease)
    assert files.delete(file.id) == "a" * 64


def test_concurrent_deletions_of_a_file_succeed_once(files: Files) -> None:
    # Fails on PostgreSQL while `Files.delete` does not lock the row that it deletes.
    for _ in range(3):
        [file] = add(files)

        def one(_: int) -> str | None:
            try:
                return files.delete(file.id)  # noqa: B023
            except NotFound as error:
                return error.code

        assert sorted(map(str, at_once(2, one))) == sorted(["a" * 64, str(Code.FILE_NOT_FOUND)])


def test_blob_is_removed_before_the_same_content_can_be_added(files: Files) -> None:
    # Fails while the blob is removed after the transaction: the new file's blob is then removed.
    [file] = add(files)
    order: list[str] = []

    def remove(_: str) -> None:
        adding.start()
        adding.join(0.2)
        order.append("removed")

    adding = Thread(target=lambda: (add(files), order.append("added")))
    files.delete(file.id, remove)
    adding.join(60)
    assert order == ["removed", "added"]


# -- requests that are repeated ---------------------------------------------------------------------------------------


def test_requests_with_one_key_at_the_same_moment_make_one_file(files: Files) -> None:
    # Fails on PostgreSQL while the tenant is not locked before the key is looked up.
    stored: list[int] = []
    key = IdempotencyKey("once", "digest")
    made = at_once(
        4, lambda n: files.add("a", "fine-tune", 1, "a" * 64, store=lambda: stored.append(n), idempotency_key=key)
    )
    assert len({file.id for file in made}) == len(stored) == 1
    assert files.made_with("once") == made[0]


def test_key_of_another_request_is_refused(files: Files) -> None:
    files.add("a", "fine-tune", 1, "a" * 64, idempotency_key=IdempotencyKey("once", "digest"))
    with pytest.raises(Conflict) as caught:
        files.add("b", "fine-tune", 1, "a" * 64, idempotency_key=IdempotencyKey("once", "other"))
    assert caught.value.code is Code.IDEMPOTENCY_CONFLICT
    other = files.of("acme").add("b", "fine-tune", 1, "a" * 64, idempotency_key=IdempotencyKey("once", "other"))
    assert files.made_with("once") != other, "keys are a tenant's own"


@pytest.mark.parametrize("key", ["a\0b", "\u00fc", " " * 255])
def test_every_key_that_a_header_can_have_is_found_again(files: Files, key: str) -> None:
    made = files.add("a", "fine-tune", 1, "a" * 64, idempotency_key=IdempotencyKey(key, "digest"))
    assert files.made_with(key) == made


def test_file_whose_blob_cannot_be_stored_does_not_exist(files: Files) -> None:
    # As where the disk is full.
    with pytest.raises(ZeroDivisionError):
        files.add("a", "fine-tune", 1, "a" * 64, store=lambda: 1 / 0)
    assert files.list(after=None, limit=9, purpose=None, newest_first=True) == []
