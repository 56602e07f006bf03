"""Changes of all tenants: recently changed jobs, receipts and aliases, read from indexes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import and_, bindparam, or_, select

from shared.database.connection import Database
from shared.database.records import Value, first_id_of
from shared.database.tables.gates import ReceiptRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.names import AliasMoveRow, AliasRow
from shared.database.tenancy import TenantName

MAX_CHANGES = 5_000
"""Largest number of changed jobs that one call returns."""
CLOCKS_APART = timedelta(minutes=5)
"""Largest assumed time by which a worker's clock is behind the database's; receipt ids contain the worker's time."""


class ChangedJob(NamedTuple):
    """A job, and its version since its last change."""

    id: str
    version: int
    changed_at: datetime


class ChangedJobs(NamedTuple):
    """The jobs that have changed since a moment, the first change first.

    Attributes:
        read_at: time of the query, by the database's clock.
        has_more: whether there are more than were returned.
    """

    read_at: datetime
    jobs: Sequence[ChangedJob]
    has_more: bool


def changed_jobs(
    database: Database, since: datetime | None, tenants: Sequence[TenantName] | None = None, limit: int = MAX_CHANGES
) -> ChangedJobs:
    """Return the jobs of all tenants, or of some, that changed since a time; without a time, only the time of the
    query.

    A change is visible only after its transaction has ended, so it may appear after a change with a later time. Callers
    therefore read the last few seconds again. Changes by a process of the previous release are not found.
    """
    query = CHANGED_JOBS if tenants is None else CHANGED_JOBS.where(JobRow.tenant.in_(tenants))
    with database.read() as session:
        now = database.now(session)
        if since is None:
            return ChangedJobs(now, [], has_more=False)
        rows = session.execute(query, {"since": since, "most": limit + 1}).all()
        jobs = [ChangedJob(job_id, version, moment) for job_id, version, moment in rows[:limit] if moment]
        return ChangedJobs(now, jobs, len(rows) > limit)


class MovedAlias(Value):
    """An alias that was moved; without an adapter it was deleted."""

    name: str
    tenant: str
    version: int
    adapter_id: str | None
    moved_at: datetime


class AddedReceipt(Value):
    """A receipt that was stored; `GET /v1/receipts/{receipt_id}` has the rest."""

    id: str
    tenant: str
    job_id: str
    adapter_id: str
    passed: bool
    created_at: datetime


CHANGED_JOBS = (
    select(JobRow.id, JobRow.version, JobRow.changed_at)
    .where(JobRow.changed_at >= bindparam("since"))
    .order_by(JobRow.changed_at, JobRow.id)
    .limit(bindparam("most"))
)
ADDED_RECEIPTS = (
    select(*(getattr(ReceiptRow, name) for name in AddedReceipt.model_fields))
    .where(ReceiptRow.id >= bindparam("first_id"), ReceiptRow.created_at >= bindparam("since"))
    .order_by(ReceiptRow.id)
    .limit(bindparam("most"))
)
"""Both are run several times a second while a client follows changes; building them took longer than running them."""


def moved_aliases(
    database: Database, since: datetime, tenants: Sequence[TenantName] | None = None, limit: int = MAX_CHANGES
) -> Sequence[MovedAlias]:
    """Return the aliases moved since a moment, oldest move first.

    Returns up to ``limit`` + 1 rows, and excludes foreign names, including deleted ones.

    Args:
        tenants: owners of the aliases; None: all tenants.
    """
    # The row of a deleted name does not show whether it was an alias; its last move does.
    last_move = and_(
        AliasMoveRow.tenant == AliasRow.tenant,
        AliasMoveRow.alias == AliasRow.name,
        AliasMoveRow.version == AliasRow.version,
    )
    was_alias = AliasMoveRow.before["kind"].as_string().is_(None)
    query = select(AliasRow).outerjoin(AliasMoveRow, last_move)
    query = query.where(AliasRow.moved_at >= since, AliasRow.stands_for.is_(None))
    query = query.where(or_(AliasRow.adapter_id.is_not(None), was_alias))
    if tenants is not None:
        query = query.where(AliasRow.tenant.in_(tenants))
    with database.read() as session:
        rows = session.scalars(query.order_by(AliasRow.moved_at, AliasRow.tenant, AliasRow.name).limit(limit + 1))
        return [MovedAlias.model_validate(row) for row in rows]


def added_receipts(
    database: Database, since: datetime, tenants: Sequence[TenantName] | None = None, limit: int = MAX_CHANGES
) -> Sequence[AddedReceipt]:
    """Return the receipts of all tenants, or of some, that were stored since a moment, in the order of their ids; at most one
    more than ``limit``. Ids begin with their time, so their index is read, and no receipt's text.
    """
    query = ADDED_RECEIPTS if tenants is None else ADDED_RECEIPTS.where(ReceiptRow.tenant.in_(tenants))
    values = {"first_id": first_id_of("receipt", since - CLOCKS_APART), "since": since, "most": limit + 1}
    with database.read() as session:
        return [AddedReceipt.model_validate(dict(row)) for row in session.execute(query, values).mappings()]
