"""Database connections: one block is one transaction, and the migrations create the tables that the code declares."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import OperationalError

from api.migrate import migrate
from cli.standalone.ports import free_port
from shared.database import connection
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.tables.base import UtcTime
from shared.database.tables.schema import METADATA
from shared.errors import Code, Unavailable
from tests.support.builders import at_once, snapshot, submission
from tests.support.postgres import PostgresServer
from tests.system.fault_trials.faults import hanging

KEY = "INSERT INTO api_keys (id, name, secret_sha256, created_at) VALUES ('1', 'n', 's', 1)"
EVENT = "INSERT INTO events (job_id, created_at, level, type, message, data) VALUES ('none', 1, 'info', 'x', 'm', '{}')"
EARLIEST, LATEST = datetime(1971, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001 (Hypothesis adds the zone)


@pytest.fixture(params=["sqlite", "postgresql"])
def unreachable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that cannot be reached."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/no/such/folder/mens.db"
    return f"postgresql+psycopg://postgres@127.0.0.1:{free_port()}/mens"


def test_migrations_from_empty_make_the_tables_of_the_code(empty_url: str) -> None:
    migrate(empty_url)
    engine = create_engine(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_migrating_again_is_harmless(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    Jobs(database).submit(submission())
    migrate(empty_url)
    assert len(snapshot(database)["jobs"]) == 1
    database.close()


def test_every_table_has_a_named_primary_key(database: Database) -> None:
    inspector = inspect(database.engine)
    assert {table: inspector.get_pk_constraint(table)["name"] for table in METADATA.tables} == {
        table: f"pk_{table}" for table in METADATA.tables
    }


def test_unreachable_database_is_unavailable_in_every_verb(unreachable_url: str) -> None:
    database = Database(unreachable_url)
    started = time.monotonic()
    calls = [
        database.ping,
        lambda: Jobs(database).get("ftjob-1"),
        lambda: Jobs(database).submit(submission()),
        lambda: Keys(database).authenticate("mens-x"),
        lambda: Keys(database).create("x"),
    ]
    for call in calls:
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.code is Code.DATABASE_UNAVAILABLE
        assert caught.value.retryable
        assert "\n" not in caught.value.message
    assert time.monotonic() - started < 30


@pytest.mark.postgres
def test_terminated_connections_are_replaced(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_url()
    database = Database(url)
    database.ping()
    cut = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()")
    with pytest.raises(Unavailable), database.read() as session:
        session.execute(cut)
        session.execute(text("SELECT 1"))
    database.ping()
    database.close()
    postgres_server.give_back(url)


@pytest.mark.postgres
def test_locked_table_is_unavailable_and_costs_no_other_caller(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOCK_SECONDS", 0.5)
    url = postgres_server.fresh_url()
    database = Database(url)
    try:
        with database.engine.begin() as locking:
            locking.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
            started = time.monotonic()
            with ThreadPoolExecutor(40) as callers:
                waiting = [callers.submit(Jobs(database).list) for _ in range(40)]
                errors = [each.exception(60) for each in waiting]
            assert all(isinstance(error, Unavailable) for error in errors), errors
            assert time.monotonic() - started < 30
            database.ping()
        assert Jobs(database).list() is not None
    finally:
        database.close()
        postgres_server.give_back(url)


def test_locked_sqlite_file_is_unavailable_within_seconds(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection.LOCK_SECONDS <= 5
    monkeypatch.setattr(connection, "LOCK_SECONDS", 0.2)
    path = tmp_path / "mens.db"
    path.write_bytes(sqlite_template.read_bytes())
    with (
        closing(Database(f"sqlite:///{path}")) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with ThreadPoolExecutor(20) as callers:
            waiting = [callers.submit(Keys(database).create, f"key-{number}") for number in range(20)]
            errors = [each.exception(60) for each in waiting]
        assert all(isinstance(error, Unavailable) for error in errors), errors
        assert time.monotonic() - started < 20
        database.ping()
        other.execute("ROLLBACK")
        Keys(database).create("key")


@pytest.mark.postgres
def test_migration_may_take_longer_than_a_statement_of_a_caller(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", 0.5)
    url = postgres_server.fresh_url()
    with closing(Database(url)) as other, ThreadPoolExecutor(1) as migrator:
        with other.engine.begin() as locking:
            locking.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": 0x6D656E73})
            migrating = migrator.submit(migrate, url)
            time.sleep(1)
            assert not migrating.done()
        migrating.result(60)
    postgres_server.give_back(url)


@pytest.mark.postgres
def test_slow_statement_is_unavailable(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", 0.2)
    url = postgres_server.fresh_url()
    database = Database(url)
    try:
        with pytest.raises(Unavailable), database.read() as session:
            session.execute(text("SELECT pg_sleep(60)"))
        database.ping()
    finally:
        database.close()
        postgres_server.give_back(url)


@pytest.mark.postgres
def test_server_that_hangs_is_unavailable_within_seconds(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever a caller does: in the midst of a statement, at the probe of a pooled connection, at a new connection."""
    assert connection.ANSWER_SECONDS + connection.STATEMENT_SECONDS <= 40
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", 0.5)
    monkeypatch.setitem(connection.SERVER_OPTIONS, "connect_timeout", 2)  # psycopg's least
    url = postgres_server.fresh_url()
    database = Database(url)
    try:
        database.ping()
        with (
            database.read() as session,
            ThreadPoolExecutor(3) as callers,
            hanging(psutil.Process(postgres_server.process.pid)),
        ):
            started = time.monotonic()
            waiting = [callers.submit(Jobs(database).list) for _ in range(3)]
            with pytest.raises(OperationalError):
                session.execute(text("SELECT 1"))
            errors = [each.exception(20) for each in waiting]
            assert time.monotonic() - started < 15
        assert all(isinstance(error, Unavailable) for error in errors), errors
        assert Jobs(database).list() is not None
    finally:
        database.close()
        postgres_server.give_back(url)


