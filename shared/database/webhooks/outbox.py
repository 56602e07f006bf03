"""The outbox: a row for each event and endpoint, written in the transaction that ends the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from shared.database.job_states import JobState
from shared.database.records import Kind, new_id
from shared.database.tables.evaluation import EvalRunRow
from shared.database.tables.jobs import JobRow
from shared.database.tables.webhooks import WebhookDeliveryRow, WebhookEndpointRow
from shared.webhooks.events import EventType, payload

JOB_EVENTS = {
    JobState.SUCCEEDED: EventType.JOB_SUCCEEDED,
    JobState.FAILED: EventType.JOB_FAILED,
    JobState.CANCELLED: EventType.JOB_CANCELLED,
}
BY_TENANT = "disabled by its tenant"
"""Reason given for an endpoint that its tenant disabled."""
RUN_EVENTS = {
    JobState.SUCCEEDED: EventType.RUN_SUCCEEDED,
    JobState.FAILED: EventType.RUN_FAILED,
    JobState.CANCELLED: EventType.RUN_CANCELED,
}


def add_end_of_job(session: Session, job: JobRow, state: JobState, now: datetime) -> None:
    """Put the events of a job's end into the outbox: its own event, and those of the runs that it carried out.

    Args:
        session: session of the transaction that ends the job.
        job: the job; the transaction holds its row.
        state: state in which it ends.
        now: the time of the event.
    """
    if not (endpoints := _endpoints(session, job.tenant)):
        return
    ended: list[tuple[EventType, str]] = []
    if job.kind == Kind.FINETUNE:
        ended.append((JOB_EVENTS[state], job.id))
    runs = select(EvalRunRow.id).where(EvalRunRow.job_id == job.id).order_by(EvalRunRow.id)
    ended += [(RUN_EVENTS[state], run_id) for run_id in session.scalars(runs)]
    _add(session, endpoints, ended, now)


def add_checkpoints(session: Session, job: JobRow, adapter_ids: Sequence[str], now: datetime) -> None:
    """Add events to the outbox for checkpoints that can now be requested, in the transaction that publishes them."""
    if adapter_ids and (endpoints := _endpoints(session, job.tenant)):
        _add(session, endpoints, [(EventType.CHECKPOINT_CREATED, adapter_id) for adapter_id in adapter_ids], now)


def _endpoints(session: Session, tenant: str) -> Sequence[WebhookEndpointRow]:
    query = select(WebhookEndpointRow).where(
        WebhookEndpointRow.tenant == tenant, WebhookEndpointRow.disabled_at.is_(None)
    )
    # Locked as by a foreign key: if an endpoint is being deleted, this waits and then leaves it out, so that the job
    # can still end.
    return session.scalars(query.with_for_update(read=True, key_share=True)).all()


def _add(
    session: Session, endpoints: Sequence[WebhookEndpointRow], events: Sequence[tuple[EventType, str]], now: datetime
) -> None:
    for event, thing_id in events:
        event_id = new_id("evt").replace("-", "_")
        for endpoint in endpoints:
            if event in endpoint.event_types:
                session.add(new_delivery(endpoint, event_id, event, thing_id, now))


def new_delivery(
    endpoint: WebhookEndpointRow,
    event_id: str,
    event: EventType,
    thing_id: str,
    now: datetime,
    *,
    is_test: bool = False,
) -> WebhookDeliveryRow:
    """Return a row of the outbox that is due immediately."""
    return WebhookDeliveryRow(
        id=new_id("whdelivery"),
        endpoint_id=endpoint.id,
        tenant=endpoint.tenant,
        event_id=event_id,
        type=str(event),
        payload=payload(event_id, event, now, thing_id),
        is_test=is_test,
        status="pending",
        attempts=0,
        created_at=now,
        next_attempt_at=now,
    )


def disable(session: Session, endpoint: WebhookEndpointRow, reason: str, now: datetime) -> None:
    """Disable an endpoint, whose row is locked, until its tenant enables it; waiting deliveries fail."""
    endpoint.disabled_at, endpoint.disabled_reason = now, reason
    waiting = update(WebhookDeliveryRow).where(
        WebhookDeliveryRow.endpoint_id == endpoint.id, WebhookDeliveryRow.status == "pending"
    )
    ended = {"status": "failed", "ended_at": now, "next_attempt_at": None, "last_error": "the endpoint was disabled"}
    session.execute(waiting.values(ended))
