"""Reads a table in read-only transactions, each of which sees one state of the data."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from corpus.reading.addresses import TESTED, SourceAddress
from shared.errors import Code, InvalidRequest, MensError, Unavailable

APPLICATION = "mens-corpus"
STATEMENT_SECONDS = 60
_OPTIONS = {
    "application_name": APPLICATION,
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
}
_JSON_TYPES = frozenset({114, 3802})
"""PostgreSQL's JSON types, whose values may be lists."""
# What the server says about a statement names columns; what it says about data (classes 22 and 23) quotes values.
_QUOTABLE = ("42", "25", "0A")
# With these classes the server is at fault, and not the query.
_CONNECTION_CLASSES = ("08", "28", "3D", "53", "57", "58")
# The exception in class 57: an operator's limit that the query exceeds.
_TIMEOUT = "57014"
_ACTIVITY = """
SELECT clock_timestamp(), min(xact_start), coalesce(bool_or(query = '<insufficient privilege>'), false), pg_is_in_recovery()
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND application_name IS DISTINCT FROM %s AND backend_type IS DISTINCT FROM 'autovacuum worker'
"""


class SourceTime(NamedTuple):
    """The source's clock.

    Attributes:
        now: its time.
        oldest: start of the oldest transaction that may still write; None without one.
        sees_all: whether this user can see other users' transactions.
    """

    now: datetime
    oldest: datetime | None = None
    sees_all: bool = True


@dataclass(frozen=True)
class Column:
    """Column of the query: its name, and whether lists in it are JSON rather than arrays."""

    name: str
    is_json: bool = False


class Query(NamedTuple):
    """A query used as a table: conditions on its columns with ``?`` for each value, and the clauses that follow them."""

    sql: str
    conditions: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    tail: str = ""


class SourceDatabase:
    """A database that rows are pulled from.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the driver of the address is not installed.
    """

    def __init__(self, address: SourceAddress) -> None:
        self.address = address
        self.is_tested = address.url.get_backend_name() in TESTED
        try:
            self._engine = _make_engine(address)
        except (NoSuchModuleError, ModuleNotFoundError):
            raise InvalidRequest(
                Code.SETTINGS_INVALID,
                f"The address of {address.name!r} needs a driver that is not installed: {address.url.drivername}.",
                remedy="Use a postgresql:// or sqlite:// address, or install the driver.",
                param="pull.source",
            ) from None

    def time(self) -> SourceTime:
        """Return the source's clock. Read it before taking the snapshot that it limits: a transaction that ends between
        the two is then either visible or counted as running.

        """
        if not self.address.is_postgresql:
            return SourceTime(datetime.now(UTC))
        with self.errors(), self._engine.connect() as connection:
            row = connection.exec_driver_sql(_ACTIVITY, (APPLICATION,)).one()
        return SourceTime(row[0], row[1], sees_all=not row[2] and not row[3])

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open a read-only transaction that sees one state of the data.

        Raises:
            Unavailable: ``CORPUS_SOURCE_UNREACHABLE``.
            InvalidRequest: ``CORPUS_QUERY_INVALID``.
        """
        with self.errors():
            connection = self._engine.connect()
        try:
            with self.errors():
                if self.address.is_postgresql:
                    connection = connection.execution_options(
                        isolation_level="REPEATABLE READ", postgresql_readonly=True
                    )
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
                elif self.address.is_sqlite:
                    connection.exec_driver_sql("PRAGMA query_only = 1")
                    connection.exec_driver_sql("BEGIN")
            yield Snapshot(self, connection)
        finally:
            try:
                connection.close()
            except SQLAlchemyError:  # the connection is lost, which an earlier error has reported
                connection.invalidate()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the database into coded ones, without values, addresses or SQLAlchemy's own message."""
        try:
            yield
        except DBAPIError as error:
            raise self._explain(error) from None
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._unreachable(type(error).__name__) from None

    def _explain(self, error: DBAPIError) -> MensError:
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if state == _TIMEOUT:
            message = f"A statement took longer than {STATEMENT_SECONDS} s."
            remedy = "Create an index on the watermark and the key, or narrow the query."
            return InvalidRequest(Code.CORPUS_QUERY_INVALID, message, remedy=remedy, param="pull.sql")
        if self.address.is_sqlite:
            return self._explain_sqlite(error)
        if not state or state.startswith(_CONNECTION_CLASSES) or error.connection_invalidated:
            return self._unreachable(state or type(error.orig).__name__)
        said = getattr(getattr(error.orig, "diag", None), "message_primary", None)
        reason = f"{said} ({state})" if said and state.startswith(_QUOTABLE) else f"SQLSTATE {state}"
        return _invalid(reason)

    def _explain_sqlite(self, error: DBAPIError) -> MensError:
        code = str(getattr(error.orig, "sqlite_errorname", "") or "")
        said = str(error.orig)
        if code in ("SQLITE_ERROR", "") and "unable to open" not in said:
            return _invalid(said)
        if code.startswith("SQLITE_READONLY"):
            return _invalid("attempt to write a readonly database")
        return self._unreachable(code or "unable to open the file")

    def _unreachable(self, reason: str) -> Unavailable:
        return Unavailable(
            Code.CORPUS_SOURCE_UNREACHABLE,
            f"The source {self.address.name!r} ({self.address.place}) does not respond: {reason}.",
            remedy=(
                "Check the address, its password and the network, then pull again: the pull continues where it stopped."
            ),
            param="pull.source",
        )


