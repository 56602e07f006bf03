"""Ledgers with a clock of ours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from shared.db import Database
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.registry import Registry

LEASE_SECONDS = 60.0


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
def registry(database: Database) -> Registry:
    return Registry(database)
