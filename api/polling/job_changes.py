"""Changes: one stream of all jobs of a tenant, with aliases, receipts and replicas, for clients that would otherwise
poll lists.

One reader follows the changes of all tenants, so that fifty streams cost the database as much as one, and without a
stream nothing is read. Each change is rendered once and kept in a log, from which each stream takes its tenant's part.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi.sse import ServerSentEvent, format_sse_event

from api.polling.other_changes import ChangeType, LoggedEvent, OtherChanges, ReplicaFacts, cursor_of, other_events
from shared.database.connection import Database
from shared.database.job_states import FINAL
from shared.database.lists.changes import changed_jobs
from shared.database.lists.summaries import JobSummary, read_summaries
from shared.database.records import Kind
from shared.database.tenancy import TenantName
from shared.errors import MensError

CURSOR_HEADER = "X-Mens-Last-Event-ID"
CURSOR_MEANING = "Send it as `Last-Event-ID` to `GET /v1/events`: the stream then begins with everything that has changed since this response was made."
HAS_CURSOR: dict[int | str, dict[str, Any]] = {
    200: {"headers": {CURSOR_HEADER: {"description": CURSOR_MEANING, "schema": {"type": "string"}}}}
}
"""Description of a response that names where the stream of changes begins."""
OVERLAP = timedelta(seconds=10)
"""How far back each reading goes: a transaction may end this long after the time of its changes."""
PROGRESS_SECONDS = 2.0
"""Minimum time between two events of a job's progress."""
BATCH_SECONDS = 1.0
"""Minimum time between two chunks of progress: jobs whose progress is due are sent together, because each chunk costs
every stream a write.
"""
IDLE_POLLS = 4
"""Number of polls without an event after which streams are woken anyway, e.g. to find that a key has expired."""
RECHECKS = 4
"""Number of polls at which streams are woken after the change counter has moved, because a key may have been revoked. The
cache of keys reads the counter at its own pace, and on a slow database that takes longer than a poll.
"""
LOSS_DIGITS = 6
"""Significant digits of a loss in an event of progress."""
# A stream that is further behind gets `RESET` instead, so that slow clients cost a bounded amount of memory.
LOG_EVENTS = 5_000
KNOWN_JOBS = 10_000
"""Number of jobs whose last summary is kept, to distinguish progress from other changes."""
MISSED_JOBS = 500
"""Largest number of changed jobs that a stream gets first when it continues an earlier stream."""
PROGRESS_FIELDS = frozenset({"step", "total_steps", "train_loss", "eta_seconds", "version"})
OTHER_FIELDS = attrgetter(*(name for name in JobSummary.model_fields if name not in PROGRESS_FIELDS))
"""Returns the other fields of a summary."""
PROGRESS = "progress"
"""Type of the events of progress."""
SHOWN_PROGRESS = ("id", "version", "step", "train_loss", "eta_seconds")
RESET = ServerSentEvent(raw_data="{}", event="reset")
"""Event of a stream that has missed changes: its client must read its lists again."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobSelection:
    """Events that a stream gets.

    Attributes:
        tenants: tenants whose jobs, aliases and receipts are included.
        kinds: kinds of jobs; empty: all.
        types: types of events; empty: all.
        is_operator: whether the stream gets events of replicas.
    """

    tenants: Collection[TenantName]
    kinds: Collection[Kind] = ()
    types: Collection[ChangeType] = ()
    is_operator: bool = False

    def key(self) -> Hashable:
        """Return a key that is equal for all streams that get the same events."""
        return tuple(self.tenants), frozenset(self.kinds), frozenset(self.types), self.is_operator

    def includes(self, *types: ChangeType) -> bool:
        """Return whether the stream gets events of one of these types."""
        return not self.types or any(change_type in self.types for change_type in types)

    def takes(self, logged: LoggedEvent) -> bool:
        """Return whether the stream gets an event."""
        if logged.type is None:
            return True
        if not self.includes(logged.type):
            return False
        if logged.tenant is None:
            return self.is_operator
        return logged.tenant in self.tenants and (not self.kinds or not logged.kind or logged.kind in self.kinds)


class FoundChange(NamedTuple):
    """A changed job, and when it changed."""

    summary: JobSummary
    changed_at: datetime


class JobChanges:
    """Follows the changes of all jobs while there are streams. Used in one event loop at a time.

    Args:
        database: read once per poll, and again if jobs have changed.
        poll_seconds: seconds between two reads.
        replicas: function that returns the current state of the replicas.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        poll_seconds: float,
        replicas: Callable[[], Sequence[ReplicaFacts]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = replicas
        self._database, self._poll_seconds, self._clock = database, poll_seconds, clock
        self._streams = self._logged = 0
        self._log: deque[LoggedEvent] = deque(maxlen=LOG_EVENTS)
        self._chunks: dict[tuple[int, int, Hashable], bytes] = {}
        self._polling: asyncio.Task[None] | None = None
        self._forget()

    async def chunks(self, selection: JobSelection) -> AsyncGenerator[bytes, None]:
        """Yield the selected events of each poll as one chunk, as they are sent. Some chunks are empty, so that the
        caller can check its key again.
        """
        self._streams += 1
        key = selection.key()
        try:
            self._start()
            seen = self._logged
            while True:
                polled, chunk = self._polled, self._chunk_after(seen, selection, key)
                seen = self._logged  # before the caller processes the chunk, which may take long
                yield chunk
                await polled.wait()
        finally:
            self._streams -= 1

    def cursor(self) -> str:
        """Return an id of an event from which a stream has every change that a later reading of the database may miss. It
        is that of the last poll if there is one, so that lists cost no further query.
        """
        newest = self._newest if self._streams else None
        if newest is None:
            with self._database.read() as session:
                newest = self._database.now(session)
        return cursor_of(newest)

    async def close(self) -> None:
        """End the polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _chunk_after(self, seen: int, selection: JobSelection, key: Hashable) -> bytes:
        """Return the chunk after a position. Streams that want the same events and are at the same position share one
        chunk.
        """
        if seen == self._logged:
            return b""
        place = (seen, self._logged, key)
        if place not in self._chunks:
            self._chunks[place] = joined(list(self._events_after(seen, selection)))
        return self._chunks[place]

    def _events_after(self, seen: int, selection: JobSelection) -> Iterator[ServerSentEvent]:
        missed = self._logged - seen
        if missed > len(self._log):
            yield RESET
            return
        for logged in [self._log[-index] for index in range(missed, 0, -1)]:
            if selection.takes(logged):
                yield logged.event

    def _start(self) -> None:
        if self._polling is None or self._polling.done():
            self._limiter, self._polled = CapacityLimiter(1), asyncio.Event()
            self._forget()
            self._polling = asyncio.create_task(self._poll())

    def _forget(self) -> None:
        self._others = OtherChanges(self._database)
        self._newest: datetime | None = None
        self._versions: dict[str, int] = {}
        self._summaries: dict[str, JobSummary] = {}
        self._progress_at: dict[str, float] = {}
        self._batch_at = -BATCH_SECONDS
        self._late: dict[str, FoundChange] = {}
        self._is_behind = False

    async def _poll(self) -> None:
        silent, rechecks, sent = 0, 0, self._logged
        while self._streams:
            try:
                new_changes, others = await to_thread.run_sync(self._read_all, limiter=self._limiter)
                for change in new_changes:
                    self._add(change)
                for logged in [*others, *self._others.of_replicas(self._replicas())]:
                    self._log_event(logged)
                if self._is_behind:
                    self._log_event(LoggedEvent(None, None, None, RESET))
                self._add_late_progress()
            except MensError as error:
                logger.warning("streams of job changes wait for the database: %s", error.message)
            silent, rechecks = silent + 1, RECHECKS if self._others.has_counted else rechecks - 1
            # Also after a failure, so that the streams can still detect whether their clients are connected.
            if sent != self._logged or rechecks > 0 or silent >= IDLE_POLLS:
                silent, sent = 0, self._logged
                self._chunks.clear()
                # The next event is in place before this one is set: a stream that waits again at once must wait for
                # the next poll.
                polled, self._polled = self._polled, asyncio.Event()
                polled.set()
            await asyncio.sleep(self._poll_seconds)

    def _read_all(self) -> tuple[list[FoundChange], list[LoggedEvent]]:
        new_changes = self._read()
        try:
            return new_changes, self._others.read(self._newest)
        except MensError as error:
            logger.warning("streams of changes wait for aliases and receipts: %s", error.message)
            return new_changes, []  # its next reading begins where the last complete one began

    def _read(self) -> list[FoundChange]:
        """Read the jobs that have changed since the last reading. The first reading only finds out what time it is."""
        since = self._newest and self._newest - OVERLAP
        changes = changed_jobs(self._database, since)
        new = {job.id: job.changed_at for job in changes.jobs if self._versions.get(job.id) != job.version}
        new_changes = [FoundChange(summary, new[summary.id]) for summary in read_summaries(self._database, list(new))]
        # Only after both queries have succeeded: after a failure the next reading begins where the last complete one
        # began.
        self._is_behind = changes.has_more
        self._versions = {job.id: job.version for job in changes.jobs}
        # Not the time of the newest change: after the clock was set back, later changes would have earlier times.
        self._newest = changes.read_at
        return new_changes

    def _add(self, change: FoundChange) -> None:
        job = change.summary
        earlier = self._summaries.pop(job.id, None)
        if earlier is None and len(self._summaries) >= KNOWN_JOBS:
            del self._summaries[next(iter(self._summaries))]
        self._summaries[job.id] = job
        if earlier is not None and OTHER_FIELDS(earlier) == OTHER_FIELDS(job):
            self._late[job.id] = change
            return
        self._late.pop(job.id, None)
        self._log_event(LoggedEvent(ChangeType.JOB, job.tenant, job.kind, job_event(change)))
        if job.state in FINAL:
            self._progress_at.pop(job.id, None)

    def _add_late_progress(self) -> None:
        now = self._clock()
        if not self._late or now - self._batch_at < BATCH_SECONDS:
            return
        self._batch_at = now
        for job_id, change in list(self._late.items()):
            if now - self._progress_at.get(job_id, -PROGRESS_SECONDS) >= PROGRESS_SECONDS:
                self._progress_at[job_id] = now
                del self._late[job_id]
                job = change.summary
                self._log_event(LoggedEvent(ChangeType.JOB, job.tenant, job.kind, progress_event(change)))

    def _log_event(self, logged: LoggedEvent) -> None:
        self._log.append(logged)
        self._logged += 1


def encoded(event: ServerSentEvent) -> bytes:
    """Return an event as it is sent."""
    return format_sse_event(data_str=event.raw_data, event=event.event, id=event.id)


def joined(events: Sequence[ServerSentEvent]) -> bytes:
    """Return events as they are sent together. Only the last event of progress has an id. If the connection ends before
    that event, the client continues from an older id and receives the batch again.
    """
    last = max((index for index, event in enumerate(events) if event.event == PROGRESS), default=-1)
    return b"".join(
        encoded(
            ServerSentEvent(raw_data=event.raw_data, event=PROGRESS)
            if event.event == PROGRESS and index < last
            else event
        )
        for index, event in enumerate(events)
    )


def job_event(change: FoundChange) -> ServerSentEvent:
    """Return the event that carries a job's summary."""
    return ServerSentEvent(raw_data=change.summary.model_dump_json(), event="job", id=cursor_of(change.changed_at))


def progress_event(change: FoundChange) -> ServerSentEvent:
    """Return the event for a job if only its progress has changed."""
    summary = change.summary
    if summary.train_loss is not None:
        summary = summary.model_copy(update={"train_loss": float(f"{summary.train_loss:.{LOSS_DIGITS}g}")})
    text = summary.model_dump_json(include=set(SHOWN_PROGRESS))
    return ServerSentEvent(raw_data=text, event=PROGRESS, id=cursor_of(change.changed_at))


def missed_events(database: Database, selection: JobSelection, cursor: int) -> list[ServerSentEvent]:
    """Return the events after `cursor`, the id of the last one that a client received: each changed job, alias and
    receipt once, in its current state. Earlier states of replicas are not kept.
    """
    since, tenants = datetime.fromtimestamp(cursor / 1000, UTC) - OVERLAP, list(selection.tenants)
    changes = changed_jobs(database, since if selection.includes(ChangeType.JOB) else None, tenants, MISSED_JOBS)
    reads_others = selection.includes(ChangeType.ALIAS, ChangeType.RECEIPT)
    others = other_events(database, since, tenants, MISSED_JOBS) if reads_others else []
    if changes.has_more or len(others) > MISSED_JOBS:
        return [RESET]
    moments = {job.id: job.changed_at for job in changes.jobs}
    summaries = {entry.id: entry for entry in read_summaries(database, list(moments))}
    jobs = [FoundChange(summaries[job_id], moments[job_id]) for job_id in moments if job_id in summaries]
    logged = [LoggedEvent(ChangeType.JOB, job.summary.tenant, job.summary.kind, job_event(job)) for job in jobs]
    return [entry.event for entry in [*logged, *others] if selection.takes(entry)]
