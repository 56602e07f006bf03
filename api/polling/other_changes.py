"""Changes of aliases, receipts and replicas, for the stream of changes: moved aliases, new receipts, and replicas in a
new state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from fastapi.sse import ServerSentEvent

from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.lists.changes import AddedReceipt, MovedAlias, added_receipts, moved_aliases
from shared.database.records import Kind, Value
from shared.database.tenancy import TenantName

OVERLAP = timedelta(seconds=10)
"""How far back each reading goes: a transaction may end this long after the time of its changes."""
GONE = "gone"
"""State of a replica that was removed."""


class ChangeType(StrEnum):
    """Types of events: what has changed."""

    JOB = "job"
    ALIAS = "alias"
    RECEIPT = "receipt"
    REPLICA = "replica"


class LoggedEvent(NamedTuple):
    """An event for the streams of those who see a tenant.

    Attributes:
        type: type of what has changed; None: for all streams.
        tenant: tenant whose job, alias or receipt has changed; None: the event is of a replica, for operators.
        kind: kind of the job.
    """

    type: ChangeType | None
    tenant: TenantName | None
    kind: Kind | None
    event: ServerSentEvent


class ReplicaFacts(Value):
    """A serving replica as this process sees it."""

    name: str
    base: str | None
    state: str


class OtherChanges:
    """Aliases, receipts and replicas as one reader has seen them."""

    def __init__(self, database: Database) -> None:
        self._database, self._changes = database, Changes(database)
        self._since: datetime | None = None
        self._count: int | None = None
        self._seen: dict[tuple[str, ...], int] = {}
        self._replicas: dict[str, ReplicaFacts] | None = None
        self.has_counted = False
        """True if the counter had moved at the last reading, e.g. because a key was revoked."""

    def read(self, now: datetime | None) -> list[LoggedEvent]:
        """Return the events of aliases and receipts since the reading before; none at the first one.

        Args:
            now: time of this reading, by the database's clock.
        """
        count, since = self._changes.count(), self._since
        self.has_counted = self._count != count
        if since is None:
            self._since, self._count = now, count
            return []
        # Aliases have no index by time: they are read only after something was moved, or some other cached thing changed.
        moved = moved_aliases(self._database, since - OVERLAP) if self._count != count else ()
        added = added_receipts(self._database, since - OVERLAP)
        # Only after both queries have succeeded: after a failure the next reading begins where the last complete one
        # began.
        self._since, self._count = now, count
        events: dict[tuple[str, ...], tuple[int, LoggedEvent]] = {}
        events |= {("alias", change.tenant, change.name): (change.version, alias_event(change)) for change in moved}
        events |= {("receipt", change.id): (1, receipt_event(change)) for change in added}
        new = [event for key, (version, event) in events.items() if self._seen.get(key) != version]
        kept = {key: version for key, version in self._seen.items() if key[0] == "alias"}
        self._seen = kept | {key: version for key, (version, _) in events.items()}
        return new

    def of_replicas(self, replicas: Sequence[ReplicaFacts]) -> Iterator[LoggedEvent]:
        """Yield the events of replicas since the call before; none at the first one."""
        before, self._replicas = self._replicas, {replica.name: replica for replica in replicas}
        if before is None:
            return
        gone = [
            replica.model_copy(update={"state": GONE}) for name, replica in before.items() if name not in self._replicas
        ]
        for replica in [*(replica for name, replica in self._replicas.items() if before.get(name) != replica), *gone]:
            event = ServerSentEvent(raw_data=replica.model_dump_json(), event=ChangeType.REPLICA)
            yield LoggedEvent(ChangeType.REPLICA, None, None, event)


def other_events(
    database: Database, since: datetime, tenants: Sequence[TenantName] | None, limit: int
) -> list[LoggedEvent]:
    """Return the events of the aliases and receipts of some tenants since a moment; more than ``limit`` if there are more."""
    moved = moved_aliases(database, since, tenants, limit)
    added = added_receipts(database, since, tenants, limit)
    return [*map(alias_event, moved), *map(receipt_event, added)]


def alias_event(alias: MovedAlias) -> LoggedEvent:
    """Return the event of a moved alias."""
    event = ServerSentEvent(raw_data=alias.model_dump_json(), event=ChangeType.ALIAS, id=cursor_of(alias.moved_at))
    return LoggedEvent(ChangeType.ALIAS, alias.tenant, None, event)


def receipt_event(receipt: AddedReceipt) -> LoggedEvent:
    """Return the event of a new receipt."""
    moment = cursor_of(receipt.created_at)
    event = ServerSentEvent(raw_data=receipt.model_dump_json(), event=ChangeType.RECEIPT, id=moment)
    return LoggedEvent(ChangeType.RECEIPT, receipt.tenant, None, event)


def cursor_of(changed_at: datetime) -> str:
    """Return the id of an event, from which a stream can be continued."""
    return str(round(changed_at.timestamp() * 1000))
