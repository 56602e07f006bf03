"""Uploaded files: their rows, and when the blob behind one is no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shared.database.connection import Database, whole_milliseconds
from shared.database.job_states import FINAL
from shared.database.records import Value, new_id
from shared.database.tables import FileRow, JobRow
from shared.database.tenancy import NO_QUOTA, SHARED, FileQuota, TenantName, check_owner, visible_to
from shared.database.visibility import storable
from shared.errors import Code, Conflict, Forbidden, NotFound


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
    """Files as a tenant sees them: its own, and those of ``shared``. Each verb is one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Files:
        """Files as another tenant sees them."""
        return Files(self._db, tenant)

    def room(self, quota: FileQuota) -> int | None:
        """Bytes that the tenant may still store; None: any number. ``shared`` has no quota.

        Raises:
            Forbidden: ``QUOTA_EXCEEDED``: no file, or not one byte.
        """
        with self._db.read() as session:
            return self._room(session, quota)

    def add(
        self,
        filename: str,
        purpose: str,
        size: int,
        sha256: str,
        expires_at: datetime | None = None,
        quota: FileQuota = NO_QUOTA,
    ) -> File:
        """Record a stored blob of ``size`` bytes as a file.

        Raises:
            Forbidden: ``QUOTA_EXCEEDED``.
        """
        with self._db.write() as session:
            if quota != NO_QUOTA:
                _lock(session, f"quota of {self._tenant}")
                room = self._room(session, quota)
                if room is not None and size > room:
                    raise over_quota(self._tenant, f"{quota.bytes} bytes")
            row = add_file(session, self._tenant, filename, purpose, size, sha256, expires_at)
            return File.model_validate(row)

    def get(self, file_id: str, field: str = "file_id") -> File:
        """A file, by its id.

        Args:
            field: the caller's field that holds the id, for the error.

        Raises:
            NotFound: ``FILE_NOT_FOUND``.
        """
        with self._db.read() as session:
            return File.model_validate(self._row(session, file_id, field))

    def list(self, *, after: str | None, limit: int, purpose: str | None, newest_first: bool) -> Sequence[File]:
        """A page of files; ``after`` is the last id of the page before. One more than ``limit`` means that there are more."""
        order = FileRow.id.desc() if newest_first else FileRow.id.asc()
        query = select(FileRow).where(FileRow.tenant.in_(self._tenants)).order_by(order).limit(limit + 1)
        if after:
            query = query.where(FileRow.id < after if newest_first else FileRow.id > after)
        if purpose:
            query = query.where(FileRow.purpose == purpose)
        with self._db.read() as session:
            return [File.model_validate(row) for row in session.scalars(query)]

    def delete(self, file_id: str, remove: Callable[[str], object] = lambda _: None) -> str | None:
        """Delete a file's row.

        Args:
            remove: called inside the transaction with the SHA-256 of the file's blob, when no other file has the same
                content. It must be quick: a transaction that adds such a file waits for it.

        Returns:
            that SHA-256; None when the blob stays.

        Raises:
            NotFound: ``FILE_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``. Conflict: ``FILE_IN_USE`` by an unfinished job of
                any tenant.
        """
        with self._db.write() as session:
            row = self._row(session, file_id, lock=True)
            check_owner(f"The file {file_id}", row.tenant, self._tenant)
            unfinished = select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL]))
            for job in session.scalars(unfinished):
                if file_id in [job.extra.get(role) for role in ("training_file", "validation_file", "replay_file")]:
                    # Another tenant's job is not named.
                    user = f"The job {job.id}" if job.tenant in self._tenants else "A job of another tenant"
                    raise Conflict(
                        Code.FILE_IN_USE,
                        f"{user} still needs the file {file_id}.",
                        remedy="Wait until the job has finished, or cancel it.",
                    )
            _lock_content(session, row.sha256)
            session.delete(row)
            session.flush()
            # Counted after this row is deleted and under the content's lock: no file can be added until the commit.
            if session.scalar(select(func.count()).select_from(FileRow).where(FileRow.sha256 == row.sha256)):
                return None
            remove(row.sha256)
            return row.sha256

    def delete_expired(self, remove: Callable[[str], object] = lambda _: None) -> Sequence[str]:
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
        # Each in a transaction of its own, so that a file that is still needed keeps no other.
        for file_id, tenant in expired:
            try:
                blobs.append(self.of(tenant).delete(file_id, remove))
            except (Conflict, NotFound):
                # Still needed, or deleted by another process.
                continue
        return [sha256 for sha256 in blobs if sha256]

    def _room(self, session: Session, quota: FileQuota) -> int | None:
        if quota == NO_QUOTA or self._tenant == SHARED:
            return None
        query = select(func.count(), func.coalesce(func.sum(FileRow.bytes), 0)).where(FileRow.tenant == self._tenant)
        count, size = session.execute(query).one()
        if quota.files is not None and count >= quota.files:
            raise over_quota(self._tenant, f"{quota.files} files")
        if quota.bytes is not None and size >= quota.bytes:
            raise over_quota(self._tenant, f"{quota.bytes} bytes")
        return None if quota.bytes is None else quota.bytes - int(size)

    def _row(self, session: Session, file_id: str, field: str = "file_id", *, lock: bool = False) -> FileRow:
        row = session.get(FileRow, storable(file_id), with_for_update=lock)
        if row is None or row.tenant not in self._tenants:
            raise NotFound(
                Code.FILE_NOT_FOUND,
                f"There is no file {file_id!r}.",
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
) -> FileRow:
    """Add a file inside the caller's transaction. Its blob may have been removed just before, so check it afterwards."""
    _lock_content(session, sha256)
    row = FileRow(
        id=new_id("file"),
        tenant=tenant,
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=whole_milliseconds(datetime.now(UTC)),
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row


def over_quota(tenant: str, quota: str) -> Forbidden:
    """The error for a file that does not fit into a tenant's quota."""
    return Forbidden(
        Code.QUOTA_EXCEEDED,
        f"The tenant {tenant!r} may store {quota}, and this file does not fit in.",
        remedy="Delete files that are not needed: DELETE /v1/files/{file_id}.",
        param="file",
    )


def _lock_content(session: Session, sha256: str) -> None:
    """Hold a content until the transaction ends: adding and removing files with it wait for each other."""
    _lock(session, sha256)


def _lock(session: Session, name: str) -> None:
    """Hold a name until the transaction ends. On SQLite all writers wait for each other anyhow."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))