class Snapshot:
    """One state of a database, in one read-only transaction."""

    def __init__(self, database: SourceDatabase, connection: Connection) -> None:
        self._database, self._connection = database, connection
        self._is_format = connection.dialect.paramstyle in ("format", "pyformat")
        self.quote = connection.dialect.identifier_preparer.quote_identifier

    def columns(self, sql: str) -> list[Column]:
        """Return the columns of a query."""
        with self._database.errors():
            result = self._execute("SELECT *", Query(sql, ("1 = 0",)))
            assert result.cursor is not None
            return [Column(part[0], part[1] in _JSON_TYPES) for part in result.cursor.description or ()]

    def rows(self, head: str, query: Query) -> list[Any]:
        """Return all rows of the query, selected with ``head``."""
        with self._database.errors():
            return list(self._execute(head, query).fetchall())

    def pages(self, query: Query, *, rows: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query in pages. The server sorts once for all pages."""
        with self._database.errors():
            result = self._execute("SELECT *", query, stream_results=True, max_row_buffer=rows)
        with closing(result):  # a caller that has read enough leaves a cursor open on the server
            partitions = result.partitions(rows)
            while True:
                with self._database.errors():
                    part = next(partitions, None)
                if part is None:
                    return
                yield part

    def _execute(self, head: str, query: Query, **options: Any) -> Any:
        # At least one value is always bound: the server then accepts only one statement, even if the query contains
        # several.
        conditions = " AND ".join(("1 = ?", *query.conditions))
        sql, tail = query.sql, f" AS mens_rows WHERE {conditions} {query.tail}"
        if self._is_format:
            sql, tail = sql.replace("%", "%%"), tail.replace("%", "%%").replace("?", "%s")
        # A line end follows the query, because it may end with a comment.
        statement = f"{head} FROM ({sql}\n){tail}"
        return self._connection.exec_driver_sql(statement, (1, *query.values), execution_options=options)


def _make_engine(address: SourceAddress) -> Engine:
    options: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    if address.is_sqlite:
        path = Path(address.url.database or "").absolute()
        # Opened by a URI, the file is neither created nor changed.
        return create_engine("sqlite://", creator=lambda: _connect_sqlite(path), **options)
    connect = _OPTIONS if address.is_postgresql else {}
    return create_engine(address.url, connect_args=connect, **options)


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    # SQLAlchemy and the sqlite3 module must not begin transactions, because the snapshot begins one.
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=10)


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.CORPUS_QUERY_INVALID,
        f"The database refuses the query: {reason}.",
        remedy="Correct the SELECT; try it in a client of the database. A pull can only read.",
        param="pull.sql",
    )
