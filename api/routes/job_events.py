"""Streams: a job's events (/v1/jobs/{job_id}/events), and all changes (/v1/events)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, ServerSentEvent

from api.errors import ErrorAnswer, declared_of_other_type, error_response
from api.inference.event_stream import EVENT_STREAM
from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.openai.fine_tuning import event_seq
from api.polling.job_changes import JobSelection, encoded, missed_events
from api.polling.other_changes import ChangeType
from api.services import Services, ServicesDep
from api.web.auth import CallerDep
from api.web.params import Id
from api.web.tenant_view import TenantView, TenantViewDep
from shared.database.job_states import FINAL
from shared.database.records import Job, Kind
from shared.database.tenancy import visible_to
from shared.errors import Code, InvalidRequest, MensError

router = APIRouter(prefix="/v1", tags=["jobs"])

EVENTS_PER_READ = 500
SILENT_SECONDS = 15.0
"""Seconds after which a stream without changes is sent a comment, so that no proxy closes it as idle."""
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that FastAPI sends with its own streams of events; the second is for nginx."""
EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "event": {"type": "string"},
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    },
}
"""An event in the API's description, as FastAPI describes its own."""


class StreamPart(NamedTuple):
    """The events that one database read adds to a stream.

    Attributes:
        events: events to send, each with its ``seq``.
        last: ends the stream of a job that has ended.
        has_more: whether another read would add more.
    """

    events: list[tuple[int, ServerSentEvent]]
    last: ServerSentEvent | None
    has_more: bool


def existing_job(job_id: Id, view: TenantViewDep) -> Job:
    """Return the job, looked up before the stream begins, so that an unknown id is a 404."""
    return view.jobs.get(job_id)


def first_cursor(
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query(description="Start after this event (an id or seq).")] = None,
) -> int:
    """Return the event to start after, read before the stream begins, so that a wrong one is a 400."""
    last = event_seq(last_event_id or None, "Last-Event-ID")
    return (event_seq(after) or 0) if last is None else last


async def one_stream(services: ServicesDep, caller: CallerDep) -> AsyncIterator[None]:
    """Occupy one of the key's streams until the response has ended; refuse with 429 before it begins if too many are
    open.
    """
    with services.event_feed.stream_of(caller.key):
        yield


@router.get(
    "/jobs/{job_id}/events",
    response_class=EventSourceResponse,
    responses=declared_of_other_type(ErrorAnswer),
    dependencies=[Depends(one_stream)],
)
async def stream_events(
    job: Annotated[Job, Depends(existing_job)],
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    request: Request,
    cursor: Annotated[int, Depends(first_cursor)],
) -> AsyncIterator[ServerSentEvent]:
    """A job's events as server-sent events, from the beginning or after Last-Event-ID, until the job has ended.

    The last event, ``event: job``, carries the finished job. After a stream that ends without it, request the events after
    the last one received. ``event: error`` ends the stream of a key that was revoked meanwhile.
    """
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    feed, seen = services.event_feed, None
    try:
        async for version in services.job_versions.polls(job.id):
            if services.shutdown.has_begun or await request.is_disconnected():
                return
            await services.lookup.authenticate(authenticated.secret)
            is_behind = version is None or version != seen
            while is_behind:
                what = (caller.tenant, job.id, cursor, version)
                part = await feed.read(what, partial(read_part, view, job.id, cursor))
                for seq, event in part.events:
                    await services.lookup.authenticate(authenticated.secret)  # answered from memory
                    cursor = seq
                    yield event
                if part.last:
                    yield part.last
                    return
                is_behind = part.has_more
            seen = version
    except MensError as error:
        yield ServerSentEvent(raw_data=bytes(error_response(error).body).decode(), event="error")


def change_cursor(last_event_id: Annotated[str | None, Header()] = None) -> int | None:
    """Return the change to continue after, read before the stream begins, so that a wrong one is a 400."""
    if last_event_id and not re.fullmatch(r"[0-9]{1,15}", last_event_id):
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"{last_event_id[:80]!r} is not the id of an event of GET /v1/events.",
            remedy="Send the `id` of the last event that you received, or no Last-Event-ID.",
            param="Last-Event-ID",
        )
    return int(last_event_id) if last_event_id else None


@router.get(
    "/events",
    response_class=Response,
    responses=declared_of_other_type(ErrorAnswer) | {200: {"content": {EVENT_STREAM: {"itemSchema": EVENT_SCHEMA}}}},
    dependencies=[Depends(one_stream)],
)
async def stream_changes(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    cursor: Annotated[int | None, Depends(change_cursor)],
    kind: Annotated[list[Kind] | None, Query(description="Only jobs of this kind; repeat it for several.")] = None,
    types: Annotated[
        list[ChangeType] | None, Query(description="Only events of this type; repeat it for several.")
    ] = None,
) -> EventSourceResponse:
    """Changes of all that the caller sees, as server-sent events, from now on or after Last-Event-ID.

    `event: job` carries the summary of a new or changed job, as `GET /v1/jobs?view=summary` has it; `event: progress`
    the progress of a job that has not changed otherwise, at most every two seconds, where only the last of several
    events sent together has an `id`; `event: alias` an alias that was moved, or deleted (`adapter_id` is null);
    `event: receipt` a new receipt; `event: replica`, for operators, a replica whose state has changed for this process,
    `gone` if it was removed; `event: reset` says that changes were missed, so that lists must be read again.
    `event: error` ends the stream of a key that was revoked meanwhile.
    """
    selection = JobSelection(
        tuple(visible_to(caller.tenant)), frozenset(kind or ()), frozenset(types or ()), is_operator=caller.is_operator
    )
    return EventSourceResponse(change_chunks(services, request, selection, cursor), headers=STREAM_HEADERS)


async def change_chunks(
    services: Services, request: Request, selection: JobSelection, cursor: int | None
) -> AsyncIterator[bytes]:
    """Yield what each poll adds to a stream of changes as one chunk: events sent one by one take several times the
    processor time.
    """
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    sent_at = -math.inf  # so that the stream begins with a comment, which shows that no proxy holds it back
    try:
        async with aclosing(services.job_changes.chunks(selection)) as chunks:
            async for new in chunks:
                if services.shutdown.has_begun:
                    return
                await services.lookup.authenticate(authenticated.secret)
                chunk = new
                if cursor is not None:  # after the stream has begun to follow, so that no change is missed
                    read = partial(missed_events, services.database, selection, cursor)
                    missed = await services.event_feed.read(("changes", selection, cursor), read)
                    chunk, cursor = b"".join(map(encoded, missed)) + new, None
                now = time.monotonic()
                if chunk or now - sent_at >= SILENT_SECONDS:
                    sent_at = now
                    yield chunk or KEEPALIVE_COMMENT
    except MensError as error:
        yield encoded(ServerSentEvent(raw_data=bytes(error_response(error).body).decode(), event="error"))


def read_part(view: TenantView, job_id: str, cursor: int) -> StreamPart:
    """Return the events after the cursor, rendered once for all streams that wait for them."""
    # The job is read first: if its state is final, all its events are already stored.
    job = view.job(job_id)
    events = view.jobs.events(job_id, after=cursor, limit=EVENTS_PER_READ)
    has_more = len(events) == EVENTS_PER_READ
    rendered = [
        (event.seq, ServerSentEvent(raw_data=event.model_dump_json(), event=event.type, id=str(event.seq)))
        for event in events
    ]
    last = ServerSentEvent(raw_data=job.model_dump_json(), event="job") if job.state in FINAL and not has_more else None
    return StreamPart(rendered, last, has_more)
