"""Fixtures of tests that judge adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.database.connection import Database
from tests.support.judged_installation import BAD, GOOD, OLD, JudgedInstallation, Models, judged_installation


@pytest.fixture
def models() -> Models:
    return Models({OLD: 0.9, GOOD: 1.0, BAD: 0.5, "tiny": 0.2})


@pytest.fixture
def place(models: Models, database: Database, tmp_path: Path) -> Iterator[JudgedInstallation]:
    with judged_installation(models, database, tmp_path) as installation:
        yield installation
