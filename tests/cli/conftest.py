"""An installation, and an OpenAI, for the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.main import create_app
from api.settings import ApiSettings
from tests.support.asgi_server import serve
from tests.support.cli_installation import CliInstallation
from tests.support.fake_openai import KEY, FakeOpenAI, ServedOpenAI, serve_fake_openai


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[CliInstallation]:
    """An installation without a base, replica or broker; commands are alice's."""
    (tmp_path / "mens.db").write_bytes(sqlite_template.read_bytes())
    api = create_app(ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0"))
    key, secret = api.state.services.keys.create("alice")
    monkeypatch.delenv("MENS_TENANT", raising=False)
    for url in serve(api):
        monkeypatch.setenv("MENS_HOME", str(tmp_path))
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", secret)
        yield CliInstallation(api.state.services, url, key, monkeypatch)


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedOpenAI]:
    """A fake OpenAI, to which commands of this process are pointed, with the first project's key."""
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield ServedOpenAI(fake, url)
