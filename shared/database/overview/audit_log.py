"""Reading the audit log, page by page, and pruning it after an export."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import Field
from sqlalchemy import Select, delete, func, or_, select

from shared.database.audit.actors import ActorKind
from shared.database.audit.recorder import record
from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.audit import AuditEventRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED
from shared.errors import Code, Conflict

PRUNED = "audit.pruned"
"""Event that makes the database's triggers accept the deletion of older events; its object is the number of the last
event to delete.
"""


class AuditEvent(Value):
    """One change: its author, the object and what changed."""

    seq: int = Field(description="Its number, which grows with time; the cursor of the log.")
    created_at: datetime
    tenant: str = Field(description="The tenant that the object belongs to.")
    actor_kind: ActorKind = Field(
        description=(
            "`key`: a request; `person`: a request of a person who has signed in through the identity provider; "
            "`job`: an attempt at a job; `command`: a command on the machine of the database; `process`: a "
            "background process."
        )
    )
    actor_id: str = Field(description="Id of the key, of the person's key or of the job; empty for others.")
    actor: str = Field(
        description=(
            "Name of the key, name and subject of the person, id of the job, `user@host` of a command, `host:pid` of "
            "a process."
        )
    )
    action: str = Field(description="Action: the object's type and a verb, e.g. `key.rotated`.")
    object_type: str
    object_id: str
    changes: dict[str, Any] = Field(
        description="By field, the values `before` and `after`; those of secrets are concealed."
    )
    request_id: str | None = Field(description="Id of the request, as in its `x-request-id`.")
    address: str | None = Field(
        description="Client address of the request; the proxy's address if a proxy is in between."
    )


class AuditFilter(NamedTuple):
    """Filter of events; None matches any.

    Attributes:
        tenant: tenant that the object belongs to.
        action: ``key.rotated``, or ``key`` for all changes of keys.
        actor: id or name.
        object_id: id or name of the changed object.
        since: the first moment.
        until: the first moment after the range.
    """

    tenant: str | None = None
    action: str | None = None
    actor: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditLog:
    """Operations on the audit log; each runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def list(
        self, which: AuditFilter, *, after: int | None = None, limit: int = 100, newest_first: bool = True
    ) -> Sequence[AuditEvent]:
        """Return a page of events by number; one more than ``limit`` if more follow.

        Args:
            which: filter of the events.
            after: number of the last event of the page before.
            limit: the page's size.
            newest_first: otherwise the oldest is first, so that a reader can follow the log from a number on without
                missing an event.
        """
        seq = AuditEventRow.seq
        query = _where(which).order_by(seq.desc() if newest_first else seq).limit(limit + 1)
        if after is not None:
            query = query.where(seq < after if newest_first else seq > after)
        with self._db.read() as session:
            return [AuditEvent.model_validate(row) for row in session.scalars(query)]

    def prune(self, through: int, events: int) -> int:
        """Delete the events up to a number. A new event records the deletion and the time of the last deleted one.

        Args:
            through: number of the last event to delete.
            events: number of events to delete, as counted by their export.

        Returns:
            the number of deleted events.

        Raises:
            Conflict: ``AUDIT_EXPORT_DIFFERS``: the log has more or fewer events up to that number, so the export does
                not match it.
        """
        upto = AuditEventRow.seq <= through
        with self._db.write() as session:
            count = session.scalar(select(func.count()).where(upto)) or 0
            if count != events:
                raise Conflict(
                    Code.AUDIT_EXPORT_DIFFERS,
                    f"The log has {count} events up to {through}, but the export has {events}.",
                    remedy=(
                        "Export the whole log from its first event: `mens audit export`; without filters, for all "
                        "tenants."
                    ),
                    param="events",
                )
            last = session.scalar(select(AuditEventRow.created_at).where(AuditEventRow.seq == through))
            extent = {"events": events, "until": last.isoformat() if last else None}
            record(session, SHARED, PRUNED, str(through), {k: {"before": v, "after": None} for k, v in extent.items()})
            session.execute(delete(AuditEventRow).where(upto))
            return count


def _where(which: AuditFilter) -> Select[AuditEventRow]:
    row = AuditEventRow
    query = select(row)
    if which.tenant is not None:
        query = query.where(row.tenant == which.tenant)
    if which.action is not None:
        query = query.where(or_(row.action == storable(which.action), row.object_type == storable(which.action)))
    if which.actor is not None:
        query = query.where(or_(row.actor_id == storable(which.actor), row.actor == storable(which.actor)))
    if which.object_id is not None:
        query = query.where(row.object_id == storable(which.object_id))
    if which.since is not None:
        query = query.where(row.created_at >= which.since)
    return query if which.until is None else query.where(row.created_at < which.until)
