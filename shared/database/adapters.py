"""Adapters: registered by jobs, found by id or alias, each with its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import computed_field
from sqlalchemy import ColumnElement, literal, or_, select, tuple_
from sqlalchemy.orm import Session

from shared.database.change_counter import bump
from shared.database.connection import Database
from shared.database.lists.pages import ORDERS, page_of_rows, place_of
from shared.database.records import Value
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, visible_to
from shared.database.visibility import adapter_row, adapters_by_id, alias_rows, is_preferred
from shared.errors import Code, NotFound
from shared.hashing import digest_json


class Adapter(Value):
    """A stored adapter. ``final`` marks a job's result, the others are its checkpoints."""

    id: str
    tenant: str
    digest: str
    base_model: str
    job_id: str
    step: int
    final: bool
    published: bool
    manifest: dict[str, Any]
    metrics: dict[str, Any]
    certificates: dict[str, Any]
    created_at: datetime
    deleting_at: datetime | None
    deleted_at: datetime | None

    @computed_field(  # type: ignore[prop-decorator]
        description="published; stored: never certified; quarantined: certified, and a certificate failed; "
        "deleting: no request is routed to it any longer; deleted: its files have been removed."
    )
    @property
    def state(self) -> Literal["published", "stored", "quarantined", "deleting", "deleted"]:
        if self.deleting_at:
            return "deleted" if self.deleted_at else "deleting"
        if self.published:
            return "published"
        return "quarantined" if self.certificates else "stored"

    @property
    def base_digest(self) -> str:
        """Digest of the base that it was trained on, as in the catalogue; empty if its manifest does not name one."""
        digests = self.manifest.get("base_digests")
        return digest_json(digests) if digests else ""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template that it was trained with; {}: the template's own defaults."""
        return self.manifest.get("template_arguments") or {}


class PublishedAdapter(NamedTuple):
    """A published adapter, as lists of models show it."""

    id: str
    tenant: str
    base_model: str
    job_id: str
    step: int
    final: bool
    created_at: datetime


class NewAdapter(Value):
    """An adapter that a job registers as it finishes."""

    id: str
    digest: str
    base_model: str
    step: int
    final: bool
    published: bool
    manifest: dict[str, Any]
    metrics: dict[str, Any] = {}
    certificates: dict[str, Any] = {}


