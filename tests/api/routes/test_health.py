"""Liveness and readiness, which everybody may ask for as often as they like."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_it_takes_no_thread_of_the_pool(client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a thread of the pool")

    monkeypatch.setattr("fastapi.routing.run_in_threadpool", fail)
    monkeypatch.setattr("fastapi.dependencies.utils.run_in_threadpool", fail)
    assert client.get(path).status_code == 200
