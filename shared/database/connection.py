"""The database: SQLite (WAL) or PostgreSQL behind the same two doors, `read()` and `write()`.

One `with` block is one transaction. On SQLite a write block takes the write lock when it begins, so two writers queue up
instead of failing halfway; on PostgreSQL verbs lock the row they change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError, TimeoutError  # noqa: A004 — the pool's, not the built-in
from sqlalchemy.orm import Session

from shared.errors import Code, Unavailable

SQLITE_BUSY_SECONDS = 30
SQLITE_SYNCHRONOUS = "FULL"
"""What is committed survives a power cut; the tests do not wait for that."""
DEAD_SERVER = {
    "connect_timeout": 10,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""A server that vanished without a word is noticed after some 10 s (milliseconds in the second), not the system's 15 min."""


class Database:
    """Sessions of one database.

    Attributes:
        after_write: called when a transaction that writes has ended, unless it was rolled back; in the thread that wrote.
    """

    def __init__(self, url: str) -> None:
        self.after_write: list[Callable[[], None]] = []
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(url) if self.is_sqlite else _server_engine(url)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that writes nothing.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        with _database_errors(), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits when the block ends, and rolls back when it raises.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        engine = self.engine.execution_options(mens_write=True)
        is_whole = False
        try:
            with _database_errors(), Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
                is_whole = True
        finally:
            for listener in self.after_write if is_whole else ():  # a commit whose answer was lost may have happened
                listener()

    def now(self, session: Session) -> datetime:
        """The database's clock, so that leases do not depend on the clocks of the machines around it."""
        if self.is_sqlite:
            return whole_milliseconds(datetime.now(UTC))
        return whole_milliseconds(session.execute(text("SELECT clock_timestamp()")).scalar_one())

    @property
    def is_there(self) -> bool:
        """Whether there is one to connect to: SQLite would make an empty one. Whether a server answers is not asked."""
        return not self.is_sqlite or Path(self.url.database or "").is_file()

    def ping(self) -> None:
        """Raises:
        Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def whole_milliseconds(moment: datetime) -> datetime:
    """What the tables keep of a time, so that a verb answers what the next look will show."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@contextmanager
def _database_errors() -> Iterator[None]:
    try:
        yield
    except (OperationalError, TimeoutError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise Unavailable(
            Code.DATABASE_UNAVAILABLE,
            f"The database did not answer: {reason}.",
            remedy="Check that it is up and reachable; the same request can succeed later.",
        ) from error


def _server_engine(url: str) -> Engine:
    return create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20, connect_args=DEAD_SERVER)


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions on its own; _begin_sqlite does
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={SQLITE_SYNCHRONOUS}")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("mens_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
