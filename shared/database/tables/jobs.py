"""Jobs, their events and logs, and the GPU time that they hold and use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base, OwnerTenant, UtcTime


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner", "idempotency_key"),
        Index("ix_jobs_state_lease", "state", "lease_expires_at"),
        Index("ix_jobs_owner_id", "owner", "id"),
        Index("ix_jobs_owner_state", "owner", "state"),
        Index("ix_jobs_changed_at", "changed_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str | None] = mapped_column(String(16))
    tenant: Mapped[str] = mapped_column("owner", OwnerTenant)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str] = mapped_column(String(64))
    base_model: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(String(64))
    contract: Mapped[dict[str, Any]]
    plan: Mapped[dict[str, Any]]
    # Large, and read by one operation alone, so other queries do not load it.
    preflight: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    extra: Mapped[dict[str, Any]] = mapped_column(default=dict)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    requested: Mapped[str | None] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    failures: Mapped[int] = mapped_column(Integer, default=0)
    outages: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    lease_owner: Mapped[str | None] = mapped_column(String(255))
    lease_expires_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)
    error: Mapped[dict[str, Any] | None]
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime]
    # Name of the key that submitted it; an API of the previous release leaves it empty.
    created_by: Mapped[str | None] = mapped_column(String(64))
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    max_wall_seconds: Mapped[float | None] = mapped_column(Float)
    max_gpu_minutes: Mapped[float | None] = mapped_column(Float)
    traceparent: Mapped[str | None] = mapped_column(String(64))
    expected_seconds: Mapped[float | None] = mapped_column(Float)
    # Time of its last submission or resumption; an API of the previous release leaves it empty.
    queued_at: Mapped[datetime | None]
    # Its estimated start, and when that was estimated: when it was first seen waiting.
    estimated_start_at: Mapped[datetime | None]
    estimated_at: Mapped[datetime | None]
    # Time of the change that gave it its version; a process of the previous release does not update it.
    changed_at: Mapped[datetime | None]


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_id_seq", "job_id", "seq"),)

    # SQLite assigns numbers by itself only to an INTEGER primary key.
    seq: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[datetime]
    level: Mapped[str] = mapped_column(String(8))
    type: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(String(2000))
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class AttemptLogRow(Base):
    """The end of an attempt's log."""

    __tablename__ = "attempt_logs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(Text)


class JobSeriesRow(Base):
    """A chunk of a series of an attempt (`shared/job_series.py`)."""

    __tablename__ = "job_series"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    chunk: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    first_step: Mapped[int] = mapped_column(Integer)
    last_step: Mapped[int] = mapped_column(Integer)
    values: Mapped[bytes] = mapped_column(LargeBinary)


class GpuTimeRow(Base):
    """GPU time of one attempt: held while it runs, then what it used. All amounts are GPU-seconds."""

    __tablename__ = "gpu_time"
    __table_args__ = (
        Index("ix_gpu_time_tenant_started_at", "tenant", "started_at"),
        Index("ix_gpu_time_kind_base_model", "kind", "base_model", "ended_at"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    base_model: Mapped[str] = mapped_column(String(128))
    gpus: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
    held: Mapped[float] = mapped_column(Float)
    used: Mapped[float | None] = mapped_column(Float)
    outcome: Mapped[str | None] = mapped_column(String(16))


class TenantQuotaRow(Base):
    """Limits on a tenant's queued jobs, running jobs and GPU time; null means unlimited."""

    __tablename__ = "tenant_quotas"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    running_jobs: Mapped[int | None] = mapped_column(Integer)
    queued_jobs: Mapped[int | None] = mapped_column(Integer)
    gpu_minutes_per_month: Mapped[float | None] = mapped_column(Float)
