"""``python -m api.migrate``: bring the database to this release's schema. Safe to run from several machines at once."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import make_url, text

from shared.database.connection import Database, database_errors
from shared.errors import Code, Conflict, InvalidRequest, MensError
from shared.settings import Settings, read_settings

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(database_url: str, revision: str = "head") -> None:
    """Upgrade the database, which is created first if it is a SQLite file.

    Raises:
        Conflict: ``DATABASE_INVALID``: another release made it, or it is damaged.
        Unavailable: ``DATABASE_UNAVAILABLE``.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["database_url"] = database_url
    try:
        with database_errors():
            command.upgrade(config, revision)
    except CommandError as error:
        raise Conflict(
            Code.DATABASE_INVALID,
            f"This release does not know the database's schema: {error}.",
            remedy=(
                "Start the release that created it, restore a backup from before the upgrade, or begin with a new "
                "database."
            ),
        ) from error


def main() -> int:
    """Entry point: on failure print one line to stderr on why the database cannot be migrated, and return 1."""
    try:
        database_url = read_settings(Settings).database_url
        with closing(Database(database_url)) as database:
            _check_encoding(database)
        migrate(database_url)
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("The database has the current schema.")
    return 0


def _check_encoding(database: Database) -> None:
    """Check that a PostgreSQL database uses UTF-8.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the database cannot store every string.
    """
    if database.is_sqlite:
        return
    with database.read() as session:
        encoding = session.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"MENS_DATABASE_URL: the database {database.url.database!r} has the encoding {encoding}; UTF8 is required.",
            remedy="Create one: CREATE DATABASE mens ENCODING 'UTF8' LOCALE 'C.UTF-8' TEMPLATE template0.",
            param="MENS_DATABASE_URL",
        )


if __name__ == "__main__":
    sys.exit(main())
