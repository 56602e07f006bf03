"""Uploads in parts: create, add parts, complete or cancel; and remove leftovers of ended ones.

An upload takes parts until it is completed, is cancelled or expires. Each part is a blob. The upload's declared size
counts towards its tenant's quota from the beginning, and its parts cannot exceed it together, so that a tenant cannot
store more than a file of that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from shared.database.connection import Database, whole_milliseconds
from shared.database.files.contents import (
    IdempotencyKey,
    Remove,
    Store,
    check_room,
    is_pending,
    lock_content,
    lock_tenant,
    remove_unneeded,
)
from shared.database.files.files import File, add_file
from shared.database.records import Value, new_id
from shared.database.tables.files import FileRow, UploadPartRow, UploadRow
from shared.database.tables.storable import storable
from shared.database.tenancy import NO_QUOTA, SHARED, FileQuota, TenantName
from shared.errors import Code, Conflict, InvalidRequest, NotFound

MAX_PARTS = 1000
KEPT_AFTER_EXPIRY = timedelta(days=1)
"""Time after its expiry during which an upload can be looked up and its requests repeated."""


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Upload(Value):
    """An upload in parts, with its declared size in bytes.

    Attributes:
        file_seconds: lifetime of the file; None: until it is deleted.
        file_id: id of the completed upload's file, which may be deleted.
    """

    id: str
    filename: str
    purpose: str
    bytes: int
    file_seconds: int | None
    status: UploadStatus
    created_at: datetime
    expires_at: datetime
    file_id: str | None


class UploadPart(Value):
    """A part of an upload: a stored blob."""

    id: str
    upload_id: str
    bytes: int
    sha256: str
    created_at: datetime


class Uploads:
    """Uploads of a tenant; others do not see them. Each operation runs in one transaction, except those that remove parts."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant

    def of(self, tenant: TenantName) -> Uploads:
        """Return the uploads of another tenant."""
        return Uploads(self._db, tenant)

    def create(
        self,
        filename: str,
        purpose: str,
        size: int,
        lifetime: timedelta,
        *,
        file_seconds: int | None = None,
        quota: FileQuota = NO_QUOTA,
        idempotency_key: IdempotencyKey | None = None,
    ) -> Upload:
        """Begin an upload.

        Args:
            filename: the file's name, like ``purpose``.
            purpose: OpenAI's.
            size: the file's size, in bytes.
            lifetime: how long the upload accepts parts.
            file_seconds: lifetime of the file.
            quota: the tenant's quota.
            idempotency_key: the same key and request give the same upload.
        """
        with self._db.write() as session:
            # Before the quota and the key are read: two equal requests could otherwise both find room, and no upload.
            lock_tenant(session, self._tenant)
            if idempotency_key:
                query = select(UploadRow).where(UploadRow.idempotency_key == storable(idempotency_key.key))
                if row := session.scalar(query.where(UploadRow.tenant == self._tenant)):
                    idempotency_key.check(row.request_digest, f"the upload {row.id}")
                    return _upload(row)
            check_room(session, self._tenant, quota, size, "bytes")
            now = whole_milliseconds(datetime.now(UTC))
            row = UploadRow(
                id=new_id("upload"),
                tenant=self._tenant,
                filename=storable(filename),
                purpose=purpose,
                bytes=size,
                file_seconds=file_seconds,
                status=str(UploadStatus.PENDING),
                created_at=now,
                expires_at=whole_milliseconds(now + lifetime),
                idempotency_key=storable(idempotency_key.key) if idempotency_key else None,
                request_digest=idempotency_key.request_digest if idempotency_key else None,
            )
            session.add(row)
            session.flush()
            return _upload(row)

    def get(self, upload_id: str) -> Upload:
        """Return an upload by its id.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
        """
        with self._db.read() as session:
            return _upload(self._row(session, upload_id))

    def parts(self, upload_id: str) -> Sequence[UploadPart]:
        """Return the parts so far, oldest first; empty after the upload's end.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
        """
        query = select(UploadPartRow).where(UploadPartRow.upload_id == upload_id).order_by(UploadPartRow.id)
        with self._db.read() as session:
            if _upload(self._row(session, upload_id)).status is not UploadStatus.PENDING:
                return []
            return [UploadPart.model_validate(row) for row in session.scalars(query)]

    def check_pending(self, upload_id: str) -> None:
        """Raise an error if an upload no longer accepts parts.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
            Conflict: ``UPLOAD_STATE_CONFLICT``.
        """
        with self._db.read() as session:
            _check_pending(self._row(session, upload_id))

    def add_part(self, upload_id: str, size: int, sha256: str, store: Store = lambda: None) -> UploadPart:
        """Add a part, and make its blob visible in the same step. If a part with the same content exists, that part is
        returned.

        Args:
            upload_id: the upload's id.
            size: size in bytes.
            sha256: the content's SHA-256.
            store: stores the blob.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
            Conflict: ``UPLOAD_STATE_CONFLICT``.
            InvalidRequest: ``UPLOAD_SIZE_MISMATCH``: more bytes than the declared size, or too many parts.
        """
        with self._db.write() as session:
            row = self._row(session, upload_id, lock=True)
            _check_pending(row)
            same_content = select(UploadPartRow).where(
                UploadPartRow.upload_id == row.id, UploadPartRow.sha256 == sha256
            )
            if part := session.scalar(same_content):
                return UploadPart.model_validate(part)
            count, stored = _stored(session, row.id)
            if stored + size > row.bytes:
                raise size_mismatch(
                    f"The upload was created for {row.bytes} bytes, but its parts would have more.", "data"
                )
            if count >= MAX_PARTS:
                raise size_mismatch(f"The upload has {MAX_PARTS} parts already.", "data")
            # A transaction that removes the last other use of this content waits until the part counts as a use.
            lock_content(session, sha256)
            now = whole_milliseconds(datetime.now(UTC))
            part = UploadPartRow(id=new_id("part"), upload_id=row.id, bytes=size, sha256=sha256, created_at=now)
            session.add(part)
            session.flush()
            # Last: if the row cannot be written, no blob appears; if the blob cannot be stored, the row is rolled back.
            store()
            return UploadPart.model_validate(part)

    def completed(self, upload_id: str, completion_digest: str) -> tuple[Upload, File | None] | None:
        """Return the upload and file that an equal request has completed already; None if the upload is pending.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
            Conflict: ``UPLOAD_STATE_CONFLICT``: cancelled, expired, or completed by a different request.
        """
        with self._db.read() as session:
            return self._completed(session, self._row(session, upload_id), completion_digest)

    def complete(
        self, upload_id: str, completion_digest: str, sha256: str, store: Store = lambda: None
    ) -> tuple[Upload, File | None]:
        """Create the file of an upload, and make its blob visible. Its parts are no longer needed: :meth:`drop_parts`.

        Args:
            upload_id: the upload's id.
            completion_digest: the request's digest, so that an equal one can be repeated.
            sha256: SHA-256 of the whole content.
            store: stores the blob.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
            Conflict: ``UPLOAD_STATE_CONFLICT``.
        """
        with self._db.write() as session:
            row = self._row(session, upload_id, lock=True)
            if completed := self._completed(session, row, completion_digest):
                return completed
            file = add_file(session, self._tenant, row.filename, row.purpose, row.bytes, sha256)
            if row.file_seconds is not None:
                file.expires_at = file.created_at + timedelta(seconds=row.file_seconds)
            row.status, row.file_id, row.completion_digest = str(UploadStatus.COMPLETED), file.id, completion_digest
            session.flush()
            # Last, as for a part.
            store()
            return _upload(row), File.model_validate(file)

    def cancel(self, upload_id: str) -> Upload:
        """Cancel an upload; a repeated call changes nothing. The caller then deletes its parts with :meth:`drop_parts`.

        Raises:
            NotFound: ``UPLOAD_NOT_FOUND``.
            Conflict: ``UPLOAD_STATE_CONFLICT``: completed or expired.
        """
        with self._db.write() as session:
            row = self._row(session, upload_id, lock=True)
            if row.status != UploadStatus.CANCELLED:
                _check_pending(row)
                row.status = str(UploadStatus.CANCELLED)
            return _upload(row)

    def drop_parts(self, upload_id: str, remove: Remove = lambda _: None) -> Sequence[str]:
        """Delete the parts of an upload that has ended, and every blob that is no longer needed; return those blobs'
        SHA-256. An interrupted call is continued by :meth:`delete_expired`.
        """
        removed = []
        with self._db.read() as session:
            parts = list(session.execute(select(UploadPartRow.id, UploadPartRow.sha256).filter_by(upload_id=upload_id)))
        for part_id, sha256 in parts:
            # A transaction for each part: others that store this content wait for one removal, not for all of them.
            with self._db.write() as session:
                # As in `Files.delete`: uses that are being added are counted.
                lock_content(session, sha256)
                if row := session.get(UploadPartRow, part_id):
                    session.delete(row)
                    removed += [sha256] if remove_unneeded(session, sha256, remove) else []
        return removed

    def delete_expired(self, remove: Remove = lambda _: None) -> Sequence[str]:
        """End the expired uploads of every tenant, and delete the parts of all uploads that have ended.

        Returns:
            SHA-256 of the blobs that were removed.
        """
        self._end_expired()
        over = select(UploadPartRow.upload_id).join(UploadRow).where(UploadRow.status != UploadStatus.PENDING)
        with self._db.read() as session:
            ids = list(session.scalars(over.distinct()))
        removed = [sha256 for upload_id in ids for sha256 in self.drop_parts(upload_id, remove)]
        self._forget_old()
        return removed

    def _end_expired(self) -> None:
        late = UploadRow.status == UploadStatus.PENDING, ~is_pending()
        with self._db.read() as session:
            ids = list(session.scalars(select(UploadRow.id).where(*late)))
        if ids:  # Usually no upload has expired, and a write would make others wait.
            with self._db.write() as session:
                # The condition is checked again, because an upload may have been completed since it was read.
                ended = update(UploadRow).where(UploadRow.id.in_(ids), *late)
                session.execute(ended.values(status=str(UploadStatus.EXPIRED)))

    def _forget_old(self) -> None:
        """Delete rows of uploads that expired long ago and have no parts left."""
        has_parts = select(UploadPartRow.id).where(UploadPartRow.upload_id == UploadRow.id).exists()
        old = UploadRow.expires_at < datetime.now(UTC) - KEPT_AFTER_EXPIRY, ~has_parts
        with self._db.read() as session:
            ids = list(session.scalars(select(UploadRow.id).where(*old)))
        if ids:
            with self._db.write() as session:
                # The condition is checked again, as above.
                session.execute(delete(UploadRow).where(UploadRow.id.in_(ids), *old))

    def _completed(self, session: Session, row: UploadRow, completion_digest: str) -> tuple[Upload, File | None] | None:
        if row.status == UploadStatus.COMPLETED and row.completion_digest == completion_digest:
            file = session.get(FileRow, row.file_id)
            return _upload(row), File.model_validate(file) if file else None
        _check_pending(row)
        return None

    def _row(self, session: Session, upload_id: str, *, lock: bool = False) -> UploadRow:
        row = session.get(UploadRow, storable(upload_id), with_for_update=lock)
        if row is None or row.tenant != self._tenant:
            raise NotFound(
                Code.UPLOAD_NOT_FOUND,
                f"The upload {upload_id!r} does not exist.",
                remedy="Create an upload with POST /v1/uploads and use the id that it returns.",
                param="upload_id",
            )
        return row


