"""A separate Valkey for each test that requests one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.inference.rate_limits import stores
from tests.support.valkey import Valkey, running_valkey


@pytest.fixture
def valkey_seconds() -> float:
    """How long Valkey may take to answer. On a busy machine it may be longer than a second, and then a process counts for itself."""
    return 30.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, valkey_seconds: float) -> None:
    monkeypatch.setattr(stores, "TIMEOUT_SECONDS", valkey_seconds)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey
