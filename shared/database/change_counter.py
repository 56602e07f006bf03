"""The change counter: shows a process that caches keys, aliases or adapters that another process has changed them."""

from __future__ import annotations

from functools import cache
from typing import Literal

from sqlalchemy import UpdateBase, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.tables.keys import ChangeRow

What = Literal["keys", "adapters", "aliases", "policies", "queue", "certificates"]

COUNT = select(func.coalesce(func.sum(ChangeRow.count), 0))
"""Built once, because each process runs it several times a second, and building takes longer than running it."""


class Changes:
    """Read access to the counter."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def count(self) -> int:
        """Return the number of changes of keys, aliases and adapters so far. As long as it stays the same, nothing has changed."""
        with self._db.read() as session:
            return int(session.scalar(COUNT) or 0)


def bump(session: Session, what: What) -> None:
    """Count a change in the transaction that makes it, so that a reader of the new count also reads what changed.

    Each transaction waits here until the previous one has ended, so call this only after locking other rows. A
    transaction that changes several kinds counts adapters before aliases.
    """
    _add(session, what, 1)


def hold_queue(session: Session) -> None:
    """Block other claims until the caller's transaction ends; it must not hold other locks yet."""
    if _dialect(session) == "sqlite":
        return  # SQLite has only one writer at a time anyway
    # Written, not only locked: the first claim of an installation finds no row, and must block others too.
    _add(session, "queue", 0)


def hold_policies(session: Session) -> None:
    """Block changes of policies until the caller's transaction ends; it must hold its alias's lock already."""
    # A shared lock: moves of different aliases do not wait for each other.
    session.execute(select(ChangeRow).where(ChangeRow.what == "policies").with_for_update(read=True))


def _add(session: Session, what: What, number: int) -> None:
    session.execute(_counting(_dialect(session)), {"kind": what, "number": number})


def _dialect(session: Session) -> str:
    return session.get_bind().dialect.name


@cache
def _counting(dialect: str) -> UpdateBase:
    """Return the counting statement; built once, because building takes longer than running it."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    number = bindparam("number", type_=ChangeRow.count.type)
    first = insert(ChangeRow).values(what=bindparam("kind"), count=number)
    return first.on_conflict_do_update(index_elements=[ChangeRow.what], set_={"count": ChangeRow.count + number})
