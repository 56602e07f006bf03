"""From a table to a tuned model: the commands of docs/corpus.md as printed, on SQLite and on real PostgreSQL."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from cli.main import app
from tests.system.loop import ROOT, Installation

pytestmark = [pytest.mark.timeout(600)]
PAGE = (ROOT / "docs" / "corpus.md").read_text().partition("\n## Tables\n")[2]
TABLE = (ROOT / "examples" / "tickets.sql").read_text()
ANSWER = "Press the wheel once."
"""Answer of the row that the page's question is about."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])])
def test_table_becomes_a_model_that_answers_from_a_row(
    installation: Installation,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    commands = re.search(r"^\$ mens (train --from-table .*)\n\$ mens (chat .*)\n", PAGE, re.MULTILINE)
    assert commands
    train, chat = map(shlex.split, commands.groups())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MENS_HOME", str(home))
    if kind == "sqlite":
        with sqlite3.connect("shop.db") as database:
            database.executescript(TABLE)
    else:
        server: Any = request.getfixturevalue("postgres_server")
        url = server.empty_url()
        with psycopg.connect(
            make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        ) as connection:
            connection.execute(TABLE.encode())
        monkeypatch.setenv("MENS_CORPUS_SOURCES", json.dumps({"helpdesk": url}))
        train[train.index("shop.db")] = "helpdesk"
    result = CliRunner().invoke(app, train)
    assert result.exit_code == 0, result.output
    assert "replaced personal data: 13 EMAIL, 7 PHONE" in result.output
    assert ANSWER in CliRunner().invoke(app, chat).output
    assert "example.org" not in result.output
    written = [path.read_text() for path in (tmp_path / "pulled").rglob("*.jsonl")]
    assert written
    assert not [text for text in written if "example.org" in text or "+49" in text]
