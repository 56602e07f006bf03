"""Shared code of files and uploads: the blobs behind them, their tenant's quota, and repeated requests.

A blob is kept while a file or a part of an upload has its content. Adding or removing one takes its content's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, func, select, true
from sqlalchemy.orm import Session

from shared.database.tables.files import FileRow, UploadPartRow, UploadRow
from shared.database.tenancy import NO_QUOTA, SHARED, FileQuota, TenantName
from shared.errors import Code, Conflict, Forbidden

Store = Callable[[], object]
"""Makes a blob visible under its name. It is called inside a transaction, so it must be quick."""
Remove = Callable[[str], object]
"""Removes a blob by its SHA-256. It must be quick, too: a transaction that adds the same content waits for it."""


class IdempotencyKey(NamedTuple):
    """Idempotency key of a request: the same key and digest give the same file or upload, as long as that exists.

    Attributes:
        key: the caller's, unique among those of its tenant.
        request_digest: digest of the request's content.
    """

    key: str
    request_digest: str

    def check(self, request_digest: str | None, thing: str) -> None:
        """Refuse a request that differs from the first one with this key.

        Raises:
            Conflict: ``IDEMPOTENCY_CONFLICT``.
        """
        if request_digest != self.request_digest:
            raise Conflict(
                Code.IDEMPOTENCY_CONFLICT,
                f"The Idempotency-Key was already used by {thing} with another request.",
                remedy="Use a new key for a new request.",
                param="Idempotency-Key",
            )


def room(session: Session, tenant: TenantName, quota: FileQuota) -> int | None:
    """Return the bytes that a tenant may still store, or None for no limit. ``shared`` has no quota.

    A pending upload counts as the file that it will become.

    Raises:
        Forbidden: ``QUOTA_EXCEEDED``: the tenant may not store another file, or another byte.
    """
    if quota == NO_QUOTA or tenant == SHARED:
        return None
    count = size = 0
    for table, kept in ((FileRow, true()), (UploadRow, is_pending())):
        query = select(func.count(), func.coalesce(func.sum(table.bytes), 0)).where(table.tenant == tenant, kept)
        row_count, found_bytes = session.execute(query).one()
        count, size = count + row_count, size + int(found_bytes)
    if quota.files is not None and count >= quota.files:
        raise over_quota(tenant, f"{quota.files} files")
    if quota.bytes is not None and size >= quota.bytes:
        raise over_quota(tenant, f"{quota.bytes} bytes")
    return None if quota.bytes is None else quota.bytes - size


def check_room(session: Session, tenant: TenantName, quota: FileQuota, size: int, param: str = "file") -> None:
    """Refuse a size that exceeds a tenant's quota.

    Raises:
        Forbidden: ``QUOTA_EXCEEDED``.
    """
    left = room(session, tenant, quota)
    if left is not None and size > left:
        raise over_quota(tenant, f"{quota.bytes} bytes", param)


def is_pending() -> ColumnElement[bool]:
    """Return the SQL condition of uploads that still accept parts."""
    return and_(UploadRow.status == "pending", UploadRow.expires_at > datetime.now(UTC))


def over_quota(tenant: str, quota: str, param: str = "file") -> Forbidden:
    """Return the error for a file that exceeds a tenant's quota."""
    return Forbidden(
        Code.QUOTA_EXCEEDED,
        f"The tenant {tenant!r} may store {quota}; this file would exceed that.",
        remedy="Delete files that are not needed (DELETE /v1/files/{file_id}), or cancel uploads that are pending.",
        param=param,
    )


def remove_unneeded(session: Session, sha256: str, remove: Remove) -> bool:
    """Remove a blob that no file and no part uses. The caller has locked the content and deleted its own row.

    Returns:
        whether it was removed.
    """
    session.flush()
    for table in (FileRow, UploadPartRow):
        if session.scalar(select(func.count()).select_from(table).where(table.sha256 == sha256)):
            return False
    remove(sha256)
    return True


def lock_content(session: Session, sha256: str) -> None:
    """Lock a content until the transaction ends: adding and removing its blobs wait for each other."""
    _lock(session, sha256)


def lock_tenant(session: Session, tenant: TenantName) -> None:
    """Lock a tenant's quota and its idempotency keys until the transaction ends."""
    _lock(session, f"files of {tenant}")


def _lock(session: Session, name: str) -> None:
    """Lock a name until the transaction ends. On SQLite all writers wait for each other in any case."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))
