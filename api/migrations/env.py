"""Alembic's environment: one transaction, one migrator at a time, and no endless wait for a lock."""

from alembic import context
from sqlalchemy import Connection, text

from shared.database.connection import Database
from shared.database.tables.schema import METADATA

ADVISORY_LOCK = 0x6D656E73  # "mens"
LOCK_SECONDS = 15

database = Database(
    context.config.attributes["database_url"], has_limits=False
)  # an index of a large table takes minutes


def disable_foreign_keys(connection: Connection) -> None:
    """Let SQLite replace tables that others refer to: it changes a table by copying it and dropping the original."""
    connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")  # inside a transaction it would have no effect


def check_references(connection: Connection) -> None:
    """Refuse a migration that leaves dangling references."""
    if broken := connection.execute(text("PRAGMA foreign_key_check")).all():
        raise RuntimeError(f"The migration would leave rows with broken references: {broken[:5]}")


with database.engine.connect() as connection:
    if database.is_sqlite:
        disable_foreign_keys(connection)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")
        # The write lock before the first read: two processes that start together would both find the old version.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    context.configure(connection=connection, target_metadata=METADATA, render_as_batch=database.is_sqlite)
    with context.begin_transaction():
        if not database.is_sqlite:
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))  # the server may have one of its own
            # As above, for PostgreSQL: the second process waits here, and then finds the new version.
            connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        context.run_migrations()
        if database.is_sqlite:
            # Before the commit, so that such a migration is rolled back.
            check_references(connection)
    connection.commit()
database.close()
