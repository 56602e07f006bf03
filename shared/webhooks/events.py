"""Events that webhooks report, under OpenAI's names and in OpenAI's form (its API reference: webhook events)."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum


class EventType(StrEnum):
    """Types of events. OpenAI writes ``cancelled`` for jobs and ``canceled`` for runs."""

    JOB_SUCCEEDED = "fine_tuning.job.succeeded"
    JOB_FAILED = "fine_tuning.job.failed"
    JOB_CANCELLED = "fine_tuning.job.cancelled"
    CHECKPOINT_CREATED = "fine_tuning.job.checkpoint.created"
    """Specific to Mens; OpenAI does not have this event."""
    RUN_SUCCEEDED = "eval.run.succeeded"
    RUN_FAILED = "eval.run.failed"
    RUN_CANCELED = "eval.run.canceled"


def payload(event_id: str, event: EventType, created_at: datetime, thing_id: str) -> str:
    """Return the body of a webhook: the event and the id of its object, and nothing else about the object."""
    fields = {
        "id": event_id,
        "object": "event",
        "created_at": int(created_at.timestamp()),
        "type": str(event),
        "data": {"id": thing_id},
    }
    return json.dumps(fields, separators=(",", ":"))
