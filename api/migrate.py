"""``python -m api.migrate``: bring the database to this release's schema. Safe to run from several machines at once."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import make_url

from shared.settings import Settings, read_settings

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(database_url: str, revision: str = "head") -> None:
    """Upgrade the database, which is created first when it is a SQLite file."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["database_url"] = database_url
    command.upgrade(config, revision)


if __name__ == "__main__":
    migrate(read_settings(Settings).database_url)
    print("The database has the current schema.")
