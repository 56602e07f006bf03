"""The database: SQLite (WAL) or PostgreSQL behind the same two methods, `read()` and `write()`.

One `with` block is one transaction. On SQLite a write block takes the write lock when it begins, so two writers queue
up instead of failing halfway; on PostgreSQL operations lock the rows they change.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, TimeoutError  # noqa: A004 — the pool's, not the built-in
from sqlalchemy.orm import Session

from shared.database.audit.recorder import CLOCK, RecordingSession
from shared.database.tables.storable import to_json
from shared.errors import Code, Conflict, Unavailable

ResultT = TypeVar("ResultT")
SQLITE_SYNCHRONOUS = "FULL"
"""SQLite's ``synchronous``: a commit survives a power cut. Tests set OFF, which is faster."""
LOCK_SECONDS = 5.0
"""Longest wait of a statement for a lock (on SQLite, of a transaction for the file's lock), and of a caller for a
pooled connection.
"""
STATEMENT_SECONDS = 30.0
"""Time limit of a PostgreSQL statement, so that callers of a locked or slow table get a 503 instead of occupying
connections that others need.
"""
ANSWER_SECONDS = 5
"""Longest wait for a new connection, for the probe of a pooled one, and for a statement beyond `STATEMENT_SECONDS`: a
hanging server enforces no time limits, although its machine may still acknowledge packets. Whole seconds, for libpq.
"""
SERVER_OPTIONS = {
    # Strings arrive as strings whatever the database's own encoding is: from SQL_ASCII they would be bytes.
    "client_encoding": "utf8",
    "connect_timeout": ANSWER_SECONDS,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Options of PostgreSQL connections. The timeouts detect a vanished server after about 10 s instead of the system's 15
min (`tcp_user_timeout` is in milliseconds).
"""


class Database:
    """Sessions of one database.

    Args:
        has_limits: whether a PostgreSQL statement has the time limits of this module; a migration may take hours.

    Attributes:
        after_write: called in the thread that wrote, after each transaction of `write()` that was not rolled back.
    """

    def __init__(self, url: str, *, has_limits: bool = True) -> None:
        self.after_write: list[Callable[[], None]] = []
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self.engine = create_engine(
                url, pool_timeout=LOCK_SECONDS, connect_args={"timeout": LOCK_SECONDS}, json_serializer=to_json
            )
            event.listen(self.engine, "connect", _prepare_sqlite)
        else:
            # Probed before each use, because the server may have restarted since the last.
            self.engine = create_engine(
                url,
                pool_pre_ping=True,
                # With the overflow at most 30 connections for each process: docs/operations.md sizes the server by it.
                pool_size=10,
                max_overflow=20,
                pool_timeout=LOCK_SECONDS,
                connect_args=SERVER_OPTIONS,
                json_serializer=to_json,
            )
            if has_limits:
                # Called first, because SQLAlchemy's own queries on a new connection would otherwise have no time limit.
                event.listen(self.engine, "connect", _limit_waits, insert=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a transaction that writes nothing.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        with database_errors(), Session(self.engine) as session:
            self._begin(session, "BEGIN")
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that commits when the block ends, with its audit events, and rolls back if it raises.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        is_complete = False
        try:
            with database_errors(), self._recording() as session, session.begin():
                # A transaction that begins as a reader and writes later fails when another one wrote in between.
                self._begin(session, "BEGIN IMMEDIATE")
                yield session
                is_complete = True
        finally:
            # Called even if the commit failed, because its confirmation may have been lost after the server had
            # committed.
            for listener in self.after_write if is_complete else ():
                listener()

    def _begin(self, session: Session, statement: str) -> None:
        # Not in a listener of the engine: with one, SQLAlchemy looks for listeners at every statement, which takes a
        # third longer.
        if self.is_sqlite:
            session.connection().exec_driver_sql(statement)

    def _recording(self) -> RecordingSession:
        # Callers read rows after the commit, when an expired attribute would begin another transaction.
        return RecordingSession(self.engine, expire_on_commit=False, info={CLOCK: self.now})

    def now(self, session: Session) -> datetime:
        """Return the database's time, so that leases do not depend on the clocks of other machines."""
        if self.is_sqlite:
            return whole_milliseconds(datetime.now(UTC))
        return whole_milliseconds(session.execute(text("SELECT clock_timestamp()")).scalar_one())

    @property
    def exists(self) -> bool:
        """Return true if the SQLite file exists (connecting would create an empty one); always true for a server, which is not
        contacted.
        """
        return not self.is_sqlite or Path(self.url.database or "").is_file()

    def ping(self) -> None:
        """Check that the database responds.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def repeat_once(transaction: Callable[[], ResultT]) -> ResultT:
    """Run a transaction that inserts a row if none exists, and once more if another request has inserted it at the same
    moment: a row that does not exist cannot be locked.
    """
    try:
        return transaction()
    except IntegrityError:
        return transaction()


def whole_milliseconds(moment: datetime) -> datetime:
    """Round a time as the tables store it, so that an operation returns the same value as a later read."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@contextmanager
def database_errors() -> Iterator[None]:
    """Turn an outage, and damage of a SQLite file, into a coded error; other errors pass unchanged.

    Raises:
        Unavailable: ``DATABASE_UNAVAILABLE``.
        Conflict: ``DATABASE_INVALID``.
    """
    try:
        yield
    except (OperationalError, TimeoutError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise Unavailable(
            Code.DATABASE_UNAVAILABLE,
            f"The database did not respond: {reason}.",
            remedy="Check that it runs and is reachable; the same request can succeed later.",
        ) from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        cause = getattr(error, "orig", None) or error
        if type(cause) is not sqlite3.DatabaseError:  # its subclasses have other causes
            raise
        raise Conflict(
            Code.DATABASE_INVALID,
            f"The database file is damaged: {cause}.",
            remedy="Restore it from a backup; docs/operations.md says how.",
        ) from error


def _limit_waits(connection: Any, _record: Any) -> None:
    # Set first, because a pooler accepts connections while the server behind it hangs.
    connection.wait = partial(_wait, connection, connection.wait)
    # Not as options of the connection, which poolers such as PgBouncer refuse.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {LOCK_SECONDS * 1000:.0f}")
        cursor.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000:.0f}")
    # SET is transactional: without the commit, the pool's rollback would undo it.
    connection.commit()


def _wait(connection: Any, wait: Callable[..., Any], answer: Any, **options: Any) -> Any:
    """Wait for a server's answer as psycopg does, but with a time limit. A connection without an answer is closed,
    because it cannot be used again.

    Raises:
        psycopg.OperationalError: the answer did not come in time.
    """
    # SQLAlchemy probes a pooled connection outside of a transaction; no other statement is sent there.
    seconds = ANSWER_SECONDS + (0 if connection.autocommit else STATEMENT_SECONDS)
    deadline = time.monotonic() + seconds
    try:
        return wait(answer, timeout=seconds, **options)
    except connection.OperationalError:
        if time.monotonic() >= deadline:
            connection.close()
        raise


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions on its own, because `read()` and `write()` do.
    connection.isolation_level = None
    # With WAL readers and the writer do not block each other.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={SQLITE_SYNCHRONOUS}")
    # SQLite enforces foreign keys only for connections that request it.
    connection.execute("PRAGMA foreign_keys=ON")
