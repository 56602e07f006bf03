"""Alembic's environment: one transaction, one migrator at a time, and no endless wait for a lock."""

from alembic import context
from sqlalchemy import text

from shared.db import Database
from shared.tables import Base

ADVISORY_LOCK = 0x6D656E73  # "mens"
LOCK_TIMEOUT = "15s"

database = Database(context.config.attributes["database_url"])
engine = database.engine.execution_options(mens_write=True)

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=database.is_sqlite)
    with context.begin_transaction():
        if not database.is_sqlite:
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        context.run_migrations()
    connection.commit()
database.close()
