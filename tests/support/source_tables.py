"""A table to pull from, on SQLite or PostgreSQL, and a pull of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from corpus.filters.placeholder_key import PlaceholderKey
from corpus.reading.addresses import SourceAddress, address_of
from corpus.reading.pull import PullReport, pull
from corpus.reading.pull_spec import PullSpec
from corpus.shards import checked_shards
from shared.errors import InvalidRequest

KEY = PlaceholderKey(b"a key of a test")
SQL = "SELECT id, question, answer, changed FROM notes"
ROW = {"prompt": "{{ item.question }}", "response": "{{ item.answer }}"}


@dataclass
class SourceTable:
    """A database with a table ``notes``, and a folder for its rows.

    Attributes:
        url: SQLAlchemy's address of the database.
    """

    url: str
    folder: Path
    spec: dict[str, Any] = field(
        default_factory=lambda: {"source": "desk", "sql": SQL, "key": ["id"], "watermark": "changed", "row": ROW}
    )

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def execute(self, *statements: str) -> list[Any]:
        """Run statements in one transaction; return the rows of the last one."""
        with closing(self.connect()) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows

    def connect(self) -> Any:
        if self.is_sqlite:
            return sqlite3.connect(str(make_url(self.url).database))
        return psycopg.connect(make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False))

    def create(self, extra: str = "") -> None:
        moment = "text" if self.is_sqlite else "timestamptz"
        self.execute(
            f"CREATE TABLE notes (id integer PRIMARY KEY, question text, answer text, changed {moment}{extra})"
        )

    def ago(self, seconds: float) -> str:
        """An expression of the time some seconds ago."""
        return f"datetime('now', '-{seconds} seconds')" if self.is_sqlite else f"now() - interval '{seconds} seconds'"

    def add(self, numbers: Iterable[int], *, age: float = 3600, answer: str = "answer") -> None:
        """Insert rows; each is a second younger than the one before."""
        for number in numbers:
            age_of = self.ago(max(0, age - number))
            self.execute(f"INSERT INTO notes VALUES ({number}, 'question {number}', '{answer} {number}', {age_of})")

    def address(self) -> SourceAddress:
        return address_of("desk", self.url, "MENS_CORPUS_SOURCES")

    def pull(self, *, snapshot_seconds: float = 900, shard_bytes: int = 64 << 20, **changes: Any) -> PullReport:
        """Pull into the folder."""
        spec = PullSpec.of(self.spec | changes)
        return pull(
            spec,
            self.address(),
            self.folder,
            redaction_key=KEY,
            snapshot_seconds=snapshot_seconds,
            shard_bytes=shard_bytes,
        )

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the folder's shards, after checking their digests."""
        return [json.loads(line) for path in checked_shards(self.folder) for line in path.read_bytes().splitlines()]

    def answers(self) -> list[str]:
        return [row["response"] for row in self.rows()]

    def texts(self) -> Iterator[tuple[Path, str]]:
        """All files of the folder."""
        for path in self.folder.rglob("*"):
            yield path, path.read_text(errors="replace")


def pull_briefly(url: str, folder: str) -> None:
    """Pull with small pages, shards and snapshots; the program of a process that is killed at some moment."""
    table = SourceTable(url, Path(folder))
    with suppress(InvalidRequest):  # nothing to pull yet
        table.pull(lag=0.2, limit=50, shard_bytes=4000, snapshot_seconds=0.05)
