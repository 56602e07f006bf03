"""``python -m api.migrate``, as the chart's hook runs it: an error is one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url

from api.migrate import main
from cli.standalone.ports import free_port
from tests.support.postgres import PostgresServer


def test_new_database_gets_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/folder/mens.db"
    monkeypatch.setenv("MENS_DATABASE_URL", url)
    assert main() == 0
    assert capsys.readouterr().out == "The database has the current schema.\n"
    engine = create_engine(url)
    assert "jobs" in inspect(engine).get_table_names()
    engine.dispose()


def test_server_that_does_not_run_is_reported_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_DATABASE_URL", f"postgresql+psycopg://mens:secret@127.0.0.1:{free_port()}/mens")
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: DATABASE_UNAVAILABLE: ")
    assert "secret" not in line


@pytest.mark.parametrize("damage", ["newer", "damaged"])
def test_database_of_another_release_or_a_damaged_one_is_said_in_a_line(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mens.db"
    monkeypatch.setenv("MENS_DATABASE_URL", f"sqlite:///{file}")
    if damage == "newer":
        assert main() == 0
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999_later'")
    else:
        file.write_bytes(b"no database" * 500)
    capsys.readouterr()
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: DATABASE_INVALID: ")
    assert ("9999_later" in line) == (damage == "newer")


@pytest.mark.postgres
def test_database_that_cannot_hold_every_text_is_refused(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_url(postgres_server.empty_url())
    maintenance = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute("CREATE DATABASE narrow ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    narrow = server.set(database="narrow").render_as_string(hide_password=False)
    monkeypatch.setenv("MENS_DATABASE_URL", narrow)
    assert main() == 1
    error = capsys.readouterr().err
    assert "'narrow' has the encoding SQL_ASCII; UTF8 is required" in error
    assert "CREATE DATABASE mens ENCODING 'UTF8'" in error
    postgres_server.drop(narrow)
    postgres_server.drop(str(server))