def size_mismatch(message: str, param: str) -> InvalidRequest:
    """Return the error for parts that do not add up to the announced file."""
    remedy = "Cancel the upload, and create another with the file's size and larger parts."
    return InvalidRequest(Code.UPLOAD_SIZE_MISMATCH, message, remedy=remedy, param=param)


def _stored(session: Session, upload_id: str) -> tuple[int, int]:
    """Return the number of an upload's parts, and their bytes."""
    query = select(func.count(), func.coalesce(func.sum(UploadPartRow.bytes), 0))
    count, size = session.execute(query.where(UploadPartRow.upload_id == upload_id)).one()
    return count, int(size)


def _upload(row: UploadRow) -> Upload:
    """Return an upload in its current state: expired after its time, whether that was already stored or not."""
    upload = Upload.model_validate(row)
    if upload.status is UploadStatus.PENDING and upload.expires_at <= datetime.now(UTC):
        return upload.model_copy(update={"status": UploadStatus.EXPIRED})
    return upload


def _check_pending(row: UploadRow) -> None:
    status = _upload(row).status
    if status is not UploadStatus.PENDING:
        raise Conflict(
            Code.UPLOAD_STATE_CONFLICT,
            f"The upload {row.id} is {status}.",
            remedy="Create another with POST /v1/uploads.",
            param="upload_id",
        )
