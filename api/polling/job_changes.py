"""Job changes: one stream of all jobs of a tenant, for those who would otherwise poll a list.

One reader follows the changes of all tenants, so that fifty streams cost the database what one does, and none costs
nothing. Each change is rendered once and kept in a log, from which each stream takes its tenant's part.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi.sse import ServerSentEvent

from shared.database.connection import Database
from shared.database.job_states import FINAL
from shared.database.lists.changes import changed_jobs
from shared.database.lists.summaries import JobSummary, read_summaries
from shared.database.records import Kind
from shared.database.tenancy import TenantName
from shared.errors import MensError

OVERLAP = timedelta(seconds=10)
"""How far back each reading goes: a transaction may end this long after the time of its changes."""
PROGRESS_SECONDS = 2.0
"""Least time between two events of a job's progress."""
LOG_EVENTS = 5_000
KNOWN_JOBS = 10_000
"""Jobs whose last summary is kept, to tell progress from other changes."""
MISSED_JOBS = 500
"""Most changed jobs that a stream gets first when it continues an earlier one."""
PROGRESS_FIELDS = frozenset({"step", "total_steps", "train_loss", "eta_seconds", "version"})
SHOWN_PROGRESS = ("id", "version", "step", "train_loss", "eta_seconds")
RESET = ServerSentEvent(raw_data="{}", event="reset")
"""Event of a stream that has missed changes: its client must read its lists again."""

logger = logging.getLogger(__name__)


class LoggedEvent(NamedTuple):
    """An event for the streams of a tenant that sees the job; no tenant: for all streams."""

    tenant: TenantName | None
    kind: Kind | None
    event: ServerSentEvent


class FoundChange(NamedTuple):
    """A changed job, and when it changed."""

    summary: JobSummary
    changed_at: datetime


class JobChanges:
    """Follows the changes of all jobs while there are streams. Used in one event loop at a time.

    Args:
        database: read once per poll, and again if jobs have changed.
        poll_seconds: seconds between two reads.
        clock: monotonic seconds.
    """

    def __init__(self, database: Database, poll_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._poll_seconds, self._clock = database, poll_seconds, clock
        self._streams = self._logged = 0
        self._log: deque[LoggedEvent] = deque(maxlen=LOG_EVENTS)
        self._polling: asyncio.Task[None] | None = None
        self._forget()

    async def batches(
        self, tenants: Collection[TenantName], kinds: Collection[Kind] = ()
    ) -> AsyncIterator[list[ServerSentEvent]]:
        """Yield after each poll the events since the one before, of jobs of these tenants and kinds (none: all)."""
        self._streams += 1
        try:
            self._start()
            seen = self._logged
            while True:
                polled, batch = self._polled, list(self._events_after(seen, tenants, kinds))
                seen = self._logged  # before the caller takes its time
                yield batch
                await polled.wait()
        finally:
            self._streams -= 1

    async def close(self) -> None:
        """End the polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _events_after(
        self, seen: int, tenants: Collection[TenantName], kinds: Collection[Kind]
    ) -> Iterator[ServerSentEvent]:
        missed = self._logged - seen
        if missed > len(self._log):
            yield RESET
            return
        for logged in [self._log[-index] for index in range(missed, 0, -1)]:
            if logged.tenant is None or (logged.tenant in tenants and (not kinds or logged.kind in kinds)):
                yield logged.event

    def _start(self) -> None:
        if self._polling is None or self._polling.done():
            self._limiter, self._polled = CapacityLimiter(1), asyncio.Event()
            self._forget()
            self._polling = asyncio.create_task(self._poll())

    def _forget(self) -> None:
        self._newest: datetime | None = None
        self._versions: dict[str, int] = {}
        self._known: dict[str, JobSummary] = {}
        self._progress_at: dict[str, float] = {}
        self._late: dict[str, FoundChange] = {}
        self._is_behind = False

    async def _poll(self) -> None:
        while self._streams:
            try:
                for found in await to_thread.run_sync(self._read, limiter=self._limiter):
                    self._add(found)
                if self._is_behind:
                    self._log_event(LoggedEvent(None, None, RESET))
                self._add_late_progress()
                polled, self._polled = self._polled, asyncio.Event()
                polled.set()
            except MensError as error:
                logger.warning("streams of job changes wait for the database: %s", error.message)
            await asyncio.sleep(self._poll_seconds)

    def _read(self) -> list[FoundChange]:
        """Read the jobs that have changed since the last reading. The first reading only finds out what time it is."""
        since = self._newest and self._newest - OVERLAP
        changes = changed_jobs(self._database, since)
        self._is_behind = changes.has_more
        new = {job.id: job.changed_at for job in changes.jobs if self._versions.get(job.id) != job.version}
        self._versions = {job.id: job.version for job in changes.jobs}
        # Not the newest change: after the clock went back, changes would be dated before it.
        self._newest = changes.read_at
        return [FoundChange(each, new[each.id]) for each in read_summaries(self._database, list(new))]

    def _add(self, found: FoundChange) -> None:
        job = found.summary
        known = self._known.pop(job.id, None)
        if known is None and len(self._known) >= KNOWN_JOBS:
            del self._known[next(iter(self._known))]
        self._known[job.id] = job
        if known is not None and _but_progress(known) == _but_progress(job):
            self._late[job.id] = found
            return
        self._late.pop(job.id, None)
        self._log_event(LoggedEvent(job.tenant, job.kind, job_event(found)))
        if job.state in FINAL:
            self._progress_at.pop(job.id, None)

    def _add_late_progress(self) -> None:
        now = self._clock()
        for job_id, found in list(self._late.items()):
            if now - self._progress_at.get(job_id, -PROGRESS_SECONDS) >= PROGRESS_SECONDS:
                self._progress_at[job_id] = now
                del self._late[job_id]
                self._log_event(LoggedEvent(found.summary.tenant, found.summary.kind, progress_event(found)))

    def _log_event(self, logged: LoggedEvent) -> None:
        self._log.append(logged)
        self._logged += 1


def job_event(found: FoundChange) -> ServerSentEvent:
    """Return the event that carries a job's summary."""
    return ServerSentEvent(raw_data=found.summary.model_dump_json(), event="job", id=cursor_of(found.changed_at))


def progress_event(found: FoundChange) -> ServerSentEvent:
    """Return the event of a job of which only the progress has changed."""
    text = found.summary.model_dump_json(include=set(SHOWN_PROGRESS))
    return ServerSentEvent(raw_data=text, event="progress", id=cursor_of(found.changed_at))


def cursor_of(changed_at: datetime) -> str:
    """Return the id of an event, from which a stream can be continued."""
    return str(round(changed_at.timestamp() * 1000))


def missed_events(
    database: Database, tenants: Sequence[TenantName], kinds: Collection[Kind], cursor: int
) -> list[ServerSentEvent]:
    """Return the events since the one with an id, in which a stream ended: each changed job once, as it is now."""
    since = datetime.fromtimestamp(cursor / 1000, UTC) - OVERLAP
    changes = changed_jobs(database, since, tenants, MISSED_JOBS)
    if changes.has_more:
        return [RESET]
    moments = {job.id: job.changed_at for job in changes.jobs}
    found = {each.id: each for each in read_summaries(database, list(moments)) if not kinds or each.kind in kinds}
    return [job_event(FoundChange(found[job_id], moments[job_id])) for job_id in moments if job_id in found]


def _but_progress(job: JobSummary) -> JobSummary:
    return job.model_copy(update=dict.fromkeys(PROGRESS_FIELDS))
