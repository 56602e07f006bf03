"""The recorder: writes an audit event for each audited row that a `Database.write()` changed, in the same transaction.

Changes are noted at every flush and written once, just before the commit. So several flushes of a row give one event,
and transactions wait for each other only when they are about to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import func, inspect, select
from sqlalchemy.event import listens_for
from sqlalchemy.orm import Session

from shared.database.audit.actors import current_actor
from shared.database.audit.audited_tables import AUDITED, AuditedTable
from shared.database.audit.changes import Change, ChangeKind, Values
from shared.database.tables.audit import AuditEventRow
from shared.database.tables.base import Base, insert_rows
from shared.observability.log_context import current_ids

CLOCK = "clock"
"""Key of the clock in a session's `info`; tests set it."""
LOCK = "audit log"
_NOTES = "audit_notes"
Notes = dict[tuple[Any, ...], tuple[Any, Change]]
"""A row and its change, by class and primary key."""


class RecordingSession(Session):
    """A session that writes the audit events of its transaction."""


@listens_for(RecordingSession, "after_flush")
def _note_changes(session: Session, _: object) -> None:
    kinds: tuple[tuple[ChangeKind, Any], ...] = (
        ("created", session.new),
        ("changed", session.dirty),
        ("deleted", session.deleted),
    )
    for kind, rows in kinds:
        for row in rows:
            if (table := AUDITED.get(type(row))) and (change := _change(row, kind, table)):
                _note(session.info.setdefault(_NOTES, {}), row, change)


@listens_for(RecordingSession, "before_commit")
def _write_events(session: Session) -> None:
    session.flush()
    notes: Notes = session.info.pop(_NOTES, {})
    if events := list(_events(notes)):
        _add(session, events)


def record(session: Session, tenant: str, action: str, object_id: str, changes: dict[str, Values]) -> None:
    """Write the event of a change that a statement makes without row objects; call it before the change."""
    _add(session, [_event(tenant, action, object_id, changes)])


def _add(session: Session, events: list[dict[str, Any]]) -> None:
    """Add events numbered in the order of commit: a reader that continues after the last event misses none."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(LOCK, 0))))
    clock: Callable[[Session], datetime] = session.info[CLOCK]
    now = clock(session)
    insert_rows(session, AuditEventRow, [event | {"created_at": now} for event in events])


def _change(row: Base, kind: ChangeKind, table: AuditedTable) -> Change | None:
    """Return the flush's change of a row's audited fields; None if nothing changed."""
    if kind != "changed":
        values = {name: value for name in table.fields if (value := row.__dict__.get(name)) is not None}
        return Change(kind, {}, values) if kind == "created" else Change(kind, values, {})
    state = inspect(row)
    # Most flushes, such as a heartbeat's, do not change an audited field.
    assigned = set(table.fields) - state.unmodified_intersection(table.fields)
    histories = {name: state.attrs[name].history for name in table.fields if name in assigned}
    changed = {name: history for name, history in histories.items() if history.has_changes()}
    if not changed:
        return None
    before = {name: next(iter(history.deleted), None) for name, history in changed.items()}
    return Change(kind, before, {name: next(iter(history.added), None) for name, history in changed.items()})


def _note(notes: Notes, row: Base, change: Change) -> None:
    key = (type(row), *inspect(row).mapper.primary_key_from_instance(row))
    earlier = notes.pop(key, None)
    both = earlier[1].then(change) if earlier else change
    if both:
        notes[key] = row, both


def _events(notes: Notes) -> Iterator[dict[str, Any]]:
    for row, change in notes.values():
        table = AUDITED[type(row)]
        if action := table.action(row, change):
            yield _event(row.tenant, action, table.object_id(row), table.changes(row, change))


def _event(tenant: str, action: str, object_id: str, changes: dict[str, Values]) -> dict[str, Any]:
    actor = current_actor()
    return {
        "tenant": tenant,
        "actor_kind": actor.kind,
        "actor_id": actor.id,
        "actor": actor.name,
        "action": action,
        "object_type": action.partition(".")[0],
        "object_id": object_id,
        "changes": changes,
        "request_id": current_ids().get("request_id"),
        "address": actor.address,
    }
