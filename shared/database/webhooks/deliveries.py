"""Deliveries as the worker sees them: claim one that is due, and store its outcome.

As with jobs, the attempt's number is the fencing token: writes of a worker that was presumed dead are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, delete, func, not_, or_, select
from sqlalchemy.orm import Session

from shared.counted_nouns import counted
from shared.database.connection import Database
from shared.database.tables.storable import storable
from shared.database.tables.webhooks import WebhookDeliveryRow, WebhookEndpointRow
from shared.database.webhooks.outbox import disable

RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Delays between attempts: Standard Webhooks' schedule, ten attempts in three days."""
JITTER = 0.2
"""Largest random share added to a delay, so that deliveries that failed together are not retried together."""
LEASE = timedelta(seconds=120)
"""Lease of a delivery, longer than an attempt can take; then another worker may send it again."""
CLOCK_SLACK = timedelta(seconds=5)
"""Largest assumed difference between the times of the clock that two concurrent transactions have read."""
KEPT = timedelta(days=7)
"""How long an ended delivery stays listed."""
GONE = 410
"""Status with which a receiver declines further webhooks."""
# The column's length: PostgreSQL refuses a longer string.
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """One attempt at a delivery.

    Attributes:
        token: number of the attempt.
        signing_secrets: the current one first; kept out of ``repr``, and so of logs.
    """

    id: str
    endpoint_id: str
    tenant: str
    token: int
    url: str
    event_id: str
    payload: str
    signing_secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt: the response's status, or the error without a response."""

    status_code: int | None
    error: str | None

    @property
    def is_delivered(self) -> bool:
        """Return true if the receiver accepted it."""
        return self.status_code is not None and 200 <= self.status_code < 300


class Deliveries:
    """A worker's operations on deliveries; each runs in one transaction."""

    def __init__(self, database: Database, jitter: Callable[[], float] = random.random) -> None:
        self._db = database
        self._jitter = jitter

    def claim(self, limit: int) -> list[ClaimedDelivery]:
        """Claim due deliveries: for each endpoint only the delivery that has been due for longest, and none while
        another one is being sent. So a receiver that hangs blocks one thread, however many deliveries wait for it.

        Args:
            limit: largest number of deliveries.
        """
        if limit < 1:
            return []
        row = WebhookDeliveryRow
        with self._db.write() as session:
            now = self._db.now(session)
            due = is_due(now)
            rank = func.row_number().over(partition_by=row.endpoint_id, order_by=(row.next_attempt_at, row.id))
            ranked = select(row.id, rank.label("rank")).where(due, row.endpoint_id.not_in(sending(now))).subquery()
            first = select(ranked.c.id).where(ranked.c.rank == 1)
            # The rows are checked again when they are locked: another worker may have taken one meanwhile.
            query = select(row).where(due, row.id.in_(first)).order_by(row.next_attempt_at, row.id).limit(limit)
            deliveries = session.scalars(query.with_for_update(skip_locked=True)).all()
            return [self._begin(session, delivery, now) for delivery in deliveries]

    def settle(self, claimed: ClaimedDelivery, outcome: Outcome) -> str | None:
        """Store the outcome of an attempt: delivered, to be tried again later, or failed permanently.

        An endpoint is disabled if it responds with 410, or if it accepted nothing during all attempts at a delivery.
        Its other waiting deliveries then fail.

        Returns:
            the reason why the endpoint was disabled; None: it was not.
        """
        with self._db.write() as session:
            # Locked in the same order as in changes of endpoints: first the endpoint's row, then the delivery's.
            endpoint = session.get(WebhookEndpointRow, claimed.endpoint_id, with_for_update=True)
            row = session.get(WebhookDeliveryRow, claimed.id, with_for_update=True)
            # The fence: this worker was presumed dead, and another has sent the delivery since.
            if endpoint is None or row is None or row.attempts != claimed.token or row.status != "pending":
                return None
            now = self._db.now(session)
            row.lease_expires_at = None
            row.status_code = outcome.status_code
            row.last_error = storable(outcome.error)[:MAX_ERROR_CHARS] if outcome.error else None
            if outcome.is_delivered:
                _end(row, "delivered", now)
                endpoint.last_delivered_at = now
                return None
            if outcome.status_code == GONE and not row.is_test:
                _end(row, "failed", now)
                reason = f"it answered {GONE} Gone"
                disable(session, endpoint, reason, now)
                return reason
            if not row.is_test and row.attempts <= len(RETRY_SECONDS):
                delay = RETRY_SECONDS[row.attempts - 1] * (1 + JITTER * self._jitter())
                row.next_attempt_at = now + timedelta(seconds=delay)
                return None
            _end(row, "failed", now)
            # A receiver that refuses one kind of event still works for the others.
            took_something = endpoint.last_delivered_at is not None and endpoint.last_delivered_at >= row.created_at
            if row.is_test or took_something:
                return None
            reason = (
                f"no delivery succeeded in {counted(row.attempts, 'attempt')} since {row.created_at:%Y-%m-%d %H:%M} "
                f"UTC: {row.last_error}"
            )
            disable(session, endpoint, reason[:500], now)
            return reason

    def prune(self) -> int:
        """Delete deliveries that ended long ago; return their number."""
        with self._db.write() as session:
            ended = WebhookDeliveryRow.ended_at < self._db.now(session) - KEPT
            return len(session.scalars(delete(WebhookDeliveryRow).where(ended).returning(WebhookDeliveryRow.id)).all())

    def _begin(self, session: Session, row: WebhookDeliveryRow, now: datetime) -> ClaimedDelivery:
        row.attempts += 1
        row.lease_expires_at = now + LEASE
        endpoint = session.get_one(WebhookEndpointRow, row.endpoint_id)
        # Both signatures during a rotation: the receiver may know only one of the secrets yet.
        overlaps = endpoint.old_secret is not None and endpoint.old_secret_until and endpoint.old_secret_until > now
        old = (endpoint.old_secret,) if overlaps and endpoint.old_secret else ()
        return ClaimedDelivery(
            id=row.id,
            endpoint_id=row.endpoint_id,
            tenant=row.tenant,
            token=row.attempts,
            url=endpoint.url,
            event_id=row.event_id,
            payload=row.payload,
            signing_secrets=(endpoint.secret, *old),
        )


def is_due(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition of due deliveries, without regard to their endpoints.

    A time further in the future than its delay was written before the clock was set back, and counts as past.
    """
    row = WebhookDeliveryRow
    is_free = or_(row.lease_expires_at.is_(None), not_(_is_held(now)))
    delays = ((attempts, delay * (1 + JITTER)) for attempts, delay in enumerate((0, *RETRY_SECONDS)))
    too_far = [
        and_(row.attempts == attempts, row.next_attempt_at > now + timedelta(seconds=delay) + CLOCK_SLACK)
        for attempts, delay in delays
    ]
    return and_(row.status == "pending", or_(row.next_attempt_at <= now, *too_far), is_free)


def sending(now: datetime) -> Select[str]:
    """Return the query of endpoints that are receiving a delivery now."""
    row = WebhookDeliveryRow
    return select(row.endpoint_id).where(row.status == "pending", _is_held(now))


def _is_held(now: datetime) -> ColumnElement[bool]:
    until = WebhookDeliveryRow.lease_expires_at
    return and_(until > now, until <= now + LEASE + CLOCK_SLACK)


def _end(row: WebhookDeliveryRow, status: str, now: datetime) -> None:
    row.status, row.ended_at, row.next_attempt_at = status, now, None
