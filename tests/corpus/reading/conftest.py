"""A table to pull from on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tables import SourceTable


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceTable]:
    """An empty table in a database of its own."""
    if request.param == "sqlite":
        table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
        table.create()
        yield table
        return
    server = request.getfixturevalue("postgres_server")
    table = SourceTable(server.empty_url(), tmp_path / "pulled")
    table.create()
    yield table
    server.drop(table.url)
