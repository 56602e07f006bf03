"""Fixtures of tests that run commands of `mens`; the conftest of a folder imports those that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from api.services import make_services
from api.settings import ApiSettings
from cli.client.json_errors import note_json
from cli.client.start_command import note_base
from tests.support.api_installation import application_of
from tests.support.asgi_server import serve
from tests.support.cli_installation import CliInstallation


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Build `mens` once per process: Typer's runner would build it for each call, which takes 40 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(autouse=True)
def nothing_of_an_earlier_command() -> None:
    """Reset ``--json`` and the default base: an ordinary process runs one command, but the test process runs many, in
    any order.
    """
    note_json(False)
    note_base(None)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[CliInstallation]:
    """An installation without a base, replica or broker; commands use alice's key."""
    (tmp_path / "mens.db").write_bytes(sqlite_template.read_bytes())
    services = make_services(ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0"))
    key, secret = services.keys.create("alice")
    monkeypatch.delenv("MENS_TENANT", raising=False)
    for url in serve(application_of(services)):
        monkeypatch.setenv("MENS_HOME", str(tmp_path))
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", secret)
        yield CliInstallation(services, url, key, monkeypatch)
