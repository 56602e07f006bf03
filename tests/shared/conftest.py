"""Databases with a clock that tests set, and the operations on them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.database.adapters import Adapters
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from tests.support.builders import LEASE_SECONDS
from tests.support.clock import Clock
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'mens.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.empty_url()


@pytest.fixture
def clock(database: Database, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until the test moves it."""
    clock = Clock(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    monkeypatch.setattr(database, "now", lambda session: clock.now)
    return clock


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database)


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database, LEASE_SECONDS)


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
def files(database: Database) -> Files:
    return Files(database)


@pytest.fixture
def adapters(database: Database) -> Adapters:
    return Adapters(database)