@pytest.mark.postgres
def test_statements_of_a_migration_have_no_limit(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", 0.1)
    url = postgres_server.fresh_url()
    limited, unlimited = Database(url), Database(url, has_limits=False)
    try:
        with pytest.raises(Unavailable), limited.read() as session:
            session.execute(text("SELECT pg_sleep(1)"))
        with unlimited.read() as session:
            session.execute(text("SELECT pg_sleep(0.5)"))
    finally:
        limited.close()
        unlimited.close()
        postgres_server.give_back(url)


def test_questions_to_a_new_connection_have_the_limit_already() -> None:
    """A pooler accepts connections while the server behind it hangs."""
    new = MagicMock()
    unlimited = new.wait
    new.cursor.return_value.__enter__.return_value.execute.side_effect = lambda _: waits.append(new.wait)
    waits: list[object] = []
    connection._limit_waits(new, None)
    assert waits
    assert unlimited not in waits


def test_ping_of_a_running_database(database: Database) -> None:
    database.ping()


def test_block_that_raises_writes_nothing(database: Database) -> None:
    before = snapshot(database)
    with pytest.raises(RuntimeError), database.write() as session:
        session.execute(text(KEY))
        raise RuntimeError
    assert snapshot(database) == before


def test_read_block_writes_nothing(database: Database) -> None:
    before = snapshot(database)
    with database.read() as session:
        session.execute(text(KEY))
    assert snapshot(database) == before


def test_concurrent_writers_lose_no_update(database: Database) -> None:
    """Read, then write: a writer that began with a read lock would fail halfway, or write over another's number."""
    keys = Keys(database)
    key, _ = keys.create("0")

    def count_up(_: int) -> None:
        for _ in range(5):
            with database.write() as session:
                lock = "" if database.is_sqlite else " FOR UPDATE"
                value = session.execute(text(f"SELECT name FROM api_keys{lock}")).scalar_one()
                session.execute(text("UPDATE api_keys SET name = :name"), {"name": str(int(value) + 1)})

    at_once(4, count_up)
    assert [(found.id, found.name) for found in keys.all()] == [(key.id, "20")]


def test_foreign_keys_are_enforced(database: Database) -> None:
    from sqlalchemy.exc import IntegrityError

    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text(EVENT))


def test_database_clock_is_aware_and_correct(database: Database) -> None:
    with database.read() as session:
        assert abs(database.now(session) - datetime.now(UTC)) < timedelta(seconds=5)


@given(st.datetimes(EARLIEST, LATEST, timezones=st.just(UTC)))
def test_times_are_stored_as_milliseconds_in_order(moment: datetime) -> None:
    kind, dialect = UtcTime(), create_engine("sqlite://").dialect
    stored = kind.process_bind_param(moment, dialect)
    assert stored is not None
    back = kind.process_result_value(stored, dialect)
    assert back is not None
    assert back.tzinfo is UTC
    assert abs(back - moment) <= timedelta(milliseconds=0.501)
    assert kind.process_bind_param(back, dialect) == stored
    assert kind.process_bind_param(None, dialect) is kind.process_result_value(None, dialect) is None


def test_after_write_listeners_are_called_after_commits_only(database: Database) -> None:
    keys: list[int] = []
    database.after_write.append(lambda: keys.append(len(Keys(database).all())))
    Keys(database).create("one")
    assert keys == [1], "the listener reads what was committed"
    with pytest.raises(ZeroDivisionError), database.write() as session:
        session.execute(text("DELETE FROM api_keys"))
        raise ZeroDivisionError
    with database.read():
        pass
    assert keys == [1]
    Keys(database).create("two")
    assert keys == [1, 2]
