"""A tenant's webhook endpoints, and the deliveries to them.

The secret is needed for signing, so it is stored in plain form; it is shown once, and kept out of every value that is
read later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.records import Value, new_id
from shared.database.tables.storable import storable
from shared.database.tables.webhooks import WebhookDeliveryRow, WebhookEndpointRow
from shared.database.tenancy import TenantName
from shared.database.webhooks.outbox import BY_TENANT, disable, new_delivery
from shared.errors import Code, Conflict, NotFound
from shared.webhooks.events import EventType
from shared.webhooks.signatures import new_secret

MAX_ENDPOINTS = 20
"""Largest number of endpoints per tenant: every job that ends writes a row for each."""
OVERLAP = timedelta(hours=24)
"""How long a rotated secret keeps signing, if the caller requests that; as with OpenAI."""

DeliveryStatus = Literal["pending", "delivered", "failed"]


class Endpoint(Value):
    """An endpoint, without its secret."""

    id: str
    tenant: TenantName
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str
    created_at: datetime
    updated_at: datetime
    old_secret_until: datetime | None
    last_delivered_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None


class Delivery(Value):
    """An event for an endpoint, and the result of its delivery."""

    id: str
    endpoint_id: str
    event_id: str
    type: str
    is_test: bool
    status: DeliveryStatus
    attempts: int
    status_code: int | None
    last_error: str | None
    created_at: datetime
    next_attempt_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndpointFields:
    """Fields of an endpoint to set; None leaves one as it is."""

    name: str | None = None
    url: str | None = None
    event_types: Sequence[EventType] | None = None
    enabled: bool | None = None


class Endpoints:
    """Endpoints of one tenant, which no other tenant sees. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName) -> None:
        self._db = database
        self._tenant = tenant

    def create(self, name: str, url: str, event_types: Sequence[EventType]) -> tuple[Endpoint, str]:
        """Add an endpoint; the URL has been checked.

        Returns:
            the endpoint, and its secret.

        Raises:
            Conflict: ``WEBHOOK_ENDPOINTS_LIMITED``.
        """
        secret = new_secret()
        with self._db.write() as session:
            count = select(func.count()).where(WebhookEndpointRow.tenant == self._tenant)
            if (session.scalar(count) or 0) >= MAX_ENDPOINTS:
                raise Conflict(
                    Code.WEBHOOK_ENDPOINTS_LIMITED,
                    f"The tenant {self._tenant!r} has {MAX_ENDPOINTS} webhook endpoints, which is the limit.",
                    remedy="Delete one that is not needed: DELETE /v1/webhook_endpoints/{id}.",
                )
            now = self._db.now(session)
            row = WebhookEndpointRow(
                id=new_id("webhook"),
                tenant=self._tenant,
                name=storable(name),
                url=url,
                event_types=[str(event) for event in event_types],
                secret=secret,
                created_at=now,
                updated_at=now,
            )
            session.add(row)
            session.flush()
            return _endpoint(row), secret

    def list(self, *, after: str | None = None, limit: int = 20) -> Sequence[Endpoint]:
        """Return a page of endpoints, newest first; one more than ``limit`` if more follow."""
        query = select(WebhookEndpointRow).where(WebhookEndpointRow.tenant == self._tenant)
        if after is not None:
            query = query.where(WebhookEndpointRow.id < after)
        with self._db.read() as session:
            rows = session.scalars(query.order_by(WebhookEndpointRow.id.desc()).limit(limit + 1))
            return [_endpoint(row) for row in rows]

    def get(self, endpoint_id: str) -> Endpoint:
        """Return an endpoint by its id.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
        """
        with self._db.read() as session:
            return _endpoint(self._row(session, endpoint_id))

    def update(self, endpoint_id: str, fields: EndpointFields) -> Endpoint:
        """Change an endpoint; the URL has been checked. Waiting deliveries of a disabled endpoint fail.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
        """
        with self._db.write() as session:
            row, now = self._row(session, endpoint_id, lock=True), self._db.now(session)
            row.name = storable(fields.name) if fields.name is not None else row.name
            row.url = fields.url if fields.url is not None else row.url
            if fields.event_types is not None:
                row.event_types = [str(event) for event in fields.event_types]
            if fields.enabled is not None and fields.enabled != (row.disabled_at is None):
                row.disabled_at = row.disabled_reason = None
                if not fields.enabled:
                    disable(session, row, BY_TENANT, now)
            if session.is_modified(row):
                row.updated_at = now
            session.flush()
            return _endpoint(row)

    def rotate_secret(self, endpoint_id: str, *, keep_old: bool) -> tuple[Endpoint, str]:
        """Replace the secret.

        Args:
            endpoint_id: the endpoint's id.
            keep_old: whether the old secret also signs, for another 24 hours.

        Returns:
            the endpoint, and its new secret.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
        """
        with self._db.write() as session:
            row, now = self._row(session, endpoint_id, lock=True), self._db.now(session)
            row.old_secret = row.secret if keep_old else None
            row.old_secret_until = now + OVERLAP if keep_old else None
            row.secret, row.updated_at = new_secret(), now
            session.flush()
            return _endpoint(row), row.secret

    def delete(self, endpoint_id: str) -> None:
        """Delete an endpoint and its deliveries, those that are pending too.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
        """
        with self._db.write() as session:
            row = self._row(session, endpoint_id, lock=True)
            session.execute(delete(WebhookDeliveryRow).where(WebhookDeliveryRow.endpoint_id == row.id))
            session.delete(row)

    def test(self, endpoint_id: str, event: EventType) -> Delivery:
        """Put a sample event into the outbox; it is sent once.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
            Conflict: ``WEBHOOK_STATE_CONFLICT``: it is disabled, or a test is pending.
        """
        with self._db.write() as session:
            row, now = self._row(session, endpoint_id, lock=True), self._db.now(session)
            pending = select(WebhookDeliveryRow.id).where(
                WebhookDeliveryRow.endpoint_id == row.id,
                WebhookDeliveryRow.is_test.is_(True),
                WebhookDeliveryRow.status == "pending",
            )
            if row.disabled_at is not None or session.scalar(pending) is not None:
                raise Conflict(
                    Code.WEBHOOK_STATE_CONFLICT,
                    f"The webhook endpoint {row.id} is disabled ({row.disabled_reason})."
                    if row.disabled_at
                    else f"A test of the webhook endpoint {row.id} is still pending.",
                    remedy='Enable it first: POST /v1/webhook_endpoints/{id} with {"enabled": true}.'
                    if row.disabled_at
                    else "Check its deliveries. If no delivery is attempted, start the control worker.",
                )
            event_id = new_id("evt").replace("-", "_")
            thing_id = new_id("ftjob" if event.startswith("fine_tuning") else "evalrun")
            delivery = new_delivery(row, event_id, event, thing_id, now, is_test=True)
            session.add(delivery)
            session.flush()
            return Delivery.model_validate(delivery)

    def deliveries(
        self, endpoint_id: str, *, after: str | None = None, limit: int = 20, status: DeliveryStatus | None = None
    ) -> Sequence[Delivery]:
        """Return a page of an endpoint's deliveries, newest first; one more than ``limit`` if more follow.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``.
        """
        with self._db.read() as session:
            row = self._row(session, endpoint_id)
            query = select(WebhookDeliveryRow).where(WebhookDeliveryRow.endpoint_id == row.id)
            if after is not None:
                query = query.where(WebhookDeliveryRow.id < after)
            if status is not None:
                query = query.where(WebhookDeliveryRow.status == status)
            rows = session.scalars(query.order_by(WebhookDeliveryRow.id.desc()).limit(limit + 1))
            return [Delivery.model_validate(delivery) for delivery in rows]

    def delivery(self, endpoint_id: str, delivery_id: str) -> Delivery:
        """Return one delivery of an endpoint, which :meth:`test` or :meth:`deliveries` has named.

        Raises:
            NotFound: ``WEBHOOK_NOT_FOUND``: the endpoint, or the delivery, has been deleted.
        """
        with self._db.read() as session:
            row = session.get(WebhookDeliveryRow, delivery_id)
            if row is None or row.endpoint_id != self._row(session, endpoint_id).id:
                raise _unknown(endpoint_id)
            return Delivery.model_validate(row)

    def _row(self, session: Session, endpoint_id: str, *, lock: bool = False) -> WebhookEndpointRow:
        row = session.get(WebhookEndpointRow, storable(endpoint_id), with_for_update=lock)
        if row is None or row.tenant != self._tenant:
            raise _unknown(endpoint_id)
        return row


def _endpoint(row: WebhookEndpointRow) -> Endpoint:
    return Endpoint.model_validate(row)


def _unknown(endpoint_id: str) -> NotFound:
    return NotFound(
        Code.WEBHOOK_NOT_FOUND,
        f"The webhook endpoint {endpoint_id!r} does not exist in this tenant.",
        remedy="List them: GET /v1/webhook_endpoints.",
        param="webhook_endpoint_id",
    )
