"""Tables of adapters, permissions to use them, and measurements of merged models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ForeignKey, Index, Integer, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tables.jobs import JobRow
from shared.database.tenancy import SHARED


class AdapterRow(Base):
    """An adapter of a tenant. Two tenants that train the same adapter each have their own row, and share one stored folder.

    A deleted adapter keeps its row: no request is routed to it from ``deleting_at`` on, its files are removed at
    ``deleted_at``.
    """

    __tablename__ = "adapters"
    __table_args__ = (
        Index(
            "ix_adapters_tenant_newest",
            "tenant",
            "created_at",
            "step",
            "id",
            sqlite_where=text("deleting_at IS NULL"),
            postgresql_where=text("deleting_at IS NULL"),
        ),
    )

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    id: Mapped[str] = mapped_column(String(160), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), index=True)
    base_model: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(ForeignKey(JobRow.id), index=True)
    step: Mapped[int] = mapped_column(Integer)
    final: Mapped[bool] = mapped_column(Boolean)
    published: Mapped[bool] = mapped_column(Boolean)
    manifest: Mapped[dict[str, Any]]
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    certificates: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    deleting_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class CheckpointPermissionRow(Base):
    """One tenant's permission for another one to use its adapter; ``project`` is the other one, in OpenAI's term."""

    __tablename__ = "checkpoint_permissions"
    __table_args__ = (UniqueConstraint("tenant", "adapter_id", "project"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    adapter_id: Mapped[str] = mapped_column(String(160))
    project: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class BaseCertificateRow(Base):
    """Measurement of one replica that serves a merged model as its base."""

    __tablename__ = "base_certificates"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    replica: Mapped[str] = mapped_column(String(64), primary_key=True)
    instance: Mapped[str | None] = mapped_column(String(64))
    certificate: Mapped[dict[str, Any]]
    measured_at: Mapped[datetime]
