"""Quotas of tenants: limits of running and queued jobs, and of GPU-minutes per month."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt
from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from shared.counted_nouns import counted
from shared.database.connection import Database, repeat_once
from shared.database.job_states import JobState
from shared.database.queueing.gpu_time import MonthUse, minutes, month_use, next_month
from shared.database.records import Value
from shared.database.tables.jobs import JobRow, TenantQuotaRow
from shared.database.tenancy import LARGEST_LIMIT, TenantName
from shared.errors import Code, Forbidden, TooMany

RETRY_SECONDS = 60
"""Seconds until a full queue may be tried again: a guess, because it is unknown when a job will start."""
MOST_MINUTES = 1e9
_quotas = TenantQuotaRow.__table__
QUOTA = select(_quotas).where(_quotas.c.tenant == bindparam("of_tenant")).with_for_update()
"""Statement that reads a quota; built once, because building takes longer than running it."""


class Quota(BaseModel):
    """Limits of a tenant's jobs; None is unlimited."""

    model_config = ConfigDict(frozen=True, from_attributes=True)
    running_jobs: StrictInt | None = Field(
        None, ge=0, le=LARGEST_LIMIT, description="Jobs that run at once; further jobs wait."
    )
    queued_jobs: StrictInt | None = Field(
        None, ge=0, le=LARGEST_LIMIT, description="Jobs that wait; further jobs are refused (429)."
    )
    gpu_minutes_per_month: StrictFloat | None = Field(
        None, ge=0, le=MOST_MINUTES, description="GPU-minutes of the jobs of a calendar month (UTC), holds included."
    )


class QuotaUse(Value):
    """A tenant's quota and its current use.

    Attributes:
        gpu_minutes_used: GPU-minutes of attempts that began in this month and have ended.
        gpu_minutes_held: GPU-minutes that running attempts hold.
        resets_at: when the next month begins.
    """

    tenant: str
    running_jobs: int | None = None
    queued_jobs: int | None = None
    gpu_minutes_per_month: float | None = None
    running: int
    queued: int
    gpu_minutes_used: float
    gpu_minutes_held: float
    resets_at: datetime


class Quotas:
    """Operations on quotas; each runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def use(self, tenant: TenantName) -> QuotaUse:
        """Return a tenant's quota and use; without a quota it is unlimited."""
        with self._db.read() as session:
            return quota_uses(session, [tenant], self._db.now(session))[0]

    def all(self) -> Sequence[QuotaUse]:
        """Return every tenant that has a quota, a job in the queue or GPU time in this month, by name."""
        with self._db.read() as session:
            now = self._db.now(session)
            unfinished = select(JobRow.tenant).where(JobRow.state.in_([str(JobState.QUEUED), str(JobState.RUNNING)]))
            tenants = {*session.scalars(select(TenantQuotaRow.tenant)), *session.scalars(unfinished.distinct())}
            return quota_uses(session, sorted(tenants | month_use(session, now).keys()), now)

    def set(self, tenant: TenantName, changes: dict[str, Any]) -> QuotaUse:
        """Change some of a tenant's limits, by the names of :class:`Quota`. Running and waiting jobs continue."""
        return repeat_once(partial(self._set, tenant, changes))

    def _set(self, tenant: TenantName, changes: dict[str, Any]) -> QuotaUse:
        with self._db.write() as session:
            row = session.get(TenantQuotaRow, tenant, with_for_update=True) or TenantQuotaRow(tenant=tenant)
            for name, value in Quota.model_validate(changes).model_dump(include=set(changes)).items():
                setattr(row, name, value)
            session.add(row)
            session.flush()
            return quota_uses(session, [tenant], self._db.now(session))[0]


def check_quota(session: Session, tenant: TenantName, hold: float, now: datetime) -> None:
    """Refuse a job that its tenant may not queue. Requests of one tenant are serialised here.

    Args:
        hold: GPU-seconds that it will hold.

    Raises:
        TooMany: ``QUEUED_JOBS_LIMITED``.
        Forbidden: ``GPU_MINUTES_EXHAUSTED``: it does not fit in the rest of the month.
    """
    quota = session.execute(QUOTA, {"of_tenant": tenant}).one_or_none()
    if quota is None:
        return
    if quota.queued_jobs is not None:
        queued = _count(session, [tenant], JobState.QUEUED).get(tenant, 0)
        if queued >= quota.queued_jobs:
            raise TooMany(
                Code.QUEUED_JOBS_LIMITED,
                f"The tenant {tenant!r} has {counted(queued, 'job')} in the queue; its limit is {quota.queued_jobs}.",
                remedy="Wait until one has started, or cancel one; an operator can raise the quota.",
                details={
                    "queued_jobs_limit": quota.queued_jobs,
                    "queued": queued,
                    "retry_after_seconds": RETRY_SECONDS,
                },
            )
    if quota.gpu_minutes_per_month is not None:
        month = month_use(session, now).get(tenant, MonthUse())
        left = 60.0 * quota.gpu_minutes_per_month - month.used - month.held
        if hold > left:
            raise _exhausted(tenant, quota.gpu_minutes_per_month, month, hold, next_month(now))


def _exhausted(tenant: str, limit: float, month: MonthUse, hold: float, resets_at: datetime) -> Forbidden:
    used, held, requested = minutes(month.used), minutes(month.held), minutes(hold)
    return Forbidden(
        Code.GPU_MINUTES_EXHAUSTED,
        f"The job would reserve {requested:g} GPU-minutes. The tenant {tenant!r} may use {limit:g} a month; {used:g} are used and"
        f" {held:g} are reserved by running jobs.",
        remedy=f"Send a smaller max_gpu_minutes, or wait: the next month begins at {resets_at:%Y-%m-%dT%H:%MZ}. An operator can"
        " raise the quota: `mens tenants limit`.",
        details={
            "limit": limit,
            "used": used,
            "held": held,
            "wanted": requested,
            "resets_at": resets_at.isoformat(),
        },
    )


def quota_uses(session: Session, tenants: Sequence[str], now: datetime) -> list[QuotaUse]:
    """Return quotas of tenants and their use, in the order given."""
    quotas = {row.tenant: row for row in session.scalars(select(TenantQuotaRow))}
    running, queued = (_count(session, tenants, state) for state in (JobState.RUNNING, JobState.QUEUED))
    used, resets_at = month_use(session, now), next_month(now)
    uses = []
    for tenant in tenants:
        limits = Quota.model_validate(quotas[tenant]).model_dump() if tenant in quotas else {}
        month = used.get(tenant, MonthUse())
        uses.append(
            QuotaUse(
                tenant=tenant,
                running=running.get(tenant, 0),
                queued=queued.get(tenant, 0),
                gpu_minutes_used=minutes(month.used),
                gpu_minutes_held=minutes(month.held),
                resets_at=resets_at,
                **limits,
            )
        )
    return uses


def _count(session: Session, tenants: Sequence[str], state: JobState) -> dict[str, int]:
    query = select(JobRow.tenant, func.count().label("jobs")).where(JobRow.state == state, JobRow.tenant.in_(tenants))
    return {row.tenant: row.jobs for row in session.execute(query.group_by(JobRow.tenant))}
