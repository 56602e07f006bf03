"""Ledgers with a clock of ours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.db import Database
from shared.keys import Keys
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.registry import Registry
from tests.postgres import PostgresServer

LEASE_SECONDS = 60.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'mens.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.empty_url()


@dataclass
class Clock:
    """The time that a test's ledger believes."""

    now: datetime

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock(database: Database, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until the test moves it."""
    clock = Clock(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    monkeypatch.setattr(database, "now", lambda session: clock.now)
    return clock


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database)


@pytest.fixture
def leases(database: Database) -> LeaseLedger:
    return LeaseLedger(database, LEASE_SECONDS)


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
def registry(database: Database) -> Registry:
    return Registry(database)