class Adapters:
    """Adapters as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Adapters:
        """Return the adapters as another tenant sees them."""
        return Adapters(self._db, tenant)

    def get(self, name: str, *, deleted: bool = False) -> Adapter:
        """Return an adapter by its id or by an alias; if an alias has several adapters, the one with the largest
        weight.

        Args:
            deleted: whether an adapter that is being or has been deleted is found too: its record stays.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``.
        """
        with self._db.read() as session:
            aliased = [alias.adapter_id for alias in alias_rows(session, self._tenants, name)]
            row = adapter_row(session, self._tenants, next(iter(aliased), None) or name, deleted=deleted)
            if row is None:
                raise NotFound(
                    Code.ADAPTER_NOT_FOUND,
                    f"The adapter or alias {name!r} does not exist.",
                    remedy="List the available models with GET /v1/models.",
                    param="model",
                )
            return Adapter.model_validate(row)

    def with_ids(self, ids: Sequence[str], *, published_only: bool = False) -> Sequence[Adapter]:
        """Return the adapters with the given ids, newest first; without those that are being or have been deleted."""
        query = select(AdapterRow).where(AdapterRow.tenant.in_(self._tenants), AdapterRow.deleting_at.is_(None))
        query = query.where(AdapterRow.id.in_(ids))
        if published_only:
            query = query.where(AdapterRow.published)
        with self._db.read() as session:
            rows = adapters_by_id(session.scalars(query), self._tenants).values()
            return [Adapter.model_validate(row) for row in sorted(rows, key=place_of, reverse=True)]

    def of_job(self, job_id: str, ids: Sequence[str] = (), *, deleted: bool = False) -> Sequence[Adapter]:
        """Return the adapters that a job has registered, newest first, and others with the given ids.

        Args:
            ids: ids of the adapters in the job's result. An adapter with equal content may belong to an earlier job.
            deleted: include those that are being or have been deleted.
        """
        query = select(AdapterRow).where(AdapterRow.tenant.in_(self._tenants))
        query = query.where(or_(AdapterRow.job_id == job_id, AdapterRow.id.in_(ids)))
        if not deleted:
            query = query.where(AdapterRow.deleting_at.is_(None))
        with self._db.read() as session:
            rows = adapters_by_id(session.scalars(query), self._tenants).values()
            return [Adapter.model_validate(row) for row in sorted(rows, key=place_of, reverse=True)]

    def page(self, *, after: str | None = None, limit: int = 20, text: str = "") -> Sequence[Adapter]:
        """Return a page of adapters, newest first; ``limit`` + 1 of them if more follow. Those that are being or have
        been deleted are left out.

        Args:
            after: id of the last adapter of the page before; it may have been deleted since.
            text: beginning of the ids, or beginning or end of their digests.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``: ``after`` is not an adapter's id.
        """
        query = select(AdapterRow).where(AdapterRow.deleting_at.is_(None), is_preferred(self._tenants))
        if text:
            query = query.where(_has_text(storable(text)))
        with self._db.read() as session:
            if after is not None:
                query = query.where(self._follows(session, after))
            rows = page_of_rows(session, query, AdapterRow, self._tenants, limit, newest_first=True)
            return [Adapter.model_validate(row) for row in rows]

    def published(self, ids: Sequence[str] | None = None) -> Sequence[PublishedAdapter]:
        """Return all published adapters, or those with the given ids, newest first, without their manifests."""
        columns = [getattr(AdapterRow, name) for name in PublishedAdapter._fields]
        query = select(*columns).where(AdapterRow.deleting_at.is_(None), AdapterRow.published)
        query = query.where(AdapterRow.tenant.in_(self._tenants), is_preferred(self._tenants))
        if ids is not None:
            query = query.where(AdapterRow.id.in_(ids))
        with self._db.read() as session:
            adapters = [PublishedAdapter(*row) for row in session.execute(query)]
        return sorted(adapters, key=lambda adapter: (adapter.created_at, adapter.step, adapter.id), reverse=True)

    def _follows(self, session: Session, after: str) -> ColumnElement[bool]:
        if (row := adapter_row(session, self._tenants, after, deleted=True)) is None:
            raise NotFound(
                Code.ADAPTER_NOT_FOUND,
                f"The adapter {after!r} does not exist.",
                remedy="Request the first page again, without `after`.",
                param="after",
            )
        columns = [getattr(AdapterRow, name) for name in ORDERS[AdapterRow]]
        values = [literal(value, column.type) for value, column in zip(place_of(row), columns, strict=True)]
        return tuple_(*columns) < tuple_(*values)


def _has_text(text: str) -> ColumnElement[bool]:
    return or_(
        AdapterRow.id.istartswith(text, autoescape=True),
        AdapterRow.id.iendswith(text, autoescape=True),
        AdapterRow.id.icontains(f"@{text}", autoescape=True),
    )


def is_lent(session: Session, row: AdapterRow) -> bool:
    """Return whether the adapter was made by another tenant's job and lent to this tenant."""
    return session.scalar(select(JobRow.tenant).where(JobRow.id == row.job_id)) != row.tenant


def register_adapters(
    session: Session, tenant: TenantName, job_id: str, adapters: list[NewAdapter], now: datetime
) -> list[str]:
    """Add a job's adapters to its tenant's, inside the caller's transaction.

    An existing published adapter is not changed, except that a checkpoint of the same job becomes the job's result if
    both are equal. An unpublished one gets the state and certificates of a new record that is published or certified; a
    quarantined one stays quarantined if the new record has no certificate. A deleted adapter is registered again. An
    adapter that another tenant lent becomes the tenant's own.

    Returns:
        the ids of the adapters that can be called from now on but could not before.
    """
    callable_now = []
    # Sorted by id, because every transaction locks adapters in this order.
    for adapter in sorted(adapters, key=lambda adapter: adapter.id):
        row = session.get(AdapterRow, (tenant, adapter.id), with_for_update=True)
        if row is not None and (row.deleting_at is not None or (row.job_id != job_id and is_lent(session, row))):
            session.delete(row)
            # Flushed now: SQLAlchemy turns a delete and an insert of one key into an update, which keeps columns
            # without a value.
            session.flush()
            row = None
        was_published = row is not None and row.published
        if row is None:
            row = AdapterRow(tenant=tenant, job_id=job_id, created_at=now, **adapter.model_dump())
            session.add(row)
        elif adapter.final and not row.final and row.job_id == job_id:
            # After an early stop the result equals its last checkpoint, which may have been registered while the job ran.
            row.final, row.metrics = True, adapter.metrics
            row.published, row.certificates = adapter.published, adapter.certificates
        elif not row.published and (adapter.certificates or (adapter.published and not row.certificates)):
            row.published, row.certificates = adapter.published, adapter.certificates
        if row.published and not was_published:
            callable_now.append(row.id)
    session.flush()
    if adapters:
        bump(session, "adapters")
    return callable_now
