"""Receipts: stored by the job that judged an adapter, read when the adapter is to be moved."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.records import Value, new_id
from shared.database.tables.gates import ReceiptRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, visible_to
from shared.errors import Code, NotFound


class NewReceipt(Value):
    """Outcome of judging an adapter; ``receipt`` is the whole receipt, as in `shared/gates/receipt.py`."""

    adapter_id: str
    adapter_digest: str
    incumbent_id: str | None
    incumbent_digest: str | None
    policy_digest: str
    serving_digest: str | None
    passed: bool
    valid_until: datetime
    receipt: dict[str, Any]


class StoredReceipt(NewReceipt):
    """A receipt as it was stored."""

    id: str
    tenant: str
    job_id: str
    created_at: datetime


class Receipts:
    """Receipts as a tenant sees them: its own, and those of ``shared``."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenants = visible_to(tenant)

    def get(self, receipt_id: str) -> StoredReceipt:
        """Return a receipt by its id.

        Raises:
            NotFound: ``RECEIPT_NOT_FOUND``.
        """
        with self._db.read() as session:
            row = session.get(ReceiptRow, storable(receipt_id))
            if row is None or row.tenant not in self._tenants:
                raise NotFound(
                    Code.RECEIPT_NOT_FOUND,
                    f"The receipt {receipt_id!r} does not exist.",
                    remedy="List the receipts with GET /v1/receipts.",
                    param="receipt",
                )
            return StoredReceipt.model_validate(row)

    def count(self, adapter_id: str, adapter_digest: str, incumbent_digest: str | None, policy_digest: str) -> int:
        """Count the receipts under a policy for exactly these bytes of an adapter and of an incumbent; None: no
        incumbent.
        """
        query = select(func.count()).select_from(ReceiptRow)
        query = query.where(
            ReceiptRow.tenant.in_(self._tenants),
            ReceiptRow.adapter_id == adapter_id,
            ReceiptRow.adapter_digest == adapter_digest,
            ReceiptRow.policy_digest == policy_digest,
            ReceiptRow.incumbent_digest.is_not_distinct_from(incumbent_digest),
        )
        with self._db.read() as session:
            return session.scalar(query) or 0

    def list(
        self, *, adapter: str | None = None, job: str | None = None, after: str | None = None, limit: int = 20
    ) -> list[StoredReceipt]:
        """Return a page of receipts, newest first; one more than ``limit`` if more follow.

        Args:
            adapter: id of the adapter that they are about; None: any.
            job: id of the job that stored them; None: any.
            after: id of the last receipt of the page before.
            limit: the page's size.
        """
        query = select(ReceiptRow).where(ReceiptRow.tenant.in_(self._tenants)).order_by(ReceiptRow.id.desc())
        if adapter is not None:
            query = query.where(ReceiptRow.adapter_id == storable(adapter))
        if job is not None:
            query = query.where(ReceiptRow.job_id == storable(job))
        if after is not None:
            query = query.where(ReceiptRow.id < storable(after))
        with self._db.read() as session:
            return [StoredReceipt.model_validate(row) for row in session.scalars(query.limit(limit + 1))]


def add_receipt(session: Session, tenant: TenantName, job_id: str, receipt: NewReceipt, now: datetime) -> StoredReceipt:
    """Store a receipt in the transaction of the job that judged."""
    row = ReceiptRow(id=new_id("receipt"), tenant=tenant, job_id=job_id, created_at=now, **receipt.model_dump())
    session.add(row)
    session.flush()
    return StoredReceipt.model_validate(row)


def receipts_of(
    session: Session, tenant: TenantName, adapter_id: str, adapter_digest: str, policy_digest: str
) -> list[StoredReceipt]:
    """Return the receipts for exactly these bytes of an adapter under a policy, newest first: the tenant's own, and
    those of ``shared``.
    """
    query = select(ReceiptRow).where(
        ReceiptRow.tenant.in_(visible_to(tenant)),
        ReceiptRow.adapter_id == adapter_id,
        ReceiptRow.adapter_digest == adapter_digest,
        ReceiptRow.policy_digest == policy_digest,
    )
    rows = session.scalars(query.order_by(ReceiptRow.created_at.desc(), ReceiptRow.id.desc()))
    return [StoredReceipt.model_validate(row) for row in rows]
