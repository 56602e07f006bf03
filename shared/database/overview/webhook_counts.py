"""Counts of webhooks over all tenants, for an operator's metrics; tenants do not see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import case, func, select

from shared.database.connection import Database
from shared.database.tables.webhooks import WebhookDeliveryRow, WebhookEndpointRow
from shared.database.webhooks.deliveries import is_due, sending
from shared.database.webhooks.endpoints import DeliveryStatus
from shared.database.webhooks.outbox import BY_TENANT

EndpointState = Literal["enabled", "disabled", "failed"]
"""State of an endpoint: enabled, disabled by its tenant, or disabled because it accepted no delivery."""


@dataclass(frozen=True, slots=True)
class WebhookCounts:
    """Webhooks of the installation at one moment.

    Attributes:
        deliveries: number of deliveries by status; ended ones count as long as they are listed.
        endpoints: number of endpoints by state.
        oldest_seconds: seconds since the longest-waiting delivery became due; 0: none is due.
    """

    deliveries: dict[DeliveryStatus, int]
    endpoints: dict[EndpointState, int]
    oldest_seconds: float


def count_webhooks(database: Database) -> WebhookCounts:
    """Count deliveries and endpoints of all tenants, in one read transaction.

    A delivery that waits for its next attempt is not late, nor is one whose endpoint is receiving another delivery: a
    slow receiver delays its own deliveries.
    """
    delivery, endpoint = WebhookDeliveryRow, WebhookEndpointRow
    by_status = select(delivery.status, func.count()).group_by(delivery.status)
    state = case(
        (endpoint.disabled_at.is_(None), "enabled"), (endpoint.disabled_reason == BY_TENANT, "disabled"), else_="failed"
    )
    by_state = select(state, func.count()).group_by(state)
    with database.read() as session:
        now = database.now(session)
        due_since = session.scalar(
            select(func.min(delivery.next_attempt_at)).where(is_due(now), delivery.endpoint_id.not_in(sending(now)))
        )
        return WebhookCounts(
            deliveries=dict.fromkeys(get_args(DeliveryStatus), 0) | dict(session.execute(by_status).all()),
            endpoints=dict.fromkeys(get_args(EndpointState), 0) | dict(session.execute(by_state).all()),
            oldest_seconds=max(0.0, (now - due_since).total_seconds()) if due_since else 0.0,
        )
