"""Uploads in parts on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest

from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.files.uploads import MAX_PARTS, Upload, Uploads, UploadStatus
from shared.database.tables.files import UploadRow
from shared.database.tenancy import FileQuota
from shared.errors import Code, MensError
from tests.support.builders import at_once

HOUR = timedelta(hours=1)
WHOLE = "f" * 64


@pytest.fixture
def uploads(database: Database) -> Uploads:
    return Uploads(database)


def code(call: Callable[..., object], *arguments: Any, **more: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **more)
    return caught.value.code


def begin(uploads: Uploads, size: int = 10, lifetime: timedelta = HOUR, **more: Any) -> Upload:
    return uploads.create("rows.jsonl", "fine-tune", size, lifetime, **more)


def age(database: Database, upload: Upload, by: timedelta) -> None:
    """Make an upload expire this much earlier."""
    with database.write() as session:
        row = session.get(UploadRow, upload.id)
        assert row
        row.expires_at -= by


def test_upload_is_found_as_it_was_made(uploads: Uploads) -> None:
    upload = begin(uploads, 2**40, file_seconds=3600)
    assert uploads.get(upload.id) == upload
    assert (upload.status, upload.bytes, upload.expires_at) == (UploadStatus.PENDING, 2**40, upload.created_at + HOUR)


def test_parts_become_a_file(uploads: Uploads, files: Files) -> None:
    upload, order = begin(uploads, file_seconds=3600), []
    uploads.add_part(upload.id, 4, "a" * 64, lambda: order.append("a"))
    uploads.add_part(upload.id, 6, "b" * 64, lambda: order.append("b"))
    completed, file = uploads.complete(upload.id, "d", WHOLE, lambda: order.append("whole"))
    assert file
    assert (completed.status, completed.file_id, order) == (UploadStatus.COMPLETED, file.id, ["a", "b", "whole"])
    assert files.get(file.id).expires_at == file.expires_at == file.created_at + HOUR
    assert uploads.complete(upload.id, "d", WHOLE) == (completed, file), "repeated"
    assert uploads.completed(upload.id, "d") == (completed, file)
    assert code(uploads.complete, upload.id, "other", WHOLE) == Code.UPLOAD_STATE_CONFLICT
    assert sorted(uploads.drop_parts(upload.id)) == ["a" * 64, "b" * 64]
    files.delete(file.id)
    assert uploads.completed(upload.id, "d") == (completed, None)


def test_same_content_is_the_same_part(uploads: Uploads) -> None:
    upload = begin(uploads)
    first = uploads.add_part(upload.id, 10, "a" * 64)
    assert uploads.add_part(upload.id, 10, "a" * 64) == first
    assert list(uploads.parts(upload.id)) == [first]


def test_parts_have_no_more_bytes_than_the_file(uploads: Uploads) -> None:
    upload, stored = begin(uploads), []
    uploads.add_part(upload.id, 6, "a" * 64)
    assert code(uploads.add_part, upload.id, 5, "b" * 64, lambda: stored.append(1)) == Code.UPLOAD_SIZE_MISMATCH
    assert not stored


def test_parts_at_the_same_moment_have_no_more_bytes_either(uploads: Uploads) -> None:
    # Fails on PostgreSQL while the upload's row is not locked.
    upload = begin(uploads)

    def add(number: int) -> str:
        try:
            return uploads.add_part(upload.id, 6, f"{number}" * 64).id
        except MensError as error:
            return error.code

    outcomes = at_once(4, add)
    assert outcomes.count(Code.UPLOAD_SIZE_MISMATCH) == 3
    assert len(uploads.parts(upload.id)) == 1


def test_number_of_parts_is_limited(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PARTS >= 8 << 30 >> 26, "parts of 64 MiB make 8 GiB"
    monkeypatch.setattr("shared.database.files.uploads.MAX_PARTS", 2)
    upload = begin(uploads)
    for number in range(2):
        uploads.add_part(upload.id, 1, f"{number}" * 64)
    assert code(uploads.add_part, upload.id, 1, "2" * 64) == Code.UPLOAD_SIZE_MISMATCH


def test_completions_at_the_same_moment_make_one_file(uploads: Uploads, files: Files) -> None:
    upload = begin(uploads)
    made = at_once(4, lambda _: uploads.complete(upload.id, "d", WHOLE)[1])
    assert len({file.id for file in made if file}) == 1
    assert len(files.list(after=None, limit=10, purpose=None, newest_first=True)) == 1


def test_cancelled_upload_takes_nothing_more(uploads: Uploads) -> None:
    upload = begin(uploads)
    uploads.add_part(upload.id, 1, "a" * 64)
    assert uploads.cancel(upload.id).status is UploadStatus.CANCELLED
    assert uploads.cancel(upload.id).status is UploadStatus.CANCELLED, "repeated"
    assert uploads.drop_parts(upload.id) == ["a" * 64]
    for call in (uploads.check_pending, lambda id_: uploads.add_part(id_, 1, "a" * 64)):
        assert code(call, upload.id) == Code.UPLOAD_STATE_CONFLICT
    assert code(uploads.complete, upload.id, "d", WHOLE) == Code.UPLOAD_STATE_CONFLICT


def test_blob_of_a_part_is_kept_while_anything_needs_it(uploads: Uploads, files: Files) -> None:
    one, other = begin(uploads), begin(uploads)
    for upload in (one, other):
        uploads.add_part(upload.id, 10, "a" * 64)
    _, file = uploads.complete(one.id, "d", "a" * 64)
    assert file
    assert uploads.drop_parts(one.id) == []
    assert files.delete(file.id) is None
    uploads.cancel(other.id)
    assert uploads.drop_parts(other.id) == ["a" * 64]


def test_part_waits_for_the_removal_of_its_content(uploads: Uploads) -> None:
    # Fails on PostgreSQL while a part is added without its content's lock: its blob is then removed.
    one, other, order = begin(uploads), begin(uploads), []
    uploads.add_part(one.id, 1, "a" * 64)
    uploads.cancel(one.id)

    def remove(_: str) -> None:
        adding.start()
        adding.join(0.2)
        order.append("removed")

    adding = Thread(target=lambda: uploads.add_part(other.id, 1, "a" * 64, lambda: order.append("stored")))
    uploads.drop_parts(one.id, remove)
    adding.join(60)
    assert order == ["removed", "stored"]


def test_expired_uploads_end_and_are_forgotten_later(uploads: Uploads, database: Database) -> None:
    late, pending = begin(uploads.of("acme")), begin(uploads)
    uploads.of("acme").add_part(late.id, 1, "1" * 64)
    uploads.add_part(pending.id, 1, "2" * 64)
    age(database, late, HOUR)
    acme = uploads.of("acme")
    assert acme.get(late.id).status is UploadStatus.EXPIRED
    assert code(acme.add_part, late.id, 1, "a" * 64) == Code.UPLOAD_STATE_CONFLICT
    assert code(acme.cancel, late.id) == Code.UPLOAD_STATE_CONFLICT
    assert uploads.delete_expired() == ["1" * 64]
    assert uploads.delete_expired() == []
    assert acme.get(late.id).status is UploadStatus.EXPIRED
    age(database, late, timedelta(days=2))
    uploads.delete_expired()
    assert code(acme.get, late.id) == Code.UPLOAD_NOT_FOUND
    assert uploads.parts(pending.id)


def test_sweep_continues_what_was_cut_short(uploads: Uploads) -> None:
    upload = begin(uploads)
    for number in range(3):
        uploads.add_part(upload.id, 1, f"{number}" * 64)
    uploads.cancel(upload.id)

    def fail_at_the_second(sha256: str) -> None:
        if sha256 == "1" * 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uploads.drop_parts(upload.id, fail_at_the_second)
    assert uploads.delete_expired() == ["1" * 64, "2" * 64]


def test_sweep_writes_nothing_where_nothing_is_over(uploads: Uploads, database: Database) -> None:
    begin(uploads)
    writes: list[int] = []
    database.after_write.append(lambda: writes.append(1))
    assert uploads.delete_expired() == []
    assert not writes


def test_pending_upload_counts_in_the_quota(uploads: Uploads, files: Files, database: Database) -> None:
    acme, quota = uploads.of("acme"), FileQuota(files=2, bytes=10)
    pending = begin(acme, 6, quota=quota)
    assert code(begin, acme, 5, quota=quota) == Code.QUOTA_EXCEEDED
    assert code(files.of("acme").add, "a", "fine-tune", 5, "0" * 64, None, quota) == Code.QUOTA_EXCEEDED
    acme.complete(pending.id, "d", WHOLE)
    assert files.of("acme").room(quota) == 4
    other = begin(acme, 4, quota=quota)
    assert code(begin, acme, 1, quota=FileQuota(files=2)) == Code.QUOTA_EXCEEDED
    age(database, other, HOUR)
    assert files.of("acme").room(quota) == 4, "an expired one does not"


def test_other_tenants_do_not_see_an_upload(uploads: Uploads) -> None:
    upload = begin(uploads)
    for call in ("get", "parts", "check_pending", "cancel"):
        assert code(getattr(uploads.of("acme"), call), upload.id) == Code.UPLOAD_NOT_FOUND
    assert code(uploads.get, "upload-\0") == Code.UPLOAD_NOT_FOUND
