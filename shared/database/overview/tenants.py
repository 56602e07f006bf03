"""Overview of tenants: the use of their quotas, their keys and files, and their last activity."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import ColumnElement, and_, func, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from shared.database.callers.key_records import Key
from shared.database.callers.keys import tenant_keys
from shared.database.connection import Database
from shared.database.files.contents import is_pending
from shared.database.queueing.quotas import QuotaUse, quota_uses
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.files import FileRow, UploadRow
from shared.database.tables.jobs import JobRow, TenantQuotaRow
from shared.database.tables.keys import KeyRow
from shared.database.tenancy import TenantName
from shared.errors import Code, NotFound

Column = ColumnElement[Any] | InstrumentedAttribute[Any]


class TenantOverview(QuotaUse):
    """A tenant as operators see it."""

    valid_keys: int = Field(description="Keys that requests may carry: neither revoked nor expired.")
    files: int
    stored_bytes: int = Field(
        description="Bytes of its files and pending uploads, as its quota of files counts them; without adapters, which share folders."
    )
    adapters: int = Field(description="Adapters that are neither deleted nor being deleted.")
    last_active_at: datetime | None = Field(
        description="When one of its keys was last used (accurate to about a minute) or a job of it was created; null: never."
    )


class TenantRecord(TenantOverview):
    """The same, with the tenant's keys."""

    keys: list[Key] = Field(description="Oldest first, without secrets; revoked ones too.")


class Tenants:
    """An operator's operations on tenants; each runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> Sequence[TenantOverview]:
        """Return every tenant that has or had a key, a quota, a job, or files, by name."""
        with self._db.read() as session:
            return _overviews(session, _names(session), self._db.now(session))

    def get(self, tenant: TenantName) -> TenantRecord:
        """Return one tenant, with its keys.

        Raises:
            NotFound: ``TENANT_NOT_FOUND``.
        """
        with self._db.read() as session:
            if tenant not in _names(session):
                raise NotFound(
                    Code.TENANT_NOT_FOUND,
                    f"The tenant {tenant!r} does not exist.",
                    remedy="List them: GET /v1/tenants.",
                    param="tenant",
                )
            [overview] = _overviews(session, [tenant], self._db.now(session))
            return TenantRecord(**overview.model_dump(), keys=tenant_keys(session, tenant))


def _names(session: Session) -> list[str]:
    columns = (KeyRow.tenant, TenantQuotaRow.tenant, JobRow.tenant, FileRow.tenant)
    return sorted({name for column in columns for name in session.scalars(select(column).distinct())})


def _overviews(session: Session, tenants: Sequence[str], now: datetime) -> list[TenantOverview]:
    valid = and_(KeyRow.revoked_at.is_(None), or_(KeyRow.expires_at.is_(None), KeyRow.expires_at > now))
    # Keys that attempts create for themselves do not count as the tenant's.
    keys = _by_tenant(session, KeyRow.tenant, func.count(), and_(valid, KeyRow.job_id.is_(None)))
    files = _by_tenant(session, FileRow.tenant, func.count())
    stored = _by_tenant(session, FileRow.tenant, func.sum(FileRow.bytes))
    pending = _by_tenant(session, UploadRow.tenant, func.sum(UploadRow.bytes), is_pending())
    adapters = _by_tenant(session, AdapterRow.tenant, func.count(), AdapterRow.deleting_at.is_(None))
    used = _by_tenant(session, KeyRow.tenant, func.max(KeyRow.last_used_at))
    submitted = _by_tenant(session, JobRow.tenant, func.max(JobRow.created_at))
    return [
        TenantOverview(
            **use.model_dump(),
            valid_keys=keys.get(use.tenant, 0),
            files=files.get(use.tenant, 0),
            # PostgreSQL sums up BIGINT to NUMERIC.
            stored_bytes=int(stored.get(use.tenant, 0)) + int(pending.get(use.tenant, 0)),
            adapters=adapters.get(use.tenant, 0),
            last_active_at=max(filter(None, (used.get(use.tenant), submitted.get(use.tenant))), default=None),
        )
        for use in quota_uses(session, tenants, now)
    ]


def _by_tenant(
    session: Session, tenant: Column, figure: Column, where: ColumnElement[bool] | None = None
) -> dict[str, Any]:
    query = select(tenant, figure).where(true() if where is None else where).group_by(tenant)
    return {row[0]: row[1] for row in session.execute(query)}
