"""The command line's client: whose key it carries, and for which tenant it asks."""

from __future__ import annotations

import pytest

from cli.connection import Connection


def test_operator_names_a_tenant_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_TENANT", "acme")
    with Connection("http://127.0.0.1:9", "secret").client() as client:
        assert client.headers["X-Mens-Tenant"] == "acme"
        assert client.headers["Authorization"] == "Bearer secret"


def test_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MENS_TENANT", raising=False)
    with Connection("http://127.0.0.1:9", "secret").client() as client:
        assert "X-Mens-Tenant" not in client.headers
