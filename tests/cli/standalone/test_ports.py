"""Readiness: 200 counts and nothing else, and no proxy of the environment is asked."""

from __future__ import annotations

import pytest

from cli.standalone.ports import free_port, responds, takes_connections
from tests.support.http_stub import http_stub


def test_only_200_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http_stub(lambda _, path, *__: (200 if path == "/ready" else 503, {})) as url:
        port = int(url.rpartition(":")[2])
        assert takes_connections(port)
        assert (responds(port, "/ready"), responds(port, "/health")) == (True, False)


def test_nobody_there_is_not_ready() -> None:
    port = free_port()
    assert not takes_connections(port)
    assert not responds(port, "/ready")
