"""Files: uploaded or produced ones, and the rules for deleting them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.connection import Database, whole_milliseconds
from shared.database.files.contents import (
    IdempotencyKey,
    Remove,
    Store,
    check_room,
    lock_content,
    lock_tenant,
    remove_unneeded,
    room,
)
from shared.database.job_states import FINAL
from shared.database.lists.pages import page_of_rows
from shared.database.records import Value, new_id
from shared.database.tables.files import FileRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.storable import storable
from shared.database.tenancy import NO_QUOTA, SHARED, FileQuota, TenantName, check_owner, visible_to
from shared.errors import Code, Conflict, NotFound

FILE_ROLES = ("training_file", "validation_file", "replay_file", "items_file", "cycles_file")
"""Fields of a job's ``extra`` that name the files it needs until it has finished."""


class File(Value):
    """An uploaded or produced file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None
    tenant: str


class Files:
    """Files as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Files:
        """Return the files as another tenant sees them."""
        return Files(self._db, tenant)

    def room(self, quota: FileQuota) -> int | None:
        """Return the bytes that the tenant may still store, or None for no limit. ``shared`` has no quota.

        Raises:
            Forbidden: ``QUOTA_EXCEEDED``: the tenant may not store another file, or another byte.
        """
        with self._db.read() as session:
            return room(session, self._tenant, quota)

    def made_with(self, idempotency_key: str) -> File | None:
        """Return the file of an earlier request with this key, if it still exists."""
        with self._db.read() as session:
            row = _made_with(session, self._tenant, idempotency_key)
            return File.model_validate(row) if row else None

    def add(
        self,
        filename: str,
        purpose: str,
        size: int,
        sha256: str,
        expires_at: datetime | None = None,
        quota: FileQuota = NO_QUOTA,
        *,
        store: Store = lambda: None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> File:
        """Add a file, and make its blob visible in the same step: neither exists without the other.

        Args:
            filename: shown to people.
            purpose: OpenAI's.
            size: size in bytes.
            sha256: the content's SHA-256.
            expires_at: when the file is deleted.
            quota: the tenant's quota.
            store: stores the blob.
            idempotency_key: the same key and request give the same file.
        """
        with self._db.write() as session:
            # Only sums and keys need the lock: other files of a tenant are added without waiting for each other.
            if quota != NO_QUOTA or idempotency_key:
                lock_tenant(session, self._tenant)
            if idempotency_key and (made := _made_with(session, self._tenant, idempotency_key.key)):
                idempotency_key.check(made.request_digest, f"the file {made.id}")
                return File.model_validate(made)
            check_room(session, self._tenant, quota, size)
            row = add_file(session, self._tenant, filename, purpose, size, sha256, expires_at, idempotency_key)
            # Last, for the reason in `Uploads.add_part`.
            store()
            return File.model_validate(row)

    def get(self, file_id: str, field: str = "file_id") -> File:
        """Return a file by its id.

        Args:
            field: the caller's field that holds the id, for the error.

        Raises:
            NotFound: ``FILE_NOT_FOUND``.
        """
        with self._db.read() as session:
            return File.model_validate(self._row(session, file_id, field))

    def list(self, *, after: str | None, limit: int, purpose: str | None, newest_first: bool) -> Sequence[File]:
        """Return a page of files; ``after`` is the previous page's last id. One more than ``limit`` if more follow."""
        query = select(FileRow)
        if after:
            query = query.where(FileRow.id < after if newest_first else FileRow.id > after)
        if purpose:
            query = query.where(FileRow.purpose == purpose)
        with self._db.read() as session:
            rows = page_of_rows(session, query, FileRow, self._tenants, limit, newest_first=newest_first)
            return [File.model_validate(row) for row in rows]

    def delete(self, file_id: str, remove: Remove = lambda _: None) -> str | None:
        """Delete a file's row.

        Args:
            remove: called inside the transaction with the SHA-256 of the file's blob, when no other file has the same
                content. It must be quick: a transaction that adds such a file waits for it.

        Returns:
            that SHA-256; None when the blob stays.

        Raises:
            NotFound: ``FILE_NOT_FOUND``.
            Conflict: ``FILE_IN_USE`` by an unfinished job of any tenant.
        """
        with self._db.write() as session:
            row = self._row(session, file_id, lock=True)
            check_owner(f"The file {file_id}", row.tenant, self._tenant)
            unfinished = select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL]))
            for job in session.scalars(unfinished):
                if file_id in [job.extra.get(role) for role in FILE_ROLES]:
                    # Another tenant's job is not named.
                    user = f"The job {job.id}" if job.tenant in self._tenants else "A job of another tenant"
                    raise Conflict(
                        Code.FILE_IN_USE,
                        f"{user} still needs the file {file_id}.",
                        remedy="Wait until the job has finished, or cancel it.",
                    )
            # Before the other uses are counted: one that is being added is committed, and counted, by then.
            lock_content(session, row.sha256)
            session.delete(row)
            return row.sha256 if remove_unneeded(session, row.sha256, remove) else None

    def delete_expired(self, remove: Remove = lambda _: None) -> Sequence[str]:
        """Delete the rows of every tenant's files that have expired and that no unfinished job needs.

        Args:
            remove: see :meth:`delete`.

        Returns:
            SHA-256 of the blobs that no file needs any longer.
        """
        query = select(FileRow.id, FileRow.tenant).where(FileRow.expires_at < datetime.now(UTC))
        with self._db.read() as session:
            expired = list(session.execute(query))
        blobs = []
        # Each in a transaction of its own, so that a file that is still needed does not block others.
        for file_id, tenant in expired:
            try:
                blobs.append(self.of(tenant).delete(file_id, remove))
            except (Conflict, NotFound):
                # Still needed, or deleted by another process.
                continue
        return [sha256 for sha256 in blobs if sha256]

    def _row(self, session: Session, file_id: str, field: str = "file_id", *, lock: bool = False) -> FileRow:
        row = session.get(FileRow, storable(file_id), with_for_update=lock)
        if row is None or row.tenant not in self._tenants:
            raise NotFound(
                Code.FILE_NOT_FOUND,
                f"The file {file_id!r} does not exist.",
                remedy="Upload it with POST /v1/files and use the id it returns.",
                param=field,
            )
        return row


def add_file(
    session: Session,
    tenant: TenantName,
    filename: str,
    purpose: str,
    size: int,
    sha256: str,
    expires_at: datetime | None = None,
    idempotency_key: IdempotencyKey | None = None,
) -> FileRow:
    """Add a file inside the caller's transaction. A blob that was stored before it may have been removed meanwhile."""
    # A transaction that removes this content waits, and then finds this row.
    lock_content(session, sha256)
    row = FileRow(
        id=new_id("file"),
        tenant=tenant,
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=whole_milliseconds(datetime.now(UTC)),
        expires_at=expires_at,
        idempotency_key=storable(idempotency_key.key) if idempotency_key else None,
        request_digest=idempotency_key.request_digest if idempotency_key else None,
    )
    session.add(row)
    session.flush()
    return row


def _made_with(session: Session, tenant: TenantName, idempotency_key: str) -> FileRow | None:
    return session.scalar(
        select(FileRow).where(FileRow.tenant == tenant, FileRow.idempotency_key == storable(idempotency_key))
    )
