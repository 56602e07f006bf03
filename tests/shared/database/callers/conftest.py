"""Fixtures of callers."""

from __future__ import annotations

import pytest

from shared.database.callers.sign_ins import SignIns
from shared.database.connection import Database


@pytest.fixture
def sign_ins(database: Database) -> SignIns:
    return SignIns(database)
