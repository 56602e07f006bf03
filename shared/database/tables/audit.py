"""Table of the audit log: actors and changes. Triggers of the database refuse to change its rows (the baseline of the migrations)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base


class AuditEventRow(Base):
    """One change, written in the transaction that makes it. ``seq`` is also the order of commit."""

    __tablename__ = "audit_events"
    __table_args__ = (
        Index("ix_audit_events_tenant_seq", "tenant", "seq"),
        Index("ix_audit_events_object_id_seq", "object_id", "seq"),
        Index("ix_audit_events_action_seq", "action", "seq"),
    )

    # SQLite assigns numbers by itself only to an INTEGER primary key.
    seq: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    created_at: Mapped[datetime]
    tenant: Mapped[str] = mapped_column(String(64))
    actor_kind: Mapped[str] = mapped_column(String(16))
    actor_id: Mapped[str] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(String(320))
    action: Mapped[str] = mapped_column(String(64))
    object_type: Mapped[str] = mapped_column(String(32))
    object_id: Mapped[str] = mapped_column(String(320))
    changes: Mapped[dict[str, Any]]
    request_id: Mapped[str | None] = mapped_column(String(128))
    address: Mapped[str | None] = mapped_column(String(64))
