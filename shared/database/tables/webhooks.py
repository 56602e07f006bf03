"""Webhook endpoints, and the outbox."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Boolean, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base, UtcTime


class WebhookEndpointRow(Base):
    """A tenant's webhook endpoint. The secrets sign, so they are stored in plain form."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(256))
    url: Mapped[str] = mapped_column(String(2048))
    event_types: Mapped[list[str]]
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    last_delivered_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(String(500))

    @property
    def signing_secret_hint(self) -> str:
        """Return the end of the secret, so that its owner can recognise it."""
        return f"whsec_…{self.secret[-4:]}"


class WebhookDeliveryRow(Base):
    """The outbox: an event for an endpoint, written together with the change it reports, kept for a while after
    delivery.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_status_next_attempt_at", "status", "next_attempt_at"),
        Index("ix_webhook_deliveries_endpoint_id_id", "endpoint_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoints.id"))
    tenant: Mapped[str] = mapped_column(String(64))
    event_id: Mapped[str] = mapped_column(String(40))
    type: Mapped[str] = mapped_column(String(64))
    payload: Mapped[str] = mapped_column(Text)
    is_test: Mapped[bool] = mapped_column(Boolean)
    status: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(Integer)
    status_code: Mapped[int | None] = mapped_column(Integer)
    last_error: Mapped[str | None] = mapped_column(String(300))
    created_at: Mapped[datetime]
    next_attempt_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
